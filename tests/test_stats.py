from __future__ import annotations

import json
import logging

import pytest

from draftproof import (
    Draft,
    Engine,
    Origin,
    SamplingParams,
    Seconds,
    Speculation,
    Stats,
    Step,
    sequence,
)
from toy_drafters import DRAFTERS, Script, right
from toys import PROMPTS, SIZE, Toy, oracle

A, C, B, P = Origin.ACCEPTED, Origin.CORRECTION, Origin.BONUS, Origin.PLAIN
SECONDS = Seconds(draft=1, verify=2, other=0.5)
STEPS = [
    Step(0, 1, prefilled=4, seconds=SECONDS),
    Step(
        *(0, 2, 1, (5, 6, 7), 1, 2, (5, 8), (A, C)), seconds=SECONDS
    ),  # one accepted, one rejected, one never judged
    Step(0, 3, 0, (5, 6), 2, 2, (5, 6, 7), (A, A, B), seconds=SECONDS),
    Step(0, 4, tokens=(1,), origins=(P,), seconds=SECONDS),
    Step(0, 5, 0, (3, 4), 1, 1, (3,), (A,), seconds=SECONDS, finish_reason="stop"),  # in mid-block
]


def added() -> Stats:
    stats = Stats(prompt_tokens=5, load=9.0)
    for elapsed, step in enumerate(STEPS, 1):
        stats.add(step, 4.0 * elapsed)
    return stats


def test_definitions() -> None:
    stats = added()
    assert (stats.drafted, stats.evaluated, stats.accepted) == (7, 5, 4)
    assert (stats.rejected, stats.discarded) == (1, 2)
    assert (stats.correction, stats.bonus, stats.plain) == (1, 1, 1)
    assert stats.completion_tokens == 7 == sum(len(step.tokens) for step in STEPS)
    assert stats.rounds == 4  # the pass over the prompt alone is none
    assert stats.acceptance_rate == 4 / 5
    assert stats.acceptance_length == 7 / 4
    assert stats.accepted_at_position == [3, 1, 0]
    assert stats.evaluated_at_position == [3, 2, 0]


def test_times() -> None:
    stats = added()
    assert (stats.prefill, stats.verify, stats.draft) == (4, 6, 5)
    assert (stats.total, stats.ttft, stats.other) == (20, 8, 5)
    assert stats.prefill + stats.verify + stats.draft + stats.other == stats.total
    assert stats.tokens_per_second == (7 - 2) / (20 - 8)


def test_nothing_divides_by_nothing() -> None:
    stats = Stats()
    assert (stats.acceptance_rate, stats.acceptance_length) == (None, None)
    assert stats.tokens_per_second == 0
    stats.add(STEPS[1], 2.0)  # one round is all there was
    assert stats.tokens_per_second == 1


