"""The drafter that knows the answer: right as often as it is told to be, and exact whatever."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from draftproof import Engine, ParameterError, SamplingParams, Speculation, load_drafter, load_model
from draftproof.cli import main
from draftproof.drafters.replay import BURST, ReplayDrafter, record
from toys import PLAIN, SEEDED, Toy, agrees, ask

ANSWER = [(7 * i) % 50 for i in range(4000)]


def hits(drafter: ReplayDrafter) -> list[bool]:
    """Which tokens of the answer it has right, wherever it is asked."""
    found = []
    for at in range(0, len(ANSWER), 16):
        (draft,) = drafter.propose([ask([1, 2, *ANSWER[:at]], 16)])
        assert draft.rows is None
        found += [a == b for a, b in zip(draft.tokens, ANSWER[at:], strict=False)]
    return found


@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize("accuracy", [0.0, 0.3, 0.8, 1.0])
def test_as_right_as_it_is_told_to_be(accuracy: float, burst: bool) -> None:
    drafter = ReplayDrafter({(1, 2): ANSWER}, accuracy, burst)
    found = hits(drafter)
    assert len(found) == len(ANSWER)
    assert sum(found) / len(found) == pytest.approx(accuracy, abs=0.08 if burst else 0.03)
    assert found == hits(drafter)
    if 0 < accuracy < 1:
        rows = [len(list(row)) for right, row in itertools.groupby(found) if not right]
        wanted = BURST if burst else 1 / accuracy
        assert sum(rows) / len(rows) == pytest.approx(wanted, rel=0.25)
        other = ReplayDrafter({(1, 2): ANSWER}, accuracy, burst, seed=1)
        assert hits(other) != found


def test_evidence_is_how_many_it_has_had_right() -> None:
    drafter = ReplayDrafter({(1, 2): ANSWER}, 0.7)
    found = hits(drafter)
    streak = 0
    for at in range(200):
        assert drafter.evidence(ask([1, 2, *ANSWER[:at]], 4)) == streak
        streak = streak + 1 if found[at] else 0


def test_nothing_to_say_about_other_prompts_and_behind_the_answer() -> None:
    drafter = ReplayDrafter({(1, 2): [3, 4], (1, 2, 3): [5]})
    cases = (
        ([2, 1], 4, ()),
        ([1, 2], 4, (3, 4)),
        ([1, 2], 1, (3,)),
        ([1, 2, 3], 4, (5,)),
        ([1, 2, 3, 5], 4, ()),
    )
    for owner, (tokens, length, drafted) in enumerate(cases):
        (draft,) = drafter.propose([ask(tokens, length, owner=owner)])
        assert draft.tokens == drafted
    assert drafter.evidence(ask([9], 4, owner=99)) == 0
    (draft,) = drafter.propose([ask([1, 2], 4, owner=98, ends=frozenset([3]))])
    assert draft.tokens == (3,), "nothing is worth proposing behind an end token"


def test_a_prompt_that_is_still_being_read_is_found_later() -> None:
    drafter = ReplayDrafter({(1, 2, 3): [4]})
    assert drafter.propose([ask([1], 0)])[0].tokens == ()
    assert drafter.propose([ask([1, 2, 3], 4)])[0].tokens == (4,)


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("draft_length", [None, 4])
def test_exact_with_every_accuracy(accuracy: float, draft_length: int | None) -> None:
    target = Toy(1)
    drafter = ReplayDrafter(accuracy=accuracy)
    engine = Engine(target, drafter, speculation=Speculation(draft_length=draft_length))
    for params in (PLAIN, SEEDED, replace(SEEDED, seed=8)):
        for prompt in ([1, 2], [2, 0, 1]):
            record(engine, prompt, params)
            done = engine.generate(prompt, params)
            assert agrees(done, target, prompt, params)
            if draft_length and done.stats.evaluated:
                assert accuracy not in (0.0, 1.0) or done.stats.acceptance_rate == accuracy


def test_recorded_once_for_each_prompt_and_options() -> None:
    target = Toy(1)
    engine = Engine(target, ReplayDrafter())
    record(engine, [1, 2], PLAIN)
    calls = len(target.calls)
    record(engine, [1, 2], PLAIN)
    assert len(target.calls) == calls
    record(engine, [1, 2], SEEDED)
    assert len(target.calls) > calls
    record(Engine(target), [1, 2], PLAIN)


def test_an_answer_that_does_not_repeat_itself_is_refused() -> None:
    with pytest.raises(ParameterError, match="give a seed"):
        record(Engine(Toy(1), ReplayDrafter()), [1], SamplingParams(temperature=1.0))


def test_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    markov = load_model("table:markov")
    for spec in ("replay:0.8", "replay:0.8:burst", "replay:0"):
        assert load_drafter(spec, markov).name == spec
    for spec in ("replay", "replay:", "replay:2", "replay:-1", "replay:nan", "replay:1:bursts"):
        with pytest.raises(ParameterError, match="replay takes a chance"):
            load_drafter(spec, markov)
    options = ["--raw", "--max-tokens", "30", "--ignore-eos", "--json"]
    answers = []
    for draft in ("none", "replay:1", "lookup,replay:0.5"):
        length = [] if draft == "none" else ["--draft-length", "4"]
        command = ["generate", "--target", "table:markov", "ab", "--draft", draft]
        assert main([*command, *length, *options]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["text"] == answers[1]["text"] == answers[2]["text"]
    assert answers[1]["stats"]["acceptance_rate"] == 1
