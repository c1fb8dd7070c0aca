"""Stage 1: are the rules exact on this pair's own rows, and does the loop follow them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from draftproof.check.clock import Clock
from draftproof.check.findings import Stage
from draftproof.check.identity import PLANS, SharedCoinError, plan_error, reduced, rule_error
from draftproof.check.lab import Lab, Recorder, Round, fault
from draftproof.noise import Purpose
from draftproof.rules import RULES
from draftproof.sampling import distribution
from draftproof.types import Array, Draft

TOLERANCE = 1e-6
TOKENS = 24  # of the rows that every way of the coins is followed over


def check_rules(lab: Lab, clock: Clock, seen: Sequence[Round]) -> Stage:
    """The identity on the rows of rounds that were seen, and the loop's own questions."""
    stage = Stage(name="rules")
    if not seen:
        stage.skipped = "no round had a draft"
        return stage
    rows: list[float] = []
    ways: dict[str, float] = {}
    followed = 0
    for one in seen:
        p, draft = _reachable(lab, one)
        _follows(lab, stage, one, p, draft)
        if clock.left(0.4) or not followed:
            _rule_errors(lab, stage, one, p, draft, ways)
            followed += 1
    for one, i in _places(seen):
        if rows and not clock.left():
            break
        rows += _plan_errors(lab, stage, one, i)
    _summarise(lab, stage, rows, ways, (len(seen), followed))
    return stage


def _places(seen: Sequence[Round]) -> Iterator[tuple[Round, int]]:
    """All beginnings of drafts with rows, of all rounds and lengths in turns."""
    drawn = [one for one in seen if one.draft.rows is not None]
    for turn in range(max((len(one.draft.tokens) for one in drawn), default=0)):
        for number, one in enumerate(drawn):
            if turn < len(one.draft.tokens):
                yield one, (turn + number) % len(one.draft.tokens)


def _reachable(lab: Lab, one: Round) -> tuple[list[Array], Draft]:
    """The target's distributions by its logits alone, k+1 rows of [V], and the draft of k tokens.

    What the options exclude ends the draft, as what is behind cannot be reached.
    """
    after = [*one.context[len(one.prompt) :], *one.draft.tokens]
    p = distribution(lab.rows(one.prompt, after, np.array(one.logits), lab.params), lab.params)
    count, rows = len(p) - 1, one.draft.rows
    return p, Draft(one.draft.tokens[:count], None if rows is None else rows[:count])


def _rule_errors(
    lab: Lab,
    stage: Stage,
    one: Round,
    p: Sequence[Array],
    draft: Draft,
    largest: dict[str, float],
) -> None:
    """The identity from every way the coins can fall, for all rules that can judge this draft."""
    short_p, short_q, short = reduced(p, draft.rows, draft, TOKENS)
    for name in ["match"] if draft.rows is None else list(RULES):
        try:
            error = rule_error(RULES[name], short_p, short_q, short)
        except SharedCoinError:
            stage.faults.append(fault(lab, one, f"the {name} rule uses a coin for two things"))
            continue
        largest[name] = max(largest.get(name, 0.0), error)
        if error > TOLERANCE:
            stage.faults.append(fault(lab, one, f"the {name} rule is off by {error:.2g}"))


def _plan_errors(lab: Lab, stage: Stage, one: Round, i: int) -> list[float]:
    """The identity from the plans, over the whole vocabulary, behind i drafts."""
    p, draft = _reachable(lab, one)
    errors: list[float] = []
    for name in PLANS if draft.rows is not None and i < len(draft.tokens) else ():
        assert draft.rows is not None
        error = plan_error(name, p, draft.rows, draft, i)
        errors.append(error)
        if error > TOLERANCE:
            what = f"the plan of the {name} rule is off by {error:.2g} behind {i} drafts"
            stage.faults.append(fault(lab, one, what, i))
    return errors


def _follows(lab: Lab, stage: Stage, one: Round, p: Sequence[Array], draft: Draft) -> None:
    """Whether the loop asked its coins what the rule asks for the target's own rows, each once."""
    if one.reused:
        at = one.reused[0]
        what = f"the coin for {at.purpose.name.lower()} at position {at.position} was used twice"
        stage.faults.append(fault(lab, one, what, at.position - len(one.context)))
    name = "match" if draft.rows is None else lab.speculation.rule_for(lab.params)
    again = Recorder(one.seed)
    RULES[name](p, draft, again, len(one.context))
    if not _same_questions(again, one):
        place = one.step.accepted
        what = f"the {name} rule judged token {place} of the round by other rows than the target's"
        stage.faults.append(fault(lab, one, what, place))


def _same_questions(again: Recorder, one: Round) -> bool:
    mine = [draw for draw in again.draws if draw.at.purpose is not Purpose.DRAFT]
    theirs = one.drawn(Purpose.TARGET)
    if len(mine) != len(theirs) or len(again.tosses) != len(one.tosses):
        return False
    tosses = zip(again.tosses, one.tosses, strict=True)
    return all(
        abs(ours.chance - loops.chance) <= TOLERANCE and ours.at == loops.at
        for ours, loops in tosses
    ) and all(
        ours.at == loops.at and apart(ours.weights, loops.weights) <= TOLERANCE
        for ours, loops in zip(mine, theirs, strict=True)
    )


def apart(one: Array, other: Array) -> float:
    """The largest difference of two distributions [V] that need not be normalised."""
    one, other = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    return float(np.abs(one / one.sum() - other / other.sum()).max())


def _summarise(
    lab: Lab, stage: Stage, rows: list[float], ways: dict[str, float], counts: tuple[int, int]
) -> None:
    width = lab.target.capabilities.vocabulary
    stage.numbers = {
        "rounds": counts[0],
        "rounds_followed": counts[1],
        "rows": len(rows),
        "vocabulary": width,
        "largest_row_error": max(rows, default=None),
        "rule_errors": ways,
    }
    stage.data = {"rows": rows}
    followed = f"{counts[0]} rounds; in {counts[1]} every way of the coins of {', '.join(ways)}"
    plans = f"; {len(rows)} identities over {width:,} tokens, from the plans of token and block"
    stage.checked = followed + (plans if rows else " (drafts that are not drawn need no other)")
    stage.detectable = f"a chance wrong by more than {TOLERANCE:g} in any of these rows"
