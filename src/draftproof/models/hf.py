"""Run a Hugging Face checkpoint through transformers: many sequences in one packed pass.

Not here: opening it (``hf_load.py``), calling it (``hf_run.py``), the cache (``hf_cache.py``),
attention and masks (``hf_attention.py``), parts of its layers (``hf_layers.py``), the tokenizer
(``hf_vocab.py``).

- The model may be the user's own: it is left as it is.
- Layers with a sliding window keep all entries, so that rollback is always a number.
- What cannot be run so is refused when loaded. Names and flags are not trusted: a short text goes
  through a packed pass with a rollback in it, and has to give what the model gives by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NoReturn

from draftproof.errors import ClosedError, ModelError, ModelLoadError
from draftproof.models import Capabilities, Chunk, Progress
from draftproof.models.hf_cache import Cache, Pass, Tensor
from draftproof.models.hf_graphs import Capture, Graphs, cuda_capture
from draftproof.models.hf_layers import Ahead
from draftproof.models.hf_load import context_length, free_memory, line, open_checkpoint
from draftproof.models.hf_probe import distance_alone, tolerance
from draftproof.models.hf_run import Runner
from draftproof.models.hf_vocab import HfTokenizer
from draftproof.types import ModelOptions

_PROBE = 12  # tokens of the text that is tried when loading


def load(path: str, options: ModelOptions, progress: Progress | None = None) -> HfModel:
    """Load a checkpoint: a folder, a GGUF file, or a name on a hub that can be reached.

    A ``context_length`` above the length the model was made for is lowered to that:
    ``capabilities.context_length`` says what holds.

    Raises:
        ModelLoadError: it is missing, broken, or of a kind that cannot be run; or the cache does
            not fit into memory.
    """
    model, tokenizer, name = open_checkpoint(path, options)
    if progress:
        progress(1.0)
    loaded = HfModel(model, tokenizer, options, name)
    if options.cuda_graphs and model.device.type == "cuda" and not options.bit_exact:
        loaded.use_graphs(cuda_capture)
    return loaded


class HfModel:
    """See ``models.Model``.

    Args:
        model: a causal language model of transformers, on one device; it is left as it is.
        tokenizer: its tokenizer, one of the fast ones.
        options: context length and number of sequences; device and dtype are the model's own.
        name: what to call it in messages.

    Raises:
        ModelLoadError: it cannot be run with packed passes, or the cache does not fit into memory.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        options: ModelOptions | None = None,
        name: str | None = None,
    ) -> None:
        options = options or ModelOptions()
        self._name = name or model.name_or_path or type(model).__name__
        self._model = model
        self._runner: Runner | None = Runner(model, options.bit_exact)
        self._device = self._only_device()
        if reason := self._runner.refusal():
            self._refuse(reason)
        width = model.get_output_embeddings().weight.shape[0]
        self._tokenizer = HfTokenizer(tokenizer, model, width, self._name)
        length = context_length(self._name, model.config.get_text_config(), options)
        self._capabilities = Capabilities(
            context_length=length, vocabulary=width, max_sequences=options.max_sequences
        )
        self._begin(min(length, _PROBE), 1)
        self._require_same(self._runner, min(length, _PROBE))
        self._require_memory()
        self._begin(length, options.max_sequences)

    def _begin(self, context: int, sequences: int, capture: Capture | None = None) -> None:
        """An empty cache."""
        self._cache: Cache | None = Cache(sequences, context, clean=capture is not None)
        self._graphs = Graphs(capture, self._model.dtype)
        self._context = context
        self._lengths = [0] * sequences
        self._ahead = Ahead()

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def tokenizer(self) -> HfTokenizer:
        """Its tokenizer and chat template."""
        return self._tokenizer

    @property
    def layers(self) -> int:
        """How many it has."""
        return int(self._model.config.get_text_config().num_hidden_layers)

    def forward(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Append every chunk in one call of the model.

        Returns:
            For each chunk its last ``chunk.logits`` rows, [chunk.logits, V], float32 (or float64,
            where the model is), on the model's device.

        Raises:
            ModelError: a sequence would pass ``context_length``, or the pass failed. Nothing is
                appended then.
            ClosedError: the model is closed.
        """
        logits = self._complete(chunks)
        for chunk in chunks:
            self._lengths[chunk.seq] += len(chunk.tokens)
            self._ahead.cut(chunk.seq, 0)
        return logits

    def _complete(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Run all layers; what the first ones have read already, they do not read again."""
        ahead = self._ahead
        if not ahead.agree(chunks):
            return self._pass(chunks, self._lengths)
        missing = ahead.missing(chunks)
        if missing:
            self.forward_first(missing, ahead)
        return self._pass(chunks, self._lengths, ahead.rest(chunks))

    def forward_first(self, chunks: Sequence[Chunk], ahead: Ahead) -> list[Tensor]:
        """Append every chunk in the first layers alone, behind what those have read.

        ``length`` does not change: ``forward`` has to be given the same tokens.

        Args:
            chunks: as in ``forward``.
            ahead: how many layers, and what they have read. Only one is in use at a time: that
                which was before forgets what it has.

        Returns:
            As ``forward``: what the final norm and the head make of those layers' last rows.

        Raises:
            As ``forward``.
        """
        if self._ahead is not ahead:
            self._ahead.clear()
            self._ahead = ahead
        lengths = [length + ahead.count(seq) for seq, length in enumerate(self._lengths)]
        states: list[Tensor] = []
        logits = self._pass(chunks, lengths, ahead.first(states))
        ahead.add(chunks, *states)
        return logits

    def _pass(
        self,
        chunks: Sequence[Chunk],
        lengths: Sequence[int],
        part: AbstractContextManager[None] | None = None,
    ) -> list[Tensor]:
        """One call of the model, or of a part of it, on chunks behind these lengths."""
        runner = self.runner
        for chunk in chunks:
            self._check(chunk, lengths[chunk.seq])
        assert self._cache is not None
        running = Pass(chunks, lengths, self._context, self._device)
        try:
            if part is None:
                logits = self._graphs.run(chunks, running, partial(runner.run, cache=self._cache))
            else:
                logits = runner.run(running, self._cache, part)
        except RuntimeError as error:  # out of memory, mostly
            raise ModelError(f"{self._name} failed: {' '.join(str(error).split())}") from error
        return list(logits.split([chunk.logits for chunk in chunks]))

    def length(self, seq: int) -> int:
        """Entries cached for a sequence."""
        return self._lengths[seq]

    def truncate(self, seq: int, length: int) -> None:
        """Forget all entries from position ``length`` on; no-op where there are none.

        Raises:
            ClosedError: the model is closed.
        """
        self._require_open()
        assert length >= 0
        self._ahead.cut(seq, max(0, length - self._lengths[seq]))
        self._lengths[seq] = min(self._lengths[seq], length)

    def close(self) -> None:
        """Let go of the model and free the cache. May be called twice."""
        self._model = self._runner = self._cache = None
        self._graphs, self._ahead = Graphs(None, None), Ahead()

    @property
    def runner(self) -> Runner:
        """What calls the model.

        Raises:
            ClosedError: the model is closed.
        """
        self._require_open()
        assert self._runner is not None
        return self._runner

    def _require_open(self) -> None:
        if self._runner is None:
            raise ClosedError(f"{self._name} is closed: load it again")

    def use_graphs(self, capture: Capture) -> None:
        """Begin anew, and replay decode passes from now on (``hf_graphs.py``).

        For a model that nobody else holds: replays run no hooks, and keep to the same weights.
        """
        self._begin(self._context, len(self._lengths), capture)

    @contextmanager
    def aside(self, context: int) -> Iterator[None]:
        """An empty cache of one sequence for a while; what is cached now comes back behind it."""
        self._ahead.clear()
        before = self._cache, self._graphs, self._context, self._lengths, self._ahead
        try:
            self._begin(context, 1)
            yield
        finally:
            self._ahead.clear()
            self._cache, self._graphs, self._context, self._lengths, self._ahead = before

    def _check(self, chunk: Chunk, start: int) -> None:
        end = start + len(chunk.tokens)
        assert chunk.seq >= 0
        assert 0 <= chunk.logits <= len(chunk.tokens) > 0
        if end > self._context:
            raise ModelError(
                f"{self._name} holds {self._context} tokens a sequence, and {end} were given: "
                "shorten the text, or load the model with a longer context"
            )

    def _only_device(self) -> Any:
        devices = {parameter.device for parameter in self._model.parameters()}
        if len(devices) != 1 or "meta" in {device.type for device in devices}:
            raise ModelLoadError(f"{self._name} is spread over devices: load it onto one")
        return devices.pop()

    def _refuse(self, reason: str) -> NoReturn:
        raise ModelLoadError(f"{self._name} cannot be run: {reason}; give another model")

    def _require_same(self, runner: Runner, count: int) -> None:
        try:
            off = distance_alone(self, runner, count)
        except Exception as error:  # some architecture we have not seen: anything may go wrong
            self._refuse(f"a packed pass fails ({type(error).__name__}: {line(error)})")
        if not off <= tolerance(self._model.dtype):
            self._refuse(f"packed passes give other logits than its own ({off:.2g} off)")

    def _require_memory(self) -> None:
        """Refuse a cache that cannot fit: the system would kill us when it is touched."""
        assert self._cache is not None
        length, sequences = self._capabilities.context_length, self._capabilities.max_sequences
        need = length * sequences * self._cache.bytes_per_token()
        free = free_memory(self._device)
        if need > free:
            raise ModelLoadError(
                f"{self._name}: a cache for {sequences} x {length} tokens takes about "
                f"{need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
                "give a shorter context length, or fewer sequences"
            )
