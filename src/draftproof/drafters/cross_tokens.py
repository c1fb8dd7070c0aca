"""The tokens that two vocabularies share."""

from __future__ import annotations

from math import inf

from array_api_compat import array_namespace

from draftproof.drafters.cross_bytes import Vocabulary
from draftproof.types import Array


class Intersection:
    """The tokens of two vocabularies that stand for the same bytes. See ``Shared``.

    Of several tokens with the same bytes one is taken on either side. Control tokens stand for no
    bytes: end tokens that are written the same are shared, or else the two EOS.

    Restricting the draft model's distribution to them, and only then drawing, keeps a true q over
    the target's vocabulary (Timor et al., "Accelerating LLM inference with lossless speculative
    decoding algorithms for heterogeneous vocabularies", ICML 2025, token-level intersection).

    Attributes:
        ends: the draft model's end tokens, and what they are in the target's vocabulary.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.ends = _ends(target, draft)
        common = target.by_bytes.keys() & draft.by_bytes.keys()
        pairs = {target.by_bytes[piece]: draft.by_bytes[piece] for piece in common}
        pairs |= {theirs: mine for mine, theirs in self.ends.items()}
        self._drafts = dict(sorted(pairs.items()))
        nothing = len(draft.pieces)  # the column behind the draft model's own
        columns = [self._drafts.get(token, nothing) for token in range(len(target.pieces))]
        self._columns = _Ids(columns)

    def __len__(self) -> int:
        return len(self._drafts)

    def share(self, logits: Array) -> Array | None:
        """See ``Shared.share``."""
        if not self._drafts:
            return None
        xp = array_namespace(logits)
        nothing = xp.full((1, 1), -inf, dtype=logits.dtype, device=logits.device)
        wide = xp.concat([logits, nothing], axis=1)
        shared = xp.take(wide, self._columns.beside(logits), axis=1)
        return None if shared.max() == -inf else shared

    def draft(self, token: int) -> int:
        """See ``Shared.draft``."""
        return self._drafts[token]


def _ends(target: Vocabulary, draft: Vocabulary) -> dict[int, int]:
    """The draft model's end tokens, and what they are in the target's vocabulary."""
    theirs = {
        target.special[end]: end for end in target.tokenizer.end_tokens & target.special.keys()
    }
    mine = draft.tokenizer.end_tokens & draft.special.keys()
    same = {end: theirs[draft.special[end]] for end in mine if draft.special[end] in theirs}
    ours, other = draft.tokenizer.eos, target.tokenizer.eos
    return same or ({} if ours is None or other is None else {ours: other})


class _Ids:
    """Token ids as an array, made where and in what library it is first needed."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._array: Array | None = None

    def beside(self, other: Array) -> Array:
        if self._array is None:
            xp = array_namespace(other)
            self._array = xp.asarray(self._ids, dtype=xp.int64, device=other.device)
        return self._array
