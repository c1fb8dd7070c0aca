"""The controller on simulated machines and texts, where the best is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product

import pytest

from draftproof.control import Controller
from draftproof.control.acceptance import Shared
from draftproof.control.choice import Way, choose
from draftproof.control.latency import Table
from draftproof.control.turn import LONGEST, Ask, Kind
from machines import F16, F32, FLAT, LINE, Q4_0, Q8_0, STEPS, Machine, Stage, coins, cost

FREE, GUIDED, WHOLE = [Kind.FREE], [Kind.GUIDED], [Kind.WHOLE]
kinds = pytest.mark.parametrize("kinds", [FREE, GUIDED], ids=["free", "guided"])
Hit = Callable[[int, int, int], bool]


def machine(table: dict[int, float], draft: float = 0.1, **more: float) -> Machine:
    """``draft`` is what a draft model's pass takes, in plain steps."""
    return Machine(cost(table), draft=draft * cost(table)(1), **more)


def best_fixed(
    table: dict[int, float], kinds: Sequence[Kind], hit: Hit, tokens: int, after: int = 0
) -> float:
    """Rate of the best fixed length in hindsight, on the same text."""
    rates = []
    for k in (0, 1, 2, 3, 4, 5, 7, 8, 11, 15):
        stage = Stage(machine(table), kinds, hit, fixed=k)
        stage.positions = [after]
        rates.append(stage.run(tokens))
    return max(rates)


# Choosing


def slowest(ways: list[Way], verify: list[float], passes: list[float], rate: float) -> float:
    """The value of the best lengths, by trying all of them."""
    values = []
    for lengths in product(*(range(len(way.survival) + 1) for way in ways)):
        depth = max(
            (w.first + w.each * (n - 1) for w, n in zip(ways, lengths, strict=True) if n), default=0
        )
        if depth < len(passes):
            tokens = sum(sum(w.survival[:n]) for w, n in zip(ways, lengths, strict=True))
            values.append(tokens - rate * (verify[sum(lengths)] + passes[depth]))
    return max(values)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.2, 1.0])
@pytest.mark.parametrize("table", [Q4_0, STEPS, FLAT, LINE], ids=["Q4_0", "steps", "flat", "line"])
def test_no_lengths_are_better_than_those_chosen(table: dict[int, float], rate: float) -> None:
    drawn = Way([0.9, 0.8, 0.7, 0.6, 0.5], 1, 1)
    cases = [
        [Way([0.9, 0.7, 0.5, 0.3])],
        [drawn],
        [Way([0.5, 0.2]), drawn],
        [Way(()), Way([0.95, 0.9, 0.8, 0.2]), drawn],
        [drawn, Way([0.3, 0.1], 0, 1), Way([0.6, 0.6, 0.6], 1, 1)],
    ]
    for ways, pace in product(cases, (0.5, 2.0)):
        verify = [1000 * cost(table)(len(ways) + n) for n in range(20)]
        passes = [pace * n for n in range(6)]
        best = choose(ways, verify, passes, rate)
        assert best is not None
        assert best.value == pytest.approx(slowest(ways, verify, passes, rate))
        tokens = sum(sum(w.survival[:n]) for w, n in zip(ways, best.lengths, strict=True))
        assert best.value == pytest.approx(tokens - rate * best.seconds)


def test_a_probe_drafts_something_whatever_it_is_worth() -> None:
    assert choose([Way([0.001] * 3)], [1.0, 9.0, 99.0, 999.0], [0.0], 1.0).lengths == [0]
    assert choose([Way([0.001] * 3)], [1.0, 9.0, 99.0, 999.0], [0.0], 1.0, 1).lengths == [1]
    assert choose([Way(())], [1.0, 9.0], [0.0], 1.0, 1) is None
    assert choose([Way(()), Way(())], [1.0, 9.0], [0.0], 1.0, 1) is None


# Near the best


