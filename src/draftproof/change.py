"""What a round does to a sequence, and where its tokens come from."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from draftproof.types import Draft, Origin, Piece, Source, TokenLogprob, Verdict

_KEPT = {
    Source.DRAFTER: Origin.ACCEPTED,
    Source.GRAMMAR: Origin.FORCED,
    Source.PREDICTION: Origin.PREDICTED,
}


class Change(NamedTuple):
    """What a round did to a sequence.

    Attributes:
        origins: of the emitted tokens.
        pieces: the text let out.
        logprobs: of the emitted tokens, where they were asked for.
        prompt_logprobs: of the prompt tokens that were read, where they were asked for.
    """

    origins: Many[Origin] = ()
    pieces: Many[Piece] = ()
    logprobs: Many[TokenLogprob] = ()
    prompt_logprobs: Many[TokenLogprob] = ()


def origin(draft: Draft, verdict: Verdict, row: int) -> Origin:
    """Where the token of a row comes from: of the draft, or the one that the target adds."""
    if row < verdict.accepted:
        return _KEPT[draft.source]
    if draft.source is not Source.DRAFTER or not draft.tokens:
        return Origin.PLAIN
    return Origin.CORRECTION if verdict.accepted < len(draft.tokens) else Origin.BONUS
