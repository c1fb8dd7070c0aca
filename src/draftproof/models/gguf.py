"""Run a GGUF file through llama.cpp: many sequences in one context, one pass for all of them.

Not here: the library itself and its log (``llama.py``), the tokenizer (``gguf_vocab.py``).

- The sequences share one cache (``kv_unified``), so that chunks of different lengths go through
  the model together; llama.cpp would run separate caches one length after the other. Not in
  bit-exact mode, where a pass holds one sequence anyway.
- Flash attention is on: with it a pass over several tokens gives, for many weight types, the very
  bits of passes over one token each.
- Sliding-window layers keep a full-size cache (``swa_full``). Entries outside their window may
  still be overwritten by other sequences; ``truncate`` looks, and refuses to go back behind them.
- Recurrent and hybrid models run, but cannot be rolled back. That is tried when loading.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ClosedError, ModelError, ModelLoadError
from draftproof.models import Capabilities, Chunk, Progress, gguf_file
from draftproof.models.gguf_batch import Batch
from draftproof.models.gguf_load import context_length, load_weights, new_context, require_decoder
from draftproof.models.gguf_vocab import GgufTokenizer
from draftproof.models.llama import (
    interrupts,
    lib,
    logits_address,
    problems,
    raise_interrupts,
    reason,
)
from draftproof.types import ModelOptions

SLOW = 0.5  # seconds of a pass worth a look

_logger = logging.getLogger("draftproof")


def load(path: str, options: ModelOptions, progress: Progress | None = None) -> GgufModel:
    """Load a GGUF file.

    A ``context_length`` above the length the model was trained for is lowered to that:
    ``capabilities.context_length`` says what holds.

    Raises:
        ParameterError: more threads than the machine has, or a GPU that llama.cpp cannot use.
        ModelLoadError: the file is missing, broken, or of a kind that cannot be run; or the cache
            does not fit into memory.
    """
    file = gguf_file(path)
    with ExitStack() as stack:
        weights = load_weights(file, options, progress)
        stack.callback(lib.llama_model_free, weights)
        length = context_length(weights, options)
        context = new_context(file.name, weights, length, options)
        stack.callback(lib.llama_free, context)
        require_decoder(file.name, context)
        model = GgufModel(file, weights, context, length, stack.pop_all())
    try:
        model.probe()
    except BaseException as error:
        model.close()
        if isinstance(error, ModelError):
            raise ModelLoadError(f"{error}: this file cannot be run") from None
        raise
    return model


class GgufModel:
    """See ``models.Model``. Made by ``load``.

    Args:
        path: the file.
        weights: pointer to the ``llama_model``.
        context: pointer to its ``llama_context``.
        length: most entries of one sequence.
        resources: frees both when closed.
    """

    def __init__(
        self, path: Path, weights: Any, context: Any, length: int, resources: ExitStack
    ) -> None:
        # Also runs when the model is garbage, or the program ends.
        self._free = weakref.finalize(self, resources.close)
        self.path = str(path)
        self._name, self._context = path.name, context
        self._memory = lib.llama_get_memory(context)
        self._window = int(lib.llama_model_n_swa(weights))
        self._stateful = lib.llama_model_is_recurrent(weights) or lib.llama_model_is_hybrid(weights)
        self._tokenizer = GgufTokenizer(weights)
        self._capabilities = Capabilities(
            context_length=length,
            vocabulary=int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights))),
            max_sequences=int(lib.llama_n_seq_max(context)),
        )
        self._lengths = [0] * self._capabilities.max_sequences
        self._batch = Batch(max(2, length * self._capabilities.max_sequences))  # 2: see probe
        self._most = int(lib.llama_n_batch(context))
        self.threads = int(lib.llama_n_threads(context))
        self._views: dict[int, NDArray[np.float32]] = {}  # of llama.cpp's output, by rows
        self._address = 0  # of the memory behind them
        self._usual = 0.0  # seconds of a pass, a token, when it was loaded
        self._open = True

    @property
    def name(self) -> str:
        """The file's name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def tokenizer(self) -> GgufTokenizer:
        """Its tokenizer and chat template."""
        return self._tokenizer

    def forward(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """Append every chunk in one ``llama_decode`` (several when it is above 2048 tokens).

        Returns:
            For each chunk its last ``chunk.logits`` rows, [chunk.logits, V], views of llama.cpp's
            own memory: valid until the next ``forward`` or ``close``.

        Raises:
            ModelError: a sequence would pass ``context_length`` (nothing is appended then), or
                llama.cpp failed (any part may be); ``length`` is right either way.
            ClosedError: the model is closed.
        """
        self._require_open()
        try:
            logits = self._decode(*self._fill(chunks))
        except BaseException:  # a Ctrl-C too
            self._lengths = [self._cached(seq) for seq in range(len(self._lengths))]
            raise
        return [logits] if len(chunks) == 1 else _split(logits, chunks)

    def length(self, seq: int) -> int:
        """Entries cached for a sequence."""
        return self._lengths[seq]

    def truncate(self, seq: int, length: int) -> None:
        """Forget all entries from position ``length`` on; no-op where there are none.

        Raises:
            ModelError: recurrent state, or a sliding window whose earlier entries were
                overwritten: only 0 is left to truncate to. Nothing is changed.
            ClosedError: the model is closed.
        """
        self._require_open()
        assert length >= 0
        if length >= self._lengths[seq]:
            return
        if not self._can_go_back(seq, length) or not self._remove(seq, length):
            raise ModelError(
                f"{self._name} cannot go back to {length} of {self._lengths[seq]} entries "
                f"({self._capabilities.no_rollback_reason or 'its window has moved on'}): "
                "truncate to 0 and read the text again"
            )
        self._lengths[seq] = length

    def close(self) -> None:
        """Free everything. May be called twice."""
        self._open = False
        self._tokenizer.close()
        self._views.clear()
        self._free()

    def probe(self) -> None:
        """Warm up, and try whether part of a sequence can be removed: flags are not trusted."""
        self._batch.put(0, (0, 0), 0, 0, 1)
        self._decode(2, 1)
        if not (self._remove(0, 1) and self._cached(0) == 1):
            cause = "it has a recurrent state" if self._stateful else "its cache keeps all entries"
            self._capabilities = replace(
                self._capabilities, rollback=False, no_rollback_reason=cause
            )
        self._remove(0, 0)
        began = perf_counter()
        self._decode(2, 1)
        self._usual = (perf_counter() - began) / 2
        self._remove(0, 0)

    def _require_open(self) -> None:
        if not self._open:
            raise ClosedError(f"{self._name} is closed: load it again")

    def _fill(self, chunks: Sequence[Chunk]) -> tuple[int, int]:
        """Write the chunks into the batch; the tokens in it, and how many want logits."""
        limit, total, rows = self._capabilities.context_length, 0, 0
        for seq, tokens, logits in chunks:
            start = self._lengths[seq]
            end = start + len(tokens)
            assert seq >= 0
            assert 0 <= logits <= end - start > 0
            if end > limit:
                raise ModelError(
                    f"{self._name} holds {limit} tokens a sequence, and {end} were given: "
                    "shorten the text, or load the model with a longer context"
                )
            total = self._batch.put(total, tokens, start, seq, logits)
            rows += logits
            self._lengths[seq] = end
        return total, rows

    def _decode(self, total: int, rows: int) -> NDArray[np.float32]:
        """Run the batch; the logits asked for, in its order, [rows, V]."""
        if total <= self._most:
            return self._pass(0, total, rows)
        spans = [(i, min(self._most, total - i)) for i in range(0, total, self._most)]
        return np.concatenate([self._pass(*span, self._batch.rows(*span)).copy() for span in spans])

    def _pass(self, start: int, count: int, rows: int) -> NDArray[np.float32]:
        """One ``llama_decode``; its ``rows`` rows of logits, a view."""
        batch = self._batch.window(start, count)
        problems.clear()
        began = perf_counter()
        if lib.llama_decode(self._context, batch):
            raise ModelError(f"{self._name} failed: {reason()}")
        address = logits_address(self._context)  # waits for the result
        seconds = perf_counter() - began
        if seconds > SLOW:
            self._warn_if_slow(count, seconds)
        if interrupts:
            raise_interrupts()
        if address != self._address:
            self._address, self._views = address, {}
        view = self._views.get(rows)
        return self._view(rows) if view is None else view

    def _warn_if_slow(self, count: int, seconds: float) -> None:
        """Tell, once, when passes became far slower than they were.

        llama.cpp's threads wait for one another by spinning: one busy process more than there are
        cores, and a pass takes seconds.
        """
        if seconds > 20 * count * self._usual:
            self._usual = seconds
            _logger.warning(
                "%s: a pass over %d tokens took %.1f s, far longer than just after loading: "
                "another busy process competes for the cores; use fewer threads",
                *(self._name, count, seconds),
            )

    def _view(self, rows: int) -> NDArray[np.float32]:
        """llama.cpp's output buffer, which moves when it grows, as [rows, V]; made once."""
        width = self._capabilities.vocabulary
        memory = (ctypes.c_float * (rows * width)).from_address(self._address or 0)
        view = np.frombuffer(memoryview(memory), np.float32).reshape(rows, width)
        self._views[rows] = view
        return view

    def _can_go_back(self, seq: int, length: int) -> bool:
        """Whether the entries that the next token will look at are all there."""
        if not self._window or not length:
            return True
        oldest = lib.llama_memory_seq_pos_min(self._memory, seq)
        return bool(oldest <= max(0, length + 1 - self._window))

    def _remove(self, seq: int, length: int) -> bool:
        return bool(lib.llama_memory_seq_rm(self._memory, seq, length, -1))

    def _cached(self, seq: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1


def _split(logits: NDArray[np.float32], chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
    parts, at = [], 0
    for chunk in chunks:
        parts.append(logits[at : at + chunk.logits])
        at += chunk.logits
    return parts
