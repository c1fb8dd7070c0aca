"""A decoder's layers run in two parts: the first ones ahead of the rest, each token once in each.

What the first layers write into the cache is the model's own entries, and what they give is kept:
the pass that completes those tokens begins behind them.

Not here: the first layers as a model that drafts (``hf_first.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from draftproof.models import Chunk
from draftproof.models.hf_cache import Tensor


class Layers:
    """The list of a decoder's layers, parts of which can be left out of a pass.

    Layers that are left out keep their place in the list, as some models count along it; for that
    pass another module stands there, so that hooks of theirs do not run either.

    Args:
        model: a causal language model of transformers.

    Raises:
        LookupError: it has no list of layers that is known for one.
    """

    def __init__(self, model: Any) -> None:
        count = model.config.get_text_config().num_hidden_layers
        lists = [m for m in model.get_decoder().modules() if isinstance(m, torch.nn.ModuleList)]
        found = [one for one in lists if len(one) == count]
        if len(found) != 1:
            raise LookupError("its layers are not found")
        self._places: dict[str, Any] = found[0]._modules  # in order
        self._stand_ins = {name: _StandIn(layer) for name, layer in self._places.items()}

    def first(self, depth: int, taken: list[Tensor]) -> AbstractContextManager[None]:
        """Run ``depth`` layers; what they give, [1, N, H], is left in ``taken``."""

        def take(states: Tensor) -> Tensor:
            taken[:] = [states]
            return states

        return self._without(list(self._places)[depth:], take)

    def rest(self, depth: int, states: Tensor) -> AbstractContextManager[None]:
        """Run all but ``depth`` layers, from what those gave, [1, N, H]."""
        return self._without(list(self._places)[:depth], lambda _: states)

    @contextmanager
    def _without(self, names: list[str], give: Callable[[Tensor], Tensor]) -> Iterator[None]:
        layers = dict(self._places)
        try:
            for name in names:
                self._stand_ins[name].give = give
                self._places[name] = self._stand_ins[name]
            yield
        finally:
            self._places.update(layers)


class _StandIn(torch.nn.Module):  # type: ignore[misc]
    """In a layer's place for a pass. Whatever else is asked of it, the layer answers."""

    give: Callable[[Tensor], Tensor]

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.__dict__["_layer"] = layer  # not as a part of this module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_layer"], name)

    def forward(self, states: Tensor, *_: object, **__: object) -> Tensor:
        """What goes to the next layer."""
        return self.give(states)


class Ahead:
    """What the first layers have read beyond the cache: tokens, and what those layers gave.

    Nobody depends on it: it may be forgotten at any time, and a token's part is used only where
    the same tokens come again at the same place.

    Args:
        layers: the model's layers; None where none are ever read ahead.
        depth: how many of them are the first ones.
    """

    def __init__(self, layers: Layers | None = None, depth: int = 0) -> None:
        self._layers, self._depth = layers, depth
        self._read: dict[int, list[tuple[int, Tensor]]] = {}

    def first(self, taken: list[Tensor]) -> AbstractContextManager[None]:
        """Run the first layers alone; what they give, [1, N, H], is left in ``taken``."""
        assert self._layers is not None
        return self._layers.first(self._depth, taken)

    def rest(self, chunks: Sequence[Chunk]) -> AbstractContextManager[None]:
        """Run the rest of the layers, on chunks that the first ones have read."""
        assert self._layers is not None
        states = [states for chunk in chunks for _, states in self._read[chunk.seq]]
        return self._layers.rest(self._depth, torch.stack(states)[None])

    def count(self, seq: int) -> int:
        """Tokens of a sequence."""
        return len(self._read.get(seq, ()))

    def add(self, chunks: Sequence[Chunk], states: Tensor) -> None:
        """Keep what the first layers gave for chunks, packed, [1, N, H]."""
        rows = iter(states[0])
        for seq, tokens, _ in chunks:
            self._read.setdefault(seq, []).extend(zip(tokens, rows, strict=False))

    def cut(self, seq: int, count: int) -> None:
        """Forget all tokens of a sequence but its first ``count``."""
        del self._read.get(seq, [])[count:]

    def clear(self) -> None:
        """Forget everything."""
        self._read.clear()

    def agree(self, chunks: Sequence[Chunk]) -> bool:
        """Forget what does not begin these chunks; whether anything is left for them."""
        for seq, tokens, _ in chunks:
            pairs = zip(self._read.get(seq, ()), tokens, strict=False)
            differing = (i for i, ((mine, _), token) in enumerate(pairs) if mine != token)
            self.cut(seq, next(differing, len(tokens)))
        return any(self.count(chunk.seq) for chunk in chunks)

    def missing(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """What the first layers have still to read of chunks that agree."""
        rests = [Chunk(seq, tokens[self.count(seq) :], 0) for seq, tokens, _ in chunks]
        return [rest for rest in rests if rest.tokens]
