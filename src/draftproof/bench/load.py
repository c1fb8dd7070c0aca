"""Loads the arms of a benchmark: the target once, and each draft model once for all arms."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

from draftproof.bench.arms import TRANSFORMERS, Arm, ArmSpec, EngineArm
from draftproof.bench.hf import load
from draftproof.drafters import Drafter, load_drafter, split_chain
from draftproof.drafters.chain import ChainDrafter
from draftproof.engine import Engine
from draftproof.models import Progress
from draftproof.types import ModelOptions, Speculation


class Arms:
    """The arms, with their models loaded.

    Args:
        target: a model, as ``load_model`` takes it.
        specs: from ``parse_arms``.
        options: how models are loaded.
        progress: called with the part of a model that is loaded.
        cold: as in ``EngineArm``.

    Attributes:
        target: the model.
        drafters: by their specs.
        every: the arms.

    Raises:
        ModelLoadError: a model cannot be loaded.
        PairError: a drafter cannot draft for this target.
    """

    def __init__(
        self,
        target: str,
        specs: Sequence[ArmSpec],
        options: ModelOptions,
        progress: Progress | None = None,
        cold: bool = True,
    ) -> None:
        self._options, self._progress, self._cold = options, progress, cold
        self.drafters: dict[str, Drafter] = {}
        with ExitStack() as self._stack:
            loaded = Engine(target, options=options, progress=progress)
            self._stack.enter_context(loaded)
            self.target = loaded.target
            self.every: list[Arm] = [self._arm(spec, target) for spec in specs]
            self._stack = self._stack.pop_all()

    def _arm(self, spec: ArmSpec, target: str) -> Arm:
        if spec.drafter.partition(":")[0] == TRANSFORMERS:
            return load(spec, target, self._options, self.target.tokenizer.end_tokens)
        fixed: dict[str, Any] = {} if spec.length is None else {"draft_length": spec.length}
        parts = [] if spec.drafter == "none" else split_chain(spec.drafter)
        drafters = [self._drafter(part) for part in parts]
        drafter = ChainDrafter(drafters) if len(drafters) > 1 else next(iter(drafters), None)
        engine = Engine(self.target, drafter, speculation=Speculation(**fixed))
        return EngineArm(spec.label, engine, self._cold)

    def _drafter(self, part: str) -> Drafter:
        """Each draft model is loaded once, whatever the arms it speaks in."""
        if part not in self.drafters:
            drafter = load_drafter(part, self.target, self._options, self._progress)
            assert drafter is not None
            self._stack.callback(drafter.close)
            self.drafters[part] = drafter
        return self.drafters[part]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
