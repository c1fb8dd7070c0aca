"""Self-speculation: the target's own first layers, with its final norm and head, draft for it.

Zhang et al. 2024 ("Draft & Verify") leave layers out, Elhoushi et al. 2024 ("LayerSkip", section
4.3) stop early and share the cache, as here: what the first layers compute for a draft is part of
its verification. So a draft takes no weights, no cache, and no work twice. It pays where the first
layers say much of what all layers say, which holds for models that were trained so.

Not here: running a part of the layers (``models/hf_layers.py``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftproof.drafters import DraftRequest, Record
from draftproof.drafters.model import ModelDrafter, Run
from draftproof.errors import PairError, ParameterError
from draftproof.models import Chunk, Model
from draftproof.sampling import greedy
from draftproof.text import encode_prompt

if TYPE_CHECKING:
    from draftproof.models.hf import HfModel

logger = logging.getLogger("draftproof")

PROMPT = "Once upon a time"  # what the measured text goes on from
TEXT = 32  # tokens of it, at most
DRAFT = 4  # drafts of a measured round
ROUNDS = 3  # measured rounds; the shortest times count, as a busy machine only adds to them
PARTS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)  # of the layers that are tried


class EarlyExitDrafter(ModelDrafter):
    """Drafts with the target's first layers, behind what the target's cache holds.

    Args:
        model: the first layers of the target (``models.hf_first.FirstLayers``).
        target: the target.
    """

    reads = False

    def _begin(self, request: DraftRequest) -> Run:
        """There is no record: what the target has read is right, and anything else forgotten."""
        read = self.model.length(request.seq)
        assert read < len(request.tokens)
        pending = request.tokens[read:] if request.length else []
        return self._run(request, Record(), pending, request.length)


def load(rest: str, target: Model) -> EarlyExitDrafter:
    """The drafter of ``early-exit:N`` or ``early-exit``.

    Args:
        rest: the number of layers; empty to choose it by measurement.
        target: a checkpoint that transformers runs.

    Raises:
        ParameterError: ``rest`` is no number.
        PairError: another kind of target, or no such number of layers in it.
    """
    from draftproof.models.bit_exact import BitExactModel  # `inspect` needs no NumPy

    bit_exact = isinstance(target, BitExactModel)
    depth = exit_layers(rest, target.name, getattr(target, "layers", None), bit_exact)
    from draftproof.models.hf import HfModel
    from draftproof.models.hf_first import FirstLayers

    assert isinstance(target, HfModel)
    return EarlyExitDrafter(FirstLayers(target, depth or choose(target)), target)


def exit_layers(rest: str, name: str, layers: int | None, bit_exact: bool) -> int | None:
    """The number of layers that draft; None where it is to be measured.

    Args:
        rest: what follows ``early-exit:``, maybe nothing.
        name: what to call the target.
        layers: how many it has; None where it is not a Hugging Face checkpoint.
        bit_exact: whether its passes are padded, which passes in two parts cannot be.

    Raises:
        ParameterError: ``rest`` is no number.
        PairError: it cannot be.
    """
    if rest and not rest.isdecimal():
        raise ParameterError(
            f"early-exit takes a number of layers: write early-exit:N, not 'early-exit:{rest}'"
        )
    if bit_exact:
        raise PairError("early-exit is not bit-exact: leave one of the two out")
    if layers is None:
        raise PairError(
            f"early-exit needs a target loaded as hf:FOLDER; {name} is not one: "
            "take another drafter"
        )
    if layers < 2:
        raise PairError(f"{name} has one layer, and early-exit needs two: take another drafter")
    if rest and not 1 <= int(rest) < layers:
        raise PairError(f"{name} has {layers} layers: give early-exit:1 to early-exit:{layers - 1}")
    return int(rest) if rest else None


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured of a number of layers.

    Attributes:
        depth: the number.
        acceptance: the part of a text by the target that they would have drafted so.
        draft: what a draft's pass takes, in plain steps of the target.
        verify: what the pass over ``DRAFT`` drafts takes, in plain steps.
    """

    depth: int
    acceptance: float
    draft: float
    verify: float

    @property
    def speedup(self) -> float:
        """Tokens expected of a round, over its plain steps (Leviathan et al. 2023, theorem 3.8)."""
        tokens = sum(self.acceptance**i for i in range(DRAFT + 1))
        return tokens / (self.verify + DRAFT * self.draft)


def choose(target: HfModel) -> int:
    """The number of layers that promises most, measured on a short text of the target's own.

    Raises:
        PairError: its layers cannot be run in two parts.
        ModelError: the target failed.
    """
    best = max(measure(target), key=lambda trial: trial.speedup)
    logger.info(
        "early-exit:%d of %d layers drafts: %.0f %% of a short text as the target, a pass takes "
        "%.2f of a step; %.2f times plain decoding expected",
        *(best.depth, target.layers, 100 * best.acceptance, best.draft, best.speedup),
    )
    return best.depth


def measure(target: HfModel, clock: Callable[[], float] = time.perf_counter) -> list[Trial]:
    """Try some numbers of layers. What the target has cached stays as it is."""
    from draftproof.models.hf_first import FirstLayers

    layers, capabilities = target.layers, target.capabilities
    depths = sorted({max(1, round(layers * part)) for part in PARTS} - {layers})
    parts = {depth: FirstLayers(target, depth) for depth in depths}
    prompt = encode_prompt(target.tokenizer, PROMPT, capabilities.vocabulary)
    context = min(len(prompt) + TEXT, capabilities.context_length)
    with target.aside(context):
        measured = _Measured(target, prompt[: context // 2], context, clock)
        return [measured.trial(depth, first) for depth, first in parts.items()]


class _Measured:
    """A text that the target wrote, and what its steps took.

    Args:
        target: the target, with nothing in its only sequence.
        prompt: tokens the text goes on from, at least one.
        length: tokens of prompt and text, at least one more.
        clock: what tells the seconds.
    """

    def __init__(
        self, target: Model, prompt: list[int], length: int, clock: Callable[[], float]
    ) -> None:
        self._target, self._clock = target, clock
        self._base = len(prompt) - 1
        self._text = list(prompt)
        if self._base:
            target.forward([Chunk(0, prompt[:-1], 0)])
        seconds = []
        while len(self._text) < length:
            picks, taken = self._pick(target, self._text[-1:])
            self._text += picks
            seconds.append(taken)
        self._step = min(seconds)
        target.truncate(0, self._base)

    def _pick(self, model: Model, tokens: list[int]) -> tuple[list[int], float]:
        """What a model thinks comes behind each of these tokens, and the seconds it takes."""
        began = self._clock()
        (rows,) = model.forward([Chunk(0, tokens, len(tokens))])
        return greedy(rows), self._clock() - began

    def trial(self, depth: int, first: Model) -> Trial:
        """Let the first layers read the text, then run some rounds of full drafts."""
        text = self._text[self._base :]
        picks, _ = self._pick(first, text[:-1])
        agreed = [mine == theirs for mine, theirs in zip(picks, text[1:], strict=True)]
        first.truncate(0, self._base)
        draft, verify = [], []
        for _ in range(ROUNDS):
            draft += [self._pick(first, [token])[1] for token in text[:DRAFT]]
            verify.append(self._pick(self._target, text[: DRAFT + 1])[1])
            self._target.truncate(0, self._base)
        acceptance = sum(agreed) / len(agreed)
        return Trial(depth, acceptance, min(draft) / self._step, min(verify) / self._step)
