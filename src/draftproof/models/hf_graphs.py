"""Decode passes captured once and replayed, for GPUs that wait for Python otherwise.

A graph has fixed shapes and fixed addresses. So a pass is captured for the very sequences and
numbers of tokens it has, its numbers come through buffers, and its tokens look at a fixed stretch
of the cache through a mask, a power of two that grows with the text. What it does is computed from
the buffers on the device: nothing that depends on a text is known to Python while it is captured.

A graph runs no Python: hooks do not run, and weights that were exchanged are not seen. So this is
for models that nobody else holds (``hf.load``). A graph is trusted only when its second pass, at
other positions, gave what an ordinary pass gives; with the first thing that goes wrong all passes
are ordinary ones again.

The bookkeeping is tested with a capture that runs on a CPU. ``cuda_capture`` itself has not run on
a GPU yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from draftproof.models import Chunk
from draftproof.models.hf_cache import FixedPass, Pass, Tensor
from draftproof.models.hf_load import line
from draftproof.models.hf_probe import distance, tolerance

logger = logging.getLogger("draftproof")

WIDEST = 16  # tokens of a sequence: what is wider is a prompt, and no decoding
MOST = 64  # graphs that are kept: each takes memory, and shapes that vary more are not worth it
SHORTEST = 128  # entries that the tokens of a graph look at, at least

Run: TypeAlias = Callable[[], Tensor]
Capture: TypeAlias = Callable[[Run], Run]
"""Takes what computes logits from buffers; gives what does it again, into the same place."""
_Key: TypeAlias = tuple[tuple[tuple[int, int, int], ...], int]


class Graphs:
    """The captured passes over one cache.

    Args:
        capture: captures a pass; None where passes are always ordinary ones.
        dtype: of the weights, by which logits may differ.
    """

    def __init__(self, capture: Capture | None, dtype: Any) -> None:
        self._capture = capture
        self._dtype = dtype
        self._graphs: dict[_Key, _Graph] = {}

    def run(
        self, chunks: Sequence[Chunk], running: Pass, ordinary: Callable[[Pass], Tensor]
    ) -> Tensor:
        """The logits of a pass, [R, V].

        Args:
            chunks: what it appends.
            running: the same, packed.
            ordinary: runs a pass of either kind.
        """
        if self._capture is None or max(len(chunk.tokens) for chunk in chunks) > WIDEST:
            return ordinary(running)
        key = tuple((c.seq, len(c.tokens), c.logits) for c in chunks), _reach(running)
        graph = self._graphs.get(key)
        if graph is not None and graph.trusted:
            return graph.replay(running)
        if graph is not None:
            return self._try(graph, running, ordinary)
        logits = ordinary(running)
        if len(self._graphs) < MOST:
            self._add(key, FixedPass(running, chunks, key[1]), ordinary)
        return logits

    def _add(self, key: _Key, fixed: FixedPass, ordinary: Callable[[Pass], Tensor]) -> None:
        assert self._capture is not None
        try:
            self._graphs[key] = _Graph(fixed, self._capture(lambda: ordinary(fixed)))
        except Exception as error:  # what a capture cannot hold shows in many ways
            self._stop(line(error))

    def _try(self, graph: _Graph, running: Pass, ordinary: Callable[[Pass], Tensor]) -> Tensor:
        """Compare with an ordinary pass, which comes last: the entries it writes are kept."""
        replayed = graph.replay(running)
        logits = ordinary(running)
        off = distance(replayed, logits) if len(logits) else 0.0
        graph.trusted = off <= tolerance(self._dtype)
        if not graph.trusted:
            self._stop(f"a replayed pass is {off:.2g} off")
        return logits

    def _stop(self, reason: str) -> None:
        self._capture = None
        self._graphs.clear()
        logger.info("CUDA graphs are not used: %s", reason)


class _Graph:
    """A captured pass.

    Attributes:
        trusted: whether it was compared with an ordinary pass.
    """

    def __init__(self, fixed: FixedPass, run: Run) -> None:
        self.trusted = False
        self._fixed, self._run = fixed, run

    def replay(self, running: Pass) -> Tensor:
        """The logits of a pass of this shape; a copy, as the next replay writes over them."""
        self._fixed.fill(running)
        return self._run().clone()


def _reach(running: Pass) -> int:
    """Entries that are enough for all chunks: a power of two, or all there are."""
    end = max(span.end for span in running.spans)
    return min(running.context, max(SHORTEST, 1 << (end - 1).bit_length()))


def cuda_capture(run: Run) -> Run:
    """Capture what runs on the present CUDA device, as torch's documentation has it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # libraries set themselves up, which cannot be captured
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = run()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay
