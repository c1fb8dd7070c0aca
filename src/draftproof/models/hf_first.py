"""The first layers of a checkpoint, its final norm and its head, as a model of their own.

The parts are in ``hf_layers.py``; who drafts with them is in ``drafters/early_exit.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.errors import ModelError, PairError
from draftproof.models import Chunk
from draftproof.models.hf import HfModel
from draftproof.models.hf_cache import Tensor
from draftproof.models.hf_layers import Ahead, Layers
from draftproof.models.hf_load import line
from draftproof.models.hf_probe import distance, text, tolerance

_PROBE = 6  # tokens of the text that is tried


class FirstLayers:
    """See ``models.Model``. Weights and cache are those of the whole model.

    A sequence begins with what the whole model holds. Only what was read beyond that can be
    forgotten here, and appending to the whole model completes or forgets it.

    Args:
        model: the whole model, which stays open when this is closed.
        depth: how many layers, at least 1 and fewer than it has.

    Raises:
        PairError: its layers are not found, or give other logits in two parts.
    """

    def __init__(self, model: HfModel, depth: int) -> None:
        self._model = model
        self.name = f"early-exit:{depth}"
        self.capabilities, self.tokenizer = model.capabilities, model.tokenizer
        try:
            self._ahead = Ahead(Layers(model.runner.model), depth)
            off = self._probe(min(_PROBE, model.capabilities.context_length))
        except Exception as error:  # some architecture we have not seen: anything may go wrong
            raise self._refusal(line(error)) from error
        if not off <= tolerance(model.runner.model.dtype):
            raise self._refusal(f"its layers give other logits in two parts, {off:.2g} off")

    def _refusal(self, reason: str) -> PairError:
        return PairError(
            f"{self._model.name} cannot draft with its first layers ({reason}): "
            "take another drafter"
        )

    def _probe(self, count: int) -> float:
        """How far the logits of a text are off, if the first layers read a part of it ahead."""
        tokens = text(count, self.capabilities.vocabulary)
        whole = [Chunk(0, tokens, count)]
        with self._model.aside(count):
            (wanted,) = self._model.forward(whole)
            self._model.truncate(0, 0)
            self.forward([Chunk(0, tokens[: count // 2 + 1], 1)])
            (logits,) = self._model.forward(whole)
        return distance(logits, wanted)

    def forward(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """See ``HfModel.forward``."""
        return self._model.forward_first(chunks, self._ahead)

    def length(self, seq: int) -> int:
        """Entries that the first layers hold."""
        return self._model.length(seq) + self._ahead.count(seq)

    def truncate(self, seq: int, length: int) -> None:
        """Forget entries beyond those of the whole model.

        Raises:
            ModelError: it is to forget those.
        """
        own = self._model.length(seq)
        if length < own:
            raise ModelError(f"{self.name} does not forget what the whole model has read")
        self._ahead.cut(seq, length - own)

    def close(self) -> None:
        """Nothing here is its own."""
