"""What a drafter is, and how one is found by name.

A drafter proposes; it never decides. Whatever it proposes the output is the target's, so a
drafter can be wrong, but it must be honest: the rows of a draft are the distributions its tokens
were drawn from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from draftproof.control.turn import ENDLESS
from draftproof.errors import PairError, ParameterError, UserError
from draftproof.models import Model, Progress, load_model
from draftproof.noise import Noise
from draftproof.params import SamplingParams
from draftproof.processors import Processors
from draftproof.types import Draft, ModelOptions

Guide = Callable[[Sequence[tuple[int, float]]], list[int]]
"""Told after a pass of a draft model which sequences were in it and the top probability of each
one's next row, it says how many more tokens each is to draft: 0 to stop, 1 to draw and stop."""


class DraftRequest(NamedTuple):
    """One sequence that wants a draft.

    Attributes:
        seq: sequence number; the drafter's caches are kept by it.
        owner: changes when another request takes the sequence over; never used twice.
        tokens: all committed tokens. While the owner is the same, they only grow.
        length: most tokens to propose; 0 only brings caches up to date.
        params: the request's sampling options.
        noise: the request's coins.
        end_tokens: tokens that end the answer: nothing is worth proposing behind one.
        processors: what the request's options do to logits, None where they do nothing.
        auto: whether fewer tokens may be proposed than ``length``, where that promises more.
        guide: for a ``GuidedDrafter``, what decides that; one for all requests of a call.
        left: most tokens that the answer may still get.
    """

    seq: int
    owner: int
    tokens: Sequence[int]
    length: int
    params: SamplingParams
    noise: Noise
    end_tokens: frozenset[int]
    processors: Processors | None = None
    auto: bool = False
    guide: Guide | None = None
    left: int = ENDLESS


class Drafter(Protocol):
    """Proposes tokens."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, of at most its length; empty where there is nothing to propose.

        It may decide to stop by looking at tokens it keeps and at the next distribution. It must
        not drop a token after having seen which one it is: that would make the rows a lie.
        """

    def close(self) -> None:
        """Free everything. May be called twice."""


@runtime_checkable
class FreeDrafter(Drafter, Protocol):
    """One whose drafts take no time, are functions of the text, and may be cut anywhere."""

    def evidence(self, request: DraftRequest) -> int:
        """Tokens that have agreed so far: the more, the likelier the draft is right."""


@runtime_checkable
class GuidedDrafter(Drafter, Protocol):
    """One that follows the guide of its requests.

    Attributes:
        model: what drafts.
        reads: whether it has to read the text itself; one that shares the target's cache has not.
    """

    model: Model
    reads: bool

    def known(self, request: DraftRequest) -> int:
        """How many of the request's leading tokens it has read."""


