"""Linear layers for passes over a few tokens on a CPU.

Decoding reads every weight for a handful of rows, and some matrix libraries are far from the
memory's speed there: with MKL on an AMD server, weight times rows as columns, one row padded to
two, takes less than half the time of the usual way round. Which is faster is measured when a
model is loaded, for its own layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch.nn.functional import linear

from draftproof.models.hf_cache import Tensor

ROWS = (1, 2, 4, 8)  # numbers of rows that are tried; what holds for 8 is taken for 5, 6 and 7
_SAMPLE = 2**28  # bytes of weights to try with: more than caches hold
_GAIN = 0.9  # the other way must take less than this part of the time


class FewRows:
    """The faster way for each number of rows.

    Args:
        modules: the parts of a model. Only plain linear layers in float32 on a CPU are changed.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        layers = [module for module in modules if _is_plain(module)]
        faster = _try(layers) if layers else set()
        self._transposed = frozenset(
            rows
            for below, tried in zip((0, *ROWS), ROWS, strict=False)
            for rows in range(below + 1, tried + 1)
            if tried in faster
        )
        self._forwards = [(vars(layer), partial(self._forward, layer)) for layer in layers]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Give the layers the faster way, and take it back."""
        if not self._transposed:
            yield
            return
        try:
            for attributes, forward in self._forwards:
                attributes["forward"] = forward
            yield
        finally:
            for attributes, _ in self._forwards:
                attributes.pop("forward", None)

    def _forward(self, layer: Any, states: Tensor) -> Tensor:
        rows = states.shape[:-1].numel()
        if rows in self._transposed:
            return transposed(states, layer.weight, layer.bias)
        return linear(states, layer.weight, layer.bias)


def transposed(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``linear`` the other way round: states [..., K], weight [N, K], bias [N] -> [..., N]."""
    flat = states.reshape(-1, states.shape[-1])
    if flat.shape[0] == 1:  # one column would go through the slow product of matrix and vector
        flat = torch.nn.functional.pad(flat, (0, 0, 0, 1))
    count = states.shape[:-1].numel()
    out = (weight @ flat.T)[:, :count].T.contiguous().view(*states.shape[:-1], weight.shape[0])
    return out if bias is None else out + bias


def _is_plain(module: Any) -> bool:
    return (
        type(module) is torch.nn.Linear
        and "forward" not in vars(module)
        and module.weight.dtype == torch.float32
        and module.weight.device.type == "cpu"
    )


def _try(layers: list[Any]) -> set[int]:
    """The numbers of rows that go faster transposed; weights come from memory, as in a pass."""
    sample, size = [], 0
    for layer in chain(layers[-1:], layers[:-1]):  # the head is the last, and the largest
        if size < _SAMPLE:
            sample.append(layer)
            size += layer.weight.nbytes
    with torch.no_grad():
        return {rows for rows in ROWS if _is_faster(sample, rows)}


def _is_faster(layers: list[Any], rows: int) -> bool:
    times: dict[Any, list[float]] = {linear: [], transposed: []}
    states = {layer.in_features: torch.ones(1, rows, layer.in_features) for layer in layers}
    for _ in range(3):
        for way, seconds in times.items():
            began = perf_counter()
            for layer in layers:
                way(states[layer.in_features], layer.weight, layer.bias)
            seconds.append(perf_counter() - began)
    return min(times[transposed]) < _GAIN * min(times[linear])