@pytest.mark.parametrize(
    ("kinds", "table"),
    [*product([FREE], [Q4_0, Q8_0, F16, STEPS]), (GUIDED, Q4_0), (GUIDED, F16)],
)
def test_near_the_best_fixed_length_in_hindsight(
    kinds: list[Kind], table: dict[int, float]
) -> None:
    """Once it knows the text; over all kinds of text together within 2 %."""
    shares = []
    for alpha in (0.6, 0.9):
        stage = Stage(machine(table), kinds, coins(alpha))
        stage.run(1000)
        after = stage.positions[0]
        share = stage.run(1000) / best_fixed(table, kinds, coins(alpha), 1000, after)
        assert share > 0.95
        shares.append(share)
    assert sum(shares) / len(shares) > 0.98


@kinds
def test_a_noisy_machine_costs_little(kinds: list[Kind]) -> None:
    """A tenth of the time up or down, and one pass in fifty takes ten times as long.

    The choices are timed by the true table: what counts is which lengths they are.
    """
    for table, alpha in ((F16, 0.8), (STEPS, 0.5)):
        stage = Stage(machine(table, noise=0.1, outliers=0.02), kinds, coins(alpha))
        stage.run(1000)
        begun, after = len(stage.drafted), stage.positions[0]
        stage.run(1500)
        lengths = [lengths[0] for lengths in stage.drafted[begun:]]
        draft = stage.machine.draft * (kinds == GUIDED)
        seconds = sum(stage.machine.verify(1 + k) + k * draft for k in lengths)
        rate = (stage.positions[0] - after) / seconds
        assert rate > 0.95 * best_fixed(table, kinds, coins(alpha), 1500, after)


def test_steps_are_exploited() -> None:
    """Three drafts cost as much as none in tiles of four columns, and a fourth costs a tile."""
    stage = Stage(machine(STEPS), FREE, coins(0.6))
    stage.run(800)
    lengths = [lengths[0] for lengths in stage.drafted[-200:]]
    assert lengths.count(3) > 180


def test_where_tokens_are_free_all_are_drafted() -> None:
    stage = Stage(machine(FLAT), FREE, coins(0.9))
    stage.run(1500)
    assert [LONGEST] in stage.drafted[-10:]
    assert sum(map(sum, stage.drafted[-100:])) > 0.9 * 100 * LONGEST


