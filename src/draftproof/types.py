"""The frozen records all parts share. No behaviour beyond checking themselves.

Not here: the records of a finished answer (``stats.py``) and the protocols of models and
drafters (``models/__init__.py``, ``drafters/__init__.py``), and the sampling options
(``params.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from draftproof.checks import is_int, require
from draftproof.params import SamplingParams

Array: TypeAlias = Any
"""An array of the backend's own library (NumPy or torch); see the array API standard."""

Message: TypeAlias = dict[str, str]
"""One chat message: ``{"role": ..., "content": ...}``."""

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""Raw text, chat messages (the model's own template is applied), or token ids."""

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]

RULES = ("block", "token", "match")
IMPOSSIBLE = -9999.0  # the log-probability of what cannot be, in JSON
INT32 = 2**31 - 1  # the most that llama.cpp's integers hold
DTYPES = ("float32", "bfloat16", "float16")

CROSS_VOCABULARY = ("auto", "tokens", "text")
"""How a draft model of another tokenizer drafts; see ``drafters/cross.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How a request is speculated on.

    Attributes:
        draft_length: tokens proposed per round (k), at most; 0 is plain decoding. None is auto: up
            to 16, as many as promise to pay by what was measured so far (see ``control/``).
        rule: "block", "token" or "match"; None takes "block", and "match" with a seed or when
            greedy (where all rules are the same). See ``rules.py``.

    Raises:
        ParameterError: a value is out of its range.
    """

    draft_length: int | None = None
    rule: Literal["block", "token", "match"] | None = None

    def __post_init__(self) -> None:
        require(
            self.draft_length is None or (is_int(self.draft_length) and self.draft_length >= 0),
            "draft_length must be a whole number of 0 (plain) or more, or None (auto), "
            f"not {self.draft_length!r}",
        )
        require(
            self.rule is None or self.rule in RULES,
            f"rule must be one of {', '.join(RULES)}, not {self.rule!r}",
        )

    def rule_for(self, params: SamplingParams) -> Literal["block", "token", "match"]:
        """The rule that judges drafts under ``params``.

        Raises:
            ParameterError: a seed together with a rule that would let the drafter change the text.
        """
        if params.greedy:
            return "match"
        if params.seed is None:
            return self.rule or "block"
        require(
            self.rule in (None, "match"),
            f"rule {self.rule!r} would let the drafter change the text of a seed: "
            "leave the rule out, or the seed",
        )
        return "match"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is loaded. The defaults suit a machine without a GPU.

    Attributes:
        context_length: most tokens of one sequence; None takes the model's own.
        max_sequences: sequences that can be held at once.
        threads: CPU threads; None takes the physical cores, less one where there are more than two.
        gpu_layers: layers of a GGUF file to put on a GPU; -1 for all.
        device: where a Hugging Face checkpoint runs ("cpu", "cuda", "cuda:1", "mps"); None takes
            the best at hand.
        dtype: "float32", "bfloat16" or "float16" for a Hugging Face checkpoint; None takes its
            own, and float32 instead of float16 on a CPU.
        bit_exact: pad all passes to widths that give the same bits, so that speculation, batches
            and reuse of a prefix change nothing at all; see ``models/bit_exact.py``.
        cuda_graphs: replay the decode passes of a Hugging Face checkpoint on a CUDA device instead
            of launching them anew; see ``models/hf_graphs.py``. Nothing elsewhere.
    """

    context_length: int | None = None
    max_sequences: int = 1
    threads: int | None = None
    gpu_layers: int = 0
    device: str | None = None
    dtype: str | None = None
    bit_exact: bool = False
    cuda_graphs: bool = True

    def __post_init__(self) -> None:
        for name in ("context_length", "max_sequences", "threads"):
            value = getattr(self, name)
            optional = name != "max_sequences"
            require(
                (optional and value is None) or (is_int(value) and 1 <= value <= INT32),
                f"{name} must be a whole number from 1 to {INT32}, not {value!r}",
            )
        require(
            is_int(self.gpu_layers) and -1 <= self.gpu_layers <= INT32,
            f"gpu_layers must be a whole number from -1 (all) to {INT32}, not {self.gpu_layers!r}",
        )
        require(
            self.device is None
            or re.fullmatch(r"cpu|mps|cuda(:\d+)?", str(self.device)) is not None,
            f"device must be cpu, cuda, cuda:N or mps, not {self.device!r}",
        )
        require(
            self.dtype is None or self.dtype in DTYPES,
            f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}",
        )
        require(
            isinstance(self.bit_exact, bool), f"bit_exact must be a bool, not {self.bit_exact!r}"
        )
        require(
            isinstance(self.cuda_graphs, bool),
            f"cuda_graphs must be a bool, not {self.cuda_graphs!r}",
        )


class Source(StrEnum):
    """What made a draft. Only what a drafter made is counted as drafted, accepted or rejected."""

    DRAFTER = "drafter"
    GRAMMAR = "grammar"
    PREDICTION = "prediction"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the controller expected of a round.

    Attributes:
        tokens: emitted for this sequence.
        seconds: of drafting, of the target's pass and of judging.
        probe: whether the drafts promised nothing, and were there to find out.
    """

    tokens: float
    seconds: float
    probe: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter proposes for one sequence in one round.

    Attributes:
        tokens: the proposed tokens, k of them.
        rows: the very distributions the tokens were drawn from, k rows of [V], or None where the
            draft is deterministic (lookup, greedy drafts, seeded drafts).
        source: what made it.
        forecast: what its round is expected to bring, where its length was chosen.
    """

    tokens: tuple[int, ...] = ()
    rows: Sequence[Array] | None = None
    source: Source = Source.DRAFTER
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule makes of a draft.

    Attributes:
        accepted: how many drafts it accepts.
        token: the one it adds.
        dead_end: why there is no token to add, where the options leave none.
    """

    accepted: int
    token: int
    dead_end: Exception | None = None