class Record:
    """The tokens a drafter has taken in for one sequence, and how many are still right.

    Comparing costs time by the tokens that are new, not by the context: within one request
    committed tokens only grow, so what agreed once agrees for good.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._owner = -1
        self._agreed = 0

    def agree(self, request: DraftRequest) -> int:
        """Length of the common prefix of the record and the request's tokens."""
        start = self._agreed if request.owner == self._owner else 0
        end = min(len(self.tokens), len(request.tokens))
        differing = (i for i in range(start, end) if self.tokens[i] != request.tokens[i])
        self._agreed = next(differing, end)
        self._owner = request.owner
        return self._agreed

    def cut(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        del self.tokens[length:]
        self._agreed = min(self._agreed, length)


def _lookup(rest: str, target: Model, options: ModelOptions, progress: Progress | None) -> Drafter:
    from draftproof.drafters.lookup import LookupDrafter

    return LookupDrafter()


def _quantize(
    rest: str, target: Model, options: ModelOptions, progress: Progress | None
) -> Drafter:
    from draftproof.models.quantize import quantized_copy

    path = getattr(target, "path", None)
    if path is None:
        raise PairError(f"quantize needs a target in a GGUF file; {target.name} is not one")
    return _model(quantized_copy(path, rest), target, options, progress)


def _early_exit(
    rest: str, target: Model, options: ModelOptions, progress: Progress | None
) -> Drafter:
    from draftproof.drafters.early_exit import load

    return load(rest, target)


def _model(
    spec: str,
    target: Model,
    options: ModelOptions,
    progress: Progress | None,
    cross_vocabulary: str | None = None,
) -> Drafter:
    from draftproof.drafters.cross import CrossVocabularyDrafter
    from draftproof.drafters.model import ModelDrafter

    capabilities = target.capabilities
    options = replace(
        options,
        context_length=capabilities.context_length,
        max_sequences=capabilities.max_sequences,
        bit_exact=False,  # a draft may be anything
    )
    model = load_model(spec, options, progress)
    try:
        if cross_vocabulary is None:
            return ModelDrafter(model, target)
        return CrossVocabularyDrafter(model, target, cross_vocabulary)
    except UserError:
        model.close()
        raise


def _chain(
    parts: list[str],
    target: Model,
    options: ModelOptions | None,
    progress: Progress | None,
    cross_vocabulary: str | None,
) -> Drafter:
    from draftproof.drafters.chain import ChainDrafter

    with ExitStack() as stack:
        drafters: list[Drafter] = []
        for part in parts:
            cross = cross_vocabulary if _is_model(part) else None
            drafter = load_drafter(part, target, options, progress, cross)
            assert drafter is not None
            stack.callback(drafter.close)
            drafters.append(drafter)
        stack.pop_all()
    return ChainDrafter(drafters)


def split_chain(spec: str) -> list[str]:
    """The drafters of a spec, which commas separate; a comma in a path that exists does not.

    Raises:
        ParameterError: a chain that names nothing, ``none``, or a drafter twice.
    """
    chain: list[str] = []
    parts = spec.split(",")
    while parts:
        ends = range(len(parts), 0, -1)
        end = next((end for end in ends if _exists(",".join(parts[:end]))), 1)
        chain.append(",".join(parts[:end]))
        del parts[:end]
    for part in chain if len(chain) > 1 else ():
        if part in ("", "none") or chain.count(part) > 1:
            raise ParameterError(
                f"a chain names drafters, each of them once, and not {part!r}: {spec!r}"
            )
    return chain


def _is_model(spec: str) -> bool:
    return spec != "none" and spec.partition(":")[0] not in LOADERS


def _exists(spec: str) -> bool:
    paths = (spec, spec.partition(":")[2])
    return any(path and os.path.exists(os.path.expanduser(path)) for path in paths)


def _replay(rest: str, target: Model, options: ModelOptions, progress: Progress | None) -> Drafter:
    from draftproof.drafters.replay import parse

    return parse(rest)


LOADERS: dict[str, Callable[[str, Model, ModelOptions, Progress | None], Drafter]] = {
    "lookup": _lookup,
    "quantize": _quantize,
    "early-exit": _early_exit,
    "replay": _replay,
}


def load_drafter(
    spec: str,
    target: Model,
    options: ModelOptions | None = None,
    progress: Progress | None = None,
    cross_vocabulary: str | None = None,
) -> Drafter | None:
    """Load a drafter by its spec.

    Args:
        spec: ``none``, ``lookup``, ``quantize:TYPE``, ``early-exit:N``, or a model as
            ``load_model`` takes it; or several of them, separated by commas.
        target: the model to draft for.
        options: how to load a draft model; its context follows the target's.
        progress: called with the part loaded, from 0 to 1.
        cross_vocabulary: "auto", "tokens" or "text" lets a draft model of any tokenizer draft
            (see ``drafters/cross.py``); None refuses another tokenizer than the target's.

    Raises:
        PairError: it cannot draft for this target.
        ModelLoadError: a draft model cannot be loaded.
    """
    if not spec:
        raise ParameterError(
            "the drafter is empty: give none, lookup, quantize:TYPE, early-exit:N, or a model"
        )
    parts = split_chain(spec)
    if cross_vocabulary is not None and not any(map(_is_model, parts)):
        raise ParameterError(f"cross-vocabulary needs a draft model, and {spec!r} is not one")
    if spec == "none":
        return None
    if len(parts) > 1:
        return _chain(parts, target, options, progress, cross_vocabulary)
    kind, _, rest = spec.partition(":")
    if kind == "lookup" and rest:
        raise ParameterError(f"lookup takes no argument: write lookup, not {spec!r}")
    if kind in LOADERS:
        return LOADERS[kind](rest, target, options or ModelOptions(), progress)
    return _model(spec, target, options or ModelOptions(), progress, cross_vocabulary)