@kinds
def test_a_text_that_changes_from_sentence_to_sentence(kinds: list[Kind]) -> None:
    """Better than any fixed length where the text can be told apart before."""
    hit = coins(lambda position: 0.97 if position // 60 % 2 else 0.1)
    stage = Stage(machine(F16), kinds, hit)
    stage.run(600)
    after = stage.positions[0]
    share = stage.run(2400) / best_fixed(F16, kinds, hit, 2400, after)
    assert share > (1.1 if kinds == FREE else 0.98)


def test_the_top_probability_tells_tokens_apart() -> None:
    """A draft model that knows when it does not know; a blind one of the same skill is slower."""
    sure = coins(0.5, seed=8)

    def hit(seq: int, place: int, position: int) -> bool:
        return coins_by[sure(seq, 0, position)](seq, place, position)

    coins_by = {True: coins(0.98, seed=1), False: coins(0.3, seed=2)}
    rates = []
    for top in (lambda seq, i: 0.97 if sure(seq, 0, i) else 0.4, lambda seq, i: 0.7):
        stage = Stage(machine(Q8_0, 0.05), GUIDED, hit, top)
        stage.run(1000)
        rates.append(stage.run(2000))
    assert rates[0] > 1.05 * rates[1]


# Never slower


@pytest.mark.parametrize(("table", "sequences"), [(Q4_0, 1), (F16, 1), (STEPS, 1), (F16, 8)])
@pytest.mark.parametrize(
    "kinds", [FREE, GUIDED, WHOLE, [*FREE, *GUIDED]], ids=["free", "guided", "whole", "both"]
)
def test_a_drafter_that_is_always_wrong_costs_less_than_two_percent(
    table: dict[int, float], sequences: int, kinds: list[Kind]
) -> None:
    stage = Stage(machine(table, 0.3), kinds, lambda *_: False, sequences=sequences)
    plain = sequences / cost(table)(sequences)
    assert stage.run(800) > 0.98 * plain
    assert stage.run(400) > 0.985 * plain


def test_a_drafter_that_is_always_wrong_and_sure_of_itself() -> None:
    stage = Stage(machine(Q8_0, 0.3), GUIDED, lambda *_: False, lambda *_: 0.999)
    assert stage.run(1000) > 0.98 / cost(Q8_0)(1)


@kinds
def test_it_comes_back_when_drafts_pay_again(kinds: list[Kind]) -> None:
    hit = coins(lambda position: 0.95 if position > 600 else 0.0)
    stage = Stage(machine(F16, 0.05), kinds, hit)
    stage.run(600)
    assert stage.silent > 500
    stage.run(400)
    assert stage.run(600) > 1.8 / cost(F16)(1)


def test_a_new_request_begins_with_what_others_taught() -> None:
    good, bad = (Stage(machine(F16), GUIDED, coins(alpha)) for alpha in (0.9, 0.0))
    for stage in (good, bad):
        stage.run(400)
        stage.owner += 1
        begun = len(stage.drafted)
        for _ in range(5):
            stage.round()
        stage.first = [lengths[0] for lengths in stage.drafted[begun:]]
    assert good.first[0] >= 3
    assert sum(bad.first) <= 1


def test_a_machine_that_slows_down_as_a_whole_changes_nothing() -> None:
    stage = Stage(machine(Q4_0), FREE, coins(0.9))
    stage.run(1500)
    before = stage.drafted[-150:]
    stage.machine.slow = 3.0
    stage.run(200)
    begun = len(stage.drafted)
    stage.run(600)
    after = stage.drafted[begun:]
    assert stage.control.estimates.scale.value == pytest.approx(3, rel=0.1)
    means = [sum(map(sum, part)) / len(part) for part in (before, after)]
    assert means[1] == pytest.approx(means[0], rel=0.25)


@pytest.mark.parametrize(("left", "reads"), [(400, True), (3, False)])
def test_a_prompt_is_read_where_the_answer_pays_for_it(left: int, reads: bool) -> None:
    """Reading it takes about eight plain rounds; a round of drafts gains about one."""
    control = Controller([Kind.GUIDED], lambda: 0.0)
    control.estimates.target.adopt(Table({1: 1.0, 17: 1.2}))
    control.estimates.passes[0].adopt(Table({1: 0.1, 17: 0.3, 64: 0.5}))
    ask = Ask(0, 0, 1000, 0, reading=True, left=left)
    decision = control.open([ask], 1)
    decision.decide()
    assert bool(decision.asked(0)) == reads


def test_a_prompt_is_not_read_for_a_drafter_that_does_not_pay() -> None:
    control = Controller([Kind.GUIDED], lambda: 0.0)
    control.estimates.target.adopt(Table({1: 1.0, 17: 17.0}))
    control.estimates.passes[0].adopt(Table({1: 0.5, 17: 8.0}))
    decision = control.open([Ask(0, 0, 3, 0, reading=True)], 1)
    decision.decide()
    assert not decision.asked(0)


def test_drafts_that_take_no_time_to_draft_are_charged_for_their_verification() -> None:
    stage = Stage(machine(F16, draft=0.0), WHOLE, lambda *_: False)
    assert stage.run(400) > 0.98 / cost(F16)(1)


def test_drafts_that_keep_less_than_they_promise_are_believed_less() -> None:
    """Chances that are right on average are too high for the drafts that are chosen by them."""
    shared = Shared()
    for _ in range(20):
        shared.keep(3.0, 1)
    assert shared.trust == pytest.approx((10 + 20) / (10 + 60))
    for _ in range(400):
        shared.keep(1.0, 1)
    assert shared.trust > 0.95
    for _ in range(400):
        shared.keep(1.0, 3)
    assert shared.trust == 1.0, "more than was promised is no reason to promise more"


def test_drafts_that_are_not_chosen_are_believed_again_slowly() -> None:
    shared = Shared()
    for _ in range(40):
        shared.keep(3.0, 0)
    low = shared.trust
    for _ in range(30):
        shared.doubt()
    assert low < shared.trust < 0.2
    for _ in range(600):
        shared.doubt()
    assert shared.trust > 0.9


def test_the_controller_counts_what_chosen_drafts_kept() -> None:
    stage = Stage(machine(F16), FREE, coins(0.9))
    stage.run(500)
    (shared,) = stage.control.estimates._shared[False]
    assert shared.trust > 0.9
    stage.hit = lambda *_: False
    for _ in range(10):
        stage.round()
    assert shared.trust < 0.9


# Batches and chains


def test_in_a_batch_of_eight_the_tokens_go_to_the_one_that_is_good() -> None:
    good = coins(0.95)
    stage = Stage(machine(FLAT), FREE, lambda seq, *at: seq == 3 and good(seq, *at), sequences=8)
    for _ in range(500):
        stage.round()
    late = [sum(column) for column in zip(*stage.drafted[-100:], strict=True)]
    assert late[3] > 1000
    assert sum(late) - late[3] < 400


def test_a_batch_of_eight_equals_its_best_fixed_length() -> None:
    stage = Stage(machine(F16), FREE, coins(0.8), sequences=8)
    stage.run(300)
    rate = stage.run(300)
    rates = [Stage(machine(F16), FREE, coins(0.8), sequences=8, fixed=k).run(600) for k in range(4)]
    assert rate > 0.97 * max(rates)


def test_of_two_drafters_the_better_one_speaks_in_each_part_of_the_text() -> None:
    lookup, model = coins(lambda position: 0.97 if position // 50 % 2 else 0.05), coins(0.8, 5)
    hits = {0: lookup, 1: model}
    both = Stage(machine(F16, 0.15), [*FREE, *GUIDED], lambda s, p, at: hits[p](s, 0, at))
    alone = [
        Stage(machine(F16, 0.15), kinds, lambda s, p, at, hit=hit: hit(s, 0, at))
        for kinds, hit in ((FREE, lookup), (GUIDED, model))
    ]
    assert both.run(3000) > 1.1 * max(stage.run(3000) for stage in alone)


def test_a_plain_round_asks_no_draft_model() -> None:
    stage = Stage(machine(Q8_0, 0.5), GUIDED, coins(0.1))
    stage.run(300)
    asked = []
    for _ in range(100):
        stage.round()
        asked.append(stage.asked)
    assert sum(asked) <= 3


# Regret


def test_regret_is_what_the_best_fixed_length_would_have_gained() -> None:
    """A controller that is told to draft one token, where four are best."""
    for table, alpha in ((F16, 0.8), (F32, 0.9)):
        stage = Stage(machine(table), FREE, coins(alpha), fixed=1)
        rate = stage.run(3000)
        best = best_fixed(table, FREE, coins(alpha), 3000)
        # Drafts of one token tell nothing about a second.
        assert stage.control.regret(0, 0, 1, 0) == pytest.approx(0, abs=0.02)
        stage = Stage(machine(table), FREE, coins(alpha), fixed=8)
        rate = stage.run(3000)
        assert stage.control.regret(0, 0, 1, 0) == pytest.approx(1 - rate / best, abs=0.03)


def test_regret_is_unknown_before_anything_happened() -> None:
    assert Controller(FREE).regret(0, 0, 1, 0) is None


# Costs


def test_a_round_costs_the_controller_little() -> None:
    """Well below 0.1 ms on an idle machine; the best of many rounds, as others may run here."""
    stage = Stage(machine(F16), FREE, coins(0.8))
    stage.run(300)
    spent = []
    for _ in range(300):
        began = time.perf_counter()
        stage.round()
        spent.append(time.perf_counter() - began)
    assert min(spent) < 3e-4  # the stage around it included


@pytest.mark.parametrize(("written", "probes"), [(2, True), (100, False)])
def test_a_probe_is_charged_for_all_that_has_to_be_read_for_it(written: int, probes: bool) -> None:
    """A hundred tokens take a draft model as long as some thirty plain rounds; two may be lent."""
    control = Controller([Kind.GUIDED], lambda: 0.0)
    control.estimates.target.adopt(Table({1: 1.0, 17: 17.0}))
    control.estimates.passes[0].adopt(Table({1: 0.5, 17: 8.0}))
    decision = control.open([Ask(0, 0, written, LONGEST)], 1)
    decision.decide()
    assert decision.probe == probes


def test_passes_whose_context_is_not_known_teach_nothing() -> None:
    """All drafts of the round came from elsewhere, as from a grammar."""
    control = Controller([Kind.FREE], lambda: 0.0)
    for _ in range(3):
        control.open([], 1, others=3).decide()
        control.learn([], 1.0, 0.1, False)
    assert not control.estimates.known(1)
