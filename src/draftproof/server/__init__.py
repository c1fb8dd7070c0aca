"""An OpenAI-compatible server around one engine: routes, streams, metrics.

Not here: generating (``rounds.py``), and the command that starts it (``commands/serve.py``).
"""