def test_the_json_document() -> None:
    engine = Engine(Toy(1), DRAFTERS["other"](Toy(1)))
    done = engine.generate([1, 2], SamplingParams(max_tokens=8))
    document = json.loads(json.dumps(done.to_json()))
    assert list(document) == ["text", "token_ids", "finish_reason", "stats"]
    assert document["token_ids"] == list(done.token_ids)
    stats = document["stats"]
    assert stats.keys() >= {
        "prompt_tokens",
        "completion_tokens",
        "rounds",
        "drafted",
        "evaluated",
        "accepted",
        "acceptance_rate",
        "acceptance_length",
        "accepted_at_position",
        "seconds",
        "tokens_per_second",
        "ttft",
    }
    assert list(stats["seconds"]) == ["load", "prefill", "draft", "verify", "other", "total"]
    assert stats["prompt_tokens"] == 2
    assert stats["completion_tokens"] == len(done.token_ids)
    assert sum(stats["accepted_at_position"]) == stats["accepted"]
    assert sum(stats["evaluated_at_position"]) == stats["evaluated"]
    assert stats["seconds"]["total"] >= stats["ttft"] > 0


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("rule", ["block", "token", "match"])
def test_identities_hold_in_every_situation(name: str, rule: str) -> None:
    target = Toy(1, sequences=3)
    engine = Engine(target, DRAFTERS[name](target), prefill_chunk=4)
    requests = {}
    for budget in (1, 2, 3, 5, 20):
        for temperature in (0, 1.0):
            params = SamplingParams(temperature=temperature, max_tokens=budget, stop=("ba", "dd"))
            prompt = PROMPTS[budget % 8]
            requests[engine.submit(prompt, params, Speculation(rule=rule))] = []
    engine.cancel(3)
    while steps := engine.step():
        for step in steps:
            requests[step.request].append(step)
            assert len(step.tokens) == len(step.origins)
            assert step.accepted == step.origins.count(A)
            assert step.tokens[: step.accepted] == step.drafted[: step.accepted]
            assert len(step.drafted) >= step.evaluated >= step.accepted
            assert step.evaluated - step.accepted == step.origins.count(C)
    for request, steps in requests.items():
        done = engine.completion(request)
        stats = done.stats
        assert stats.completion_tokens == len(done.token_ids)
        added = stats.correction + stats.bonus + stats.plain
        assert stats.completion_tokens == stats.accepted + added
        assert stats.drafted == stats.accepted + stats.rejected + stats.discarded
        assert stats.rejected == stats.correction
        assert stats.rounds == sum(bool(step.tokens) for step in steps)
        assert sum(step.prefilled for step in steps) == (
            stats.prompt_tokens - stats.cached_tokens if steps else 0
        )


def test_tokens_per_round_are_what_they_should_be() -> None:
    """A bonus left out, or a drafter that lags behind, changes speed alone: count."""
    target = Toy(1)
    params = SamplingParams(max_tokens=61, ignore_eos=True)
    for length in range(1, 6):
        done = Engine(target, right(target)).generate([1], params, Speculation(draft_length=length))
        full, rest = divmod(61, length + 1)
        assert done.stats.rounds == full + bool(rest)
        assert done.stats.bonus + done.stats.plain == full + bool(rest)
        assert done.stats.plain == (rest == 1)  # no room for a draft
        assert done.stats.acceptance_rate == 1


def test_positions_of_a_draft_that_goes_wrong_at_its_third_place() -> None:
    target = Toy(1)

    def spoiled(request: object) -> Draft:
        draft = list(right(target).function(request))
        draft[2:3] = [(token + 1) % SIZE for token in draft[2:3]]
        return Draft(tuple(draft))

    params = SamplingParams(max_tokens=30, ignore_eos=True)
    done = Engine(target, Script(spoiled)).generate([1], params, Speculation(draft_length=5))
    stats = done.stats
    assert done.token_ids == oracle(target, [1], params)[0]
    assert stats.rounds == 10
    assert stats.accepted_at_position == [10, 10, 0, 0, 0]
    assert stats.evaluated_at_position[:2] == [10, 10]
    assert stats.evaluated_at_position[3:] == [0, 0]


def test_the_time_of_a_cancelled_request_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its submission to its end, whether or not it ever ran."""
    now = 100.0
    monkeypatch.setattr(sequence.time, "perf_counter", lambda: now)
    engine = Engine(Toy(1))
    waiting = engine.submit([1])
    running = engine.submit([1], SamplingParams(ignore_eos=True))
    now = 103.0
    engine.step()
    now = 107.0
    engine.cancel(waiting)
    engine.cancel(running)
    assert engine.completion(waiting).stats.total == 7
    assert engine.completion(running).stats.total == 7


def test_one_log_line_for_each_finished_request(caplog: pytest.LogCaptureFixture) -> None:
    target = Toy(1, sequences=2)
    engine = Engine(target, right(target))
    with caplog.at_level(logging.INFO, "draftproof"):
        done = engine.generate_many([[1], [2], [3]], SamplingParams(max_tokens=6))
        engine.cancel(engine.submit([1]))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    for one in done:
        stats = one.stats
        part = f"{stats.accepted} accepted, {stats.rejected} rejected, {stats.discarded} discarded"
        assert any(part in line and f"{len(one.token_ids)} completion" in line for line in lines)
    assert "cancelled" in lines[-1]
    assert not any("\n" in line for line in lines)
