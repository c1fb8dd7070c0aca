"""A target and its drafter: loaded from their specs or taken as they are, checked, and freed.

Not here: what a spec may be (``models``, ``drafters``), and running them (``rounds.py``).
"""

from __future__ import annotations

import os
import time
from typing import Any

from draftproof.drafters import Drafter, load_drafter
from draftproof.drafters.model import ModelDrafter
from draftproof.errors import PairError, ParameterError
from draftproof.models import Model, Progress, load_model
from draftproof.types import ModelOptions


class Pair:
    """A target and what drafts for it.

    Args:
        target: a model, or a spec as ``load_model`` takes it.
        drafter: a drafter, a draft model, a spec as ``load_drafter`` takes it, or None.
        options: how models given by their spec are loaded.
        progress: called with the part of a model that is loaded, from 0 to 1.
        cross_vocabulary: as in ``load_drafter``, for a drafter given by its spec.

    Raises:
        ParameterError: something else.
        ModelLoadError: a model cannot be loaded.
        PairError: this drafter cannot draft for this target.
    """

    def __init__(
        self,
        target: Any,
        drafter: Any,
        options: ModelOptions,
        progress: Progress | None,
        cross_vocabulary: str | None,
    ) -> None:
        started = time.perf_counter()
        self._own: list[Model | Drafter] = []
        self._options, self._progress = options, progress
        try:
            self.target = self._target(_spec(target))
            self.drafter = self._drafter(_spec(drafter), cross_vocabulary)
        except BaseException:
            self.close()
            raise
        self.seconds = time.perf_counter() - started

    def _target(self, target: Any) -> Model:
        if not isinstance(target, str):
            if not hasattr(target, "forward"):
                raise ParameterError(f"the target is a model, or a spec of one, not {target!r}")
            given: Model = target
            return given
        model = load_model(target, self._options, self._progress)
        self._own.append(model)
        wanted, has = self._options.context_length, model.capabilities.context_length
        if wanted and has < wanted:
            raise ParameterError(f"{model.name} has a context of {has} tokens: ask for no more")
        return model

    def _drafter(self, drafter: Any, cross_vocabulary: str | None) -> Drafter | None:
        if cross_vocabulary is not None and not isinstance(drafter, str):
            raise ParameterError("cross_vocabulary is for a drafter given by its spec")
        if isinstance(drafter, str):
            options, progress = self._options, self._progress
            drafter = load_drafter(drafter, self.target, options, progress, cross_vocabulary)
            self._own += [drafter] if drafter else []
        elif hasattr(drafter, "forward"):
            drafter = ModelDrafter(drafter, self.target)
        return self._checked(drafter)

    def _checked(self, drafter: Any) -> Drafter | None:
        if drafter is None:
            return None
        if not hasattr(drafter, "propose"):
            raise ParameterError(f"the drafter is a drafter, or a spec of one, not {drafter!r}")
        capabilities = self.target.capabilities
        if not capabilities.rollback:
            raise PairError(
                f"{self.target.name} cannot be speculated on: {capabilities.no_rollback_reason}; "
                "leave the drafter out (--draft none)"
            )
        checked: Drafter = drafter
        return checked

    def close(self) -> None:
        """Free what was loaded here. May be called twice."""
        while self._own:
            self._own.pop().close()


def _spec(value: Any) -> Any:
    """A path is as good as the text of it."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