class Origin(StrEnum):
    """Where an emitted token comes from.

    Forced and predicted ones were drafts of a grammar and of a predicted text.
    """

    ACCEPTED = "accepted"
    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"
    FORCED = "forced"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """What the target gave a token, before any sampling option: natural logarithms.

    Attributes:
        token: its id.
        logprob: its own.
        top: the most probable tokens with theirs, best first, as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the command line prints it; JSON knows no infinity, and others write -9999 for it."""
        top = [[token, max(value, IMPOSSIBLE)] for token, value in self.top]
        return {"token": self.token, "logprob": max(self.logprob, IMPOSSIBLE), "top": top}


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain, and the origin of the token that carries it."""

    text: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall seconds of one round. All sequences of a round share them: they do not add up over them.

    Attributes:
        draft: in the drafter.
        verify: in the target's pass.
        other: the rest of the round.
    """

    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What one round did to one sequence. Everything that reports reads this record.

    Attributes:
        request: the id ``Engine.submit`` returned.
        round: number of the round, counted by the engine; sequences share it.
        prefilled: prompt tokens the target read in this round.
        drafted: the tokens a drafter proposed.
        accepted: leading drafts that were emitted.
        evaluated: drafts that were judged: the accepted ones, and the rejected one if any.
        tokens: emitted tokens, in order.
        origins: one origin per emitted token.
        pieces: text released by this round (text that may begin a stop string is held back).
        logprobs: one per emitted token, where they were asked for.
        prompt_logprobs: one per prompt token read in this round, the first of the prompt left out.
        predicted: how many tokens a predicted text proposed.
        seconds: wall seconds of the round.
        forecast: what was expected of it; None with a fixed draft length.
        finish_reason: None while the sequence goes on.
        error: the reason behind ``finish_reason == "error"``.
    """

    request: int
    round: int
    prefilled: int = 0
    drafted: tuple[int, ...] = ()
    accepted: int = 0
    evaluated: int = 0
    tokens: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()
    pieces: tuple[Piece, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    predicted: int = 0
    seconds: Seconds = field(default_factory=Seconds)
    forecast: Forecast | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None

    @property
    def text(self) -> str:
        """The text this round released."""
        return "".join(piece.text for piece in self.pieces)
