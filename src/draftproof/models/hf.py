"""Run a Hugging Face checkpoint through transformers: many sequences in one packed pass.

Not here: opening it (``hf_load.py``), the cache (``hf_cache.py``), attention and masks
(``hf_attention.py``), the tokenizer (``hf_vocab.py``).

- The model may be the user's own. What a pass has to set on it (the attention function, evaluation
  mode) is set for that pass alone and put back whatever happens. ``generate()`` is never called.
- Layers with a sliding window keep all entries, so that rollback is always a number.
- What cannot be run so is refused when loaded. Names and flags are not trusted: a short text goes
  through a packed pass with a rollback in it, and has to give what the model gives by itself.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from draftproof.errors import ClosedError, ModelError, ModelLoadError
from draftproof.models import Capabilities, Chunk, Progress
from draftproof.models.hf_attention import NAME
from draftproof.models.hf_cache import Cache, Pass, Tensor, current
from draftproof.models.hf_linear import FewRows
from draftproof.models.hf_load import context_length, free_memory, line, open_checkpoint
from draftproof.models.hf_vocab import HfTokenizer
from draftproof.types import ModelOptions

_PROBE = 12  # tokens of the text that is tried when loading
_CACHES = ("cache", "past_key_values")  # the argument's name, since 5.20 or so and before


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
    return HfModel(model, tokenizer, options, name)


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
        self._modules = list(model.modules())
        self._configs = list({id(c): c for c in _configs(self._modules)}.values())
        self._few_rows = FewRows(self._modules)
        self._arguments = inspect.signature(model.forward).parameters
        self._cache_name = next((n for n in _CACHES if n in self._arguments), "")
        self._device = self._only_device()
        self._require_decoder()
        width = model.get_output_embeddings().weight.shape[0]
        self._tokenizer = HfTokenizer(tokenizer, model, width, self._name)
        length = context_length(self._name, model.config.get_text_config(), options)
        self._capabilities = Capabilities(
            context_length=length, vocabulary=width, max_sequences=options.max_sequences
        )
        self._begin(min(length, _PROBE), 1)
        self._probe(min(length, _PROBE))
        self._require_memory()
        self._begin(length, options.max_sequences)

    def _begin(self, context: int, sequences: int) -> None:
        """An empty cache."""
        self._cache: Cache | None = Cache(sequences, context)
        self._context = context
        self._lengths = [0] * sequences

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
        self._require_open()
        for chunk in chunks:
            self._check(chunk)
        running = Pass(chunks, self._lengths, self._context, self._device)
        try:
            logits = self._run(running)
        except RuntimeError as error:  # out of memory, mostly
            raise ModelError(f"{self._name} failed: {' '.join(str(error).split())}") from error
        for span in running.spans:
            self._lengths[span.seq] = span.end
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
        self._lengths[seq] = min(self._lengths[seq], length)

    def close(self) -> None:
        """Let go of the model and free the cache. May be called twice."""
        self._model = self._cache = None
        self._modules, self._configs, self._few_rows = [], [], FewRows([])

    def _require_open(self) -> None:
        if self._model is None:
            raise ClosedError(f"{self._name} is closed: load it again")

    def _check(self, chunk: Chunk) -> None:
        end = self._lengths[chunk.seq] + len(chunk.tokens)
        assert chunk.seq >= 0
        assert 0 <= chunk.logits <= len(chunk.tokens) > 0
        if end > self._context:
            raise ModelError(
                f"{self._name} holds {self._context} tokens a sequence, and {end} were given: "
                "shorten the text, or load the model with a longer context"
            )

    def _run(self, running: Pass) -> Tensor:
        """The logits asked for, in the order of the pass, [R, V]."""
        arguments = {self._cache_name: self._cache, "use_cache": True}
        if "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = running.rows
        with self._borrowed(running):
            logits = self._model(
                input_ids=running.tokens, position_ids=running.positions, **arguments
            )[0][0]
        if "logits_to_keep" not in self._arguments:
            logits = logits[running.rows]
        return logits if logits.dtype == torch.float64 else logits.float()

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

    def _only_device(self) -> Any:
        devices = {parameter.device for parameter in self._model.parameters()}
        if len(devices) != 1 or "meta" in {device.type for device in devices}:
            raise ModelLoadError(f"{self._name} is spread over devices: load it onto one")
        return devices.pop()

    def _require_decoder(self) -> None:
        """Refuse what shows from outside; ``_probe`` finds the rest."""
        config = self._model.config
        if config.is_encoder_decoder:
            self._refuse("it is an encoder-decoder model")
        if getattr(self._model, "_is_stateful", False):
            self._refuse("it has a recurrent state, which cannot be rolled back")
        if not self._cache_name or "position_ids" not in self._arguments:
            self._refuse("it takes no cache or no positions")
        if self._model.get_output_embeddings() is None:
            self._refuse("it has no head that gives logits")

    def _refuse(self, reason: str) -> None:
        raise ModelLoadError(f"{self._name} cannot be run: {reason}; give another model")

    def _probe(self, count: int) -> None:
        """Read a text in pieces, with a rollback, and compare with the model by itself."""
        width = self._capabilities.vocabulary
        tokens = [(7 * i + 3) % width for i in range(count)]
        wrong = [(t + 1) % width for t in tokens]
        try:
            self.forward([Chunk(0, wrong, 0)])
            self.truncate(0, 0)
            (head,) = self.forward([Chunk(0, tokens[: count // 2], count // 2)])
            self.forward([Chunk(0, wrong[count // 2 :], 0)])
            self.truncate(0, count // 2)
            rows = [head]
            for at in range(count // 2, count, 3):
                part = tokens[at : at + 3]
                rows += self.forward([Chunk(0, part, len(part))])
            wanted = self._alone(tokens)
        except Exception as error:  # some architecture we have not seen: anything may go wrong
            self._refuse(f"a packed pass fails ({type(error).__name__}: {line(error)})")
        off = _distance(torch.cat(rows), wanted)
        if not off <= _tolerance(self._model.dtype):
            self._refuse(f"packed passes give other logits than its own ({off:.2g} off)")

    def _alone(self, tokens: list[int]) -> Tensor:
        """The model's own logits for a text, without a cache, [n, V]."""
        text = torch.tensor([tokens], device=self._device)
        with self._evaluating():
            return self._model(input_ids=text, use_cache=False)[0][0].float()

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


def _configs(modules: Sequence[Any]) -> Iterator[Any]:
    """Every configuration that a part of the model reads."""
    for module in modules:
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            yield config


def _distance(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference of two [n, V], in units of the spread of the second."""
    return float((ours - theirs).abs().max() / theirs.std().clamp(min=1e-6))


def _tolerance(dtype: Any) -> float:
    """Rounding over all layers stays below this; a wrong mask or position is far above."""
    eps: float = torch.finfo(dtype).eps
    return 3 * math.sqrt(eps)
