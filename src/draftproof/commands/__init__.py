"""Commands that are more than one call of the engine, each in its own module."""
