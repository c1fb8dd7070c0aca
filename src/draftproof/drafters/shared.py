"""What the vocabularies of a draft model and of its target have in common."""

from __future__ import annotations

from math import inf
from typing import Protocol

from array_api_compat import array_namespace

from draftproof.types import Array


class Shared(Protocol):
    """The n tokens that draft model and target share."""

    def share(self, logits: Array) -> Array | None:
        """Logits [1, V of the target] from the draft model's; -inf for tokens it does not have.

        None where no shared token is possible.
        """

    def draft(self, token: int) -> int:
        """The draft model's token for a shared token of the target."""


class Padded:
    """One vocabulary, padded to different sizes: ids that only one model has are not shared.

    Args:
        size: of the target's vocabulary.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def share(self, logits: Array) -> Array:
        """See ``Shared.share``."""
        missing = self._size - logits.shape[1]
        if missing <= 0:
            return logits[:, : self._size]
        xp = array_namespace(logits)
        nothing = xp.full((1, missing), -inf, dtype=logits.dtype, device=logits.device)
        return xp.concat([logits, nothing], axis=1)

    def draft(self, token: int) -> int:
        """See ``Shared.draft``."""
        return token
