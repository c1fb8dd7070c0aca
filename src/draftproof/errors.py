"""Every exception Draftproof raises on purpose. Each message ends in what to do next.

::

    DraftproofError
    ├── UserError            the request or the set-up is wrong: the command line exits with 2
    │   ├── ParameterError   an option out of its range, or a combination that is not exact
    │   ├── PromptError      an empty prompt, or one that leaves no room in the context
    │   ├── ModelLoadError   a file that is missing, broken, or of a kind we cannot run
    │   ├── PairError        this drafter cannot draft for this target
    │   └── MissingExtraError  an optional library is not installed
    ├── ModelError           a model failed while it was running
    └── ClosedError          the engine or the model was used after close()
"""


class DraftproofError(Exception):
    """Base of all of Draftproof's exceptions."""


class UserError(DraftproofError):
    """Something the caller can put right."""


class ParameterError(UserError, ValueError):
    """An option is out of its range, unknown, or not exact in this combination."""


class PromptError(UserError, ValueError):
    """The prompt is empty, of the wrong shape, or too long for the context."""


class ModelLoadError(UserError):
    """The model cannot be loaded, or is of a kind that cannot be run."""


class PairError(UserError):
    """The drafter cannot draft for this target."""


class MissingExtraError(UserError, ImportError):
    """An optional library is missing; the message holds the install command."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional library: pip install 'draftproof[{extra}]'")


class ModelError(DraftproofError, RuntimeError):
    """A model failed during a pass, or returned numbers that are not finite."""


class ClosedError(DraftproofError, RuntimeError):
    """Used after close()."""
