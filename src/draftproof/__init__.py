"""Exact speculative decoding for open language models, with the proof.

Importing this loads no library that runs models; those are loaded with the models.
"""

from draftproof.drafters import Drafter, DraftRequest, load_drafter
from draftproof.engine import Engine
from draftproof.errors import (
    ClosedError,
    DraftproofError,
    MissingExtraError,
    ModelError,
    ModelLoadError,
    PairError,
    ParameterError,
    PromptError,
    UserError,
)
from draftproof.models import Capabilities, Chunk, Model, load_model
from draftproof.params import SamplingParams
from draftproof.stats import Completion, Stats
from draftproof.types import (
    Draft,
    ModelOptions,
    Origin,
    Piece,
    Seconds,
    Speculation,
    Step,
    TokenLogprob,
    Verdict,
)

__version__ = "0.1.0"

__all__ = [
    "Capabilities",
    "Chunk",
    "ClosedError",
    "Completion",
    "Draft",
    "DraftRequest",
    "Drafter",
    "DraftproofError",
    "Engine",
    "MissingExtraError",
    "Model",
    "ModelError",
    "ModelLoadError",
    "ModelOptions",
    "Origin",
    "PairError",
    "ParameterError",
    "Piece",
    "PromptError",
    "SamplingParams",
    "Seconds",
    "Speculation",
    "Stats",
    "Step",
    "TokenLogprob",
    "UserError",
    "Verdict",
    "__version__",
    "load_drafter",
    "load_model",
]
