"""Calls a model of transformers that may be the user's own, and leaves it as it is.

What a call has to set on it (the attention function, evaluation mode, faster linear layers) is set
for that call alone and put back whatever happens. ``generate()`` is never called.

Not here: what the calls are for (``hf.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from draftproof.models.hf_attention import NAME
from draftproof.models.hf_cache import Cache, Pass, Tensor, current
from draftproof.models.hf_linear import FewRows

_CACHES = ("cache", "past_key_values")  # the argument's name, since 5.20 or so and before


class Runner:
    """See above.

    Args:
        model: a causal language model of transformers.
        steady: whether another load must give the same bits: nothing is then chosen by timing.

    Attributes:
        model: the same.
    """

    def __init__(self, model: Any, steady: bool = False) -> None:
        self.model = model
        self._modules = list(model.modules())
        self._configs = list({id(c): c for c in _configs(self._modules)}.values())
        self._few_rows = FewRows([] if steady else self._modules)
        self._arguments = inspect.signature(model.forward).parameters
        self._cache_name = next((n for n in _CACHES if n in self._arguments), "")

    def refusal(self) -> str:
        """Why it cannot run packed passes, as far as it shows from outside; empty if it can."""
        if self.model.config.is_encoder_decoder:
            return "it is an encoder-decoder model"
        if getattr(self.model, "_is_stateful", False):
            return "it has a recurrent state, which cannot be rolled back"
        if not self._cache_name or "position_ids" not in self._arguments:
            return "it takes no cache or no positions"
        if self.model.get_output_embeddings() is None:
            return "it has no head that gives logits"
        return ""

    def run(
        self, running: Pass, cache: Cache, part: AbstractContextManager[None] | None = None
    ) -> Tensor:
        """The logits that a packed pass asks for, in its order, [R, V].

        Args:
            running: the pass.
            cache: where its keys and values go.
            part: held meanwhile, where a part of the layers is to run (``hf_layers.py``).
        """
        arguments = {self._cache_name: cache, "use_cache": True}
        if "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = running.rows
        with self._borrowed(running), part or nullcontext():
            logits = self.model(
                input_ids=running.tokens, position_ids=running.positions, **arguments
            )[0][0]
        if "logits_to_keep" not in self._arguments:
            logits = logits[running.rows]
        return logits if logits.dtype == torch.float64 else logits.float()

    def alone(self, tokens: list[int], device: Any) -> Tensor:
        """The model's own logits for a text, without a cache, [n, V]."""
        text = torch.tensor([tokens], device=device)
        with self._evaluating():
            return self.model(input_ids=text, use_cache=False)[0][0].float()

    @contextmanager
    def _borrowed(self, running: Pass) -> Iterator[None]:
        """Set on the model what a pass needs, and put it back."""
        before = [(config, config._attn_implementation_internal) for config in self._configs]
        token = current.set(running)
        try:
            for config, _ in before:
                config._attn_implementation_internal = NAME
            with self._evaluating(), self._few_rows.installed():
                yield
        finally:
            for config, implementation in before:
                config._attn_implementation_internal = implementation
            current.reset(token)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """No gradients and no dropout.

        But no inference mode: what a model computes once and keeps must still be good for
        training it afterwards.
        """
        training = [module for module in self._modules if module.training]
        try:
            for module in training:
                module.training = False
            with torch.no_grad():
                yield
        finally:
            for module in training:
                module.training = True


def _configs(modules: Sequence[Any]) -> Iterator[Any]:
    """Every configuration that a part of the model reads."""
    for module in modules:
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            yield config
