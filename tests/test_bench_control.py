"""The numbers of the benchmark of the automatic draft length: ratios, intervals, goals, floors."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftproof import Engine, SamplingParams
from draftproof.bench.arms import PLAIN, Answer
from draftproof.bench.summary import Row
from draftproof.intervals import Interval
from draftproof.models import load_model
from draftproof.plan.profiles import MEASURED, Pass, Profile
from draftproof.prompts import Task

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def modules() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("control", "control_costs", "control_numbers", "control_streams")
        yield SimpleNamespace(
            **{name.removeprefix("control_"): import_module(name) for name in names}
        )
    finally:
        sys.path.remove(str(BENCHMARKS))


def profile(*seconds: float) -> Profile:
    passes = tuple(Pass(tokens, 1, each) for tokens, each in enumerate(seconds, 1))
    return Profile(
        kind=MEASURED, machine="", model="", context=0, source="", passes=passes, drafts={}
    )


def test_speed_is_a_ratio_of_sums(modules: Any) -> None:
    over = [np.array([[10, 1.0], [30, 2.0]]), np.array([[20, 3.0]])]
    under = [np.array([[10, 2.0], [30, 6.0]]), np.array([[10, 2.0]])]
    assert modules.numbers.speedup(over, under) == pytest.approx((60 / 6) / (50 / 10))


def test_an_interval_draws_the_same_prompts_for_both_arms(modules: Any) -> None:
    under = np.array([[10, float(seconds)] for seconds in range(1, 9)])
    found = modules.numbers.interval([under * (1, 0.5)], [under])
    assert found == pytest.approx((2, 2, 2))
    noisy = under * np.array([[1, 0.4], [1, 0.6]] * 4)
    found = modules.numbers.interval([noisy], [under])
    assert found.low < found.value < found.high


def test_an_interval_keeps_the_mixture_of_texts(modules: Any) -> None:
    under = [np.full((4, 2), 10.0), np.full((4, 2), 10.0)]
    over = [np.full((4, 2), 10.0) * (1, 0.5), np.full((4, 2), 10.0) * (1, 0.9)]
    assert modules.numbers.interval(over, under) == pytest.approx((1 / 0.7,) * 3)


def test_one_prompt_has_no_interval(modules: Any) -> None:
    one = [np.array([[10, 1.0]])] * 2
    assert modules.numbers.interval(one, one) == Interval(1.0)


@pytest.mark.parametrize(
    ("found", "mark"),
    [
        (Interval(0.98, 0.9, 1.1), "reached"),
        (Interval(0.97, 0.9, 0.98), "open"),
        (Interval(0.97, 0.9, 0.979), "MISSED"),
        (Interval(0.97), "open"),
    ],
)
def test_marks(modules: Any, found: Interval, mark: str) -> None:
    goal = modules.numbers.Goal("this", 0.98, found)
    assert goal.mark == goal.to_json()["mark"] == mark
    assert str(goal).startswith(mark)


def test_turns_that_some_arm_has_not_finished_do_not_count(modules: Any) -> None:
    spent = modules.numbers.Spent
    rows = [
        spent("a", "x", 0, 0, 5, 1.0),
        spent("b", "x", 0, 0, 6, 2.0),
        spent("a", "x", 0, 1, 7, 3.0),
        spent("b", "x", 0, 1, 8, 4.0),
        spent("a", "x", 1, 0, 9, 5.0),
        spent("b", "x", 1, 0, 0, 0.0),
        spent("a", "y", 2, 0, 9, 5.0),
    ]
    found = modules.numbers.tally(rows, ["a", "b"])
    assert {arm: list(kinds) for arm, kinds in found.items()} == {"a": ["x"], "b": ["x"]}
    assert found["a"]["x"].tolist() == [[12, 4.0]]
    assert found["b"]["x"].tolist() == [[14, 6.0]]


def test_the_first_round_is_not_counted(modules: Any) -> None:
    row = Row(3, "x", "lookup@4", 1, Answer((1,) * 8, ((2, 9.0), (1, 0.5), (5, 1.0)), None))
    assert modules.control.spent(row) == ("4", "x", 3, 1, 6, 1.5)


def test_the_limit_of_a_cost_table(modules: Any) -> None:
    costs = profile(1.0, 1.0, 1.0, 4.0)
    assert modules.costs.limit(costs, 0.0) == (3.0, 2)
    assert modules.costs.limit(costs, 1.0) == (1.0, 2)
    assert modules.costs.limit(costs, 2.0) == (1.0, 0)


def test_a_plain_lookup(modules: Any) -> None:
    lookup = modules.costs.lookup
    assert lookup([1, 2, 7, 8, 9, 1, 2, 5, 1, 2], 3) == (5, 1, 2)  # the latest
    assert lookup([0, 1, 2, 7, 8, 1, 2, 5, 0, 1, 2], 3) == (7, 8, 1)  # the longest
    assert lookup([1, 2, 7, 1, 2], 1) == (7,)
    assert lookup([1, 2, 3, 4, 3], 3) == ()
    assert lookup([3], 3) == ()


def test_floors_replay_plain_answers(modules: Any) -> None:
    task = Task("x", "", (1, 2, 3, 4, 1))
    rounds = ((1, 1.0),) * 6
    rows = [Row(0, "x", PLAIN, 0, Answer((2, 3, 4, 1, 2, 9), rounds, None))]
    found = modules.costs.floors(
        rows,
        [task],
        SamplingParams(max_tokens=6, ignore_eos=True),
        load_model("table:markov"),
        profile(1.0, 1.25, 1.5, 1.75),
    )
    # Behind "... 1 2" it drafts 3 4 1, gets 2 with them, drafts nothing in the last round.
    assert found["x"] == pytest.approx(5 / (1.75 + 1.0))


def test_full_rounds_alone_are_the_pace_of_all_streams(modules: Any) -> None:
    streams = modules.streams
    prompts = [[1, 2, 1], [2, 1, 2, 1], [1]]
    with Engine("table:markov", options=streams.stream_options()) as engine:
        params = SamplingParams(max_tokens=10, ignore_eos=True)
        tokens, seconds, answered, wall = streams.answer(engine, prompts, params)
    assert answered == 30
    assert tokens == 27  # the round that read the prompts emitted the first of each
    assert 0 < seconds < wall


def test_groups_are_full_and_mixed(modules: Any) -> None:
    tasks = [Task(kind, "", (place,)) for kind in "abc" for place in range(6)]
    found = modules.streams.groups(tasks, 5)
    assert [len(group) for group in found] == [16]
    assert sorted(found[0]) == sorted([(place,) for place in range(6)] * 3)[:16]
    assert len(modules.streams.groups(tasks, 1)) == 1


def test_both_arms_answer_all_groups_in_turns(modules: Any) -> None:
    streams = modules.streams
    groups = [[[1, 2, 1]] * 8, [[2, 1]] * 8]
    with (
        Engine("table:markov", options=streams.stream_options()) as plain,
        Engine(plain.target, "lookup") as auto,
    ):
        found = streams.run_streams("pair", plain, auto, groups, 12, 2)
    assert [(pace.arm, pace.group) for pace in found.paces] == [
        *(("plain", 0), ("auto", 0), ("auto", 1), ("plain", 1)),
        *(("auto", 0), ("plain", 0), ("plain", 1), ("auto", 1)),
    ]
    assert [pace.answered for pace in found.paces] == [96] * 8
    assert len(list(found.goals())) == 2
    assert len(found.to_json()["groups"]) == 8


def test_ctrl_c_keeps_the_groups_measured(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = modules.streams
    real, left = streams.answer, [1, 1, 1]

    def interrupted(*args: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*args)

    monkeypatch.setattr(streams, "answer", interrupted)
    with Engine("table:markov", options=streams.stream_options()) as plain:
        found = streams.run_streams("pair", plain, plain, [[[1, 2]] * 8] * 2, 12, 1)
    assert found.interrupted
    assert len(found.paces) == 3
    assert len(list(found.goals())) == 2


def run_it(modules: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[int, Any]:
    """The whole benchmark on a toy; its exit status and document."""
    prompts, file = folder / "prompts.jsonl", folder / "found.json"
    lines = [
        {"category": kind, "turns": [text]}
        for kind in ("extraction", "other")
        for text in ("ab", "abca", "ca", "bb", "cab", "a", "b", "cc")
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(modules.control, "demo_path", lambda: "")
    monkeypatch.setattr(modules.control, "quantized_copy", lambda *_: "table:markov")
    args = ("--prompts", prompts, "--json", file, "--pairs", "F16 + lookup", "--lengths", "2")
    args += ("--tokens", 48, "--limit", 8)
    monkeypatch.setattr(sys, "argv", ["control.py", *map(str, args)])
    return modules.control.main(), json.loads(file.read_text())


def test_the_whole_of_it(
    modules: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, found = run_it(modules, monkeypatch, tmp_path)
    said = capsys.readouterr().out
    marks = [goal["mark"] for goal in found["goals"]]
    assert status == any(mark != "reached" for mark in marks)
    assert f"{marks.count('open')} open, {marks.count('MISSED')} MISSED" in said
    for goal in found["goals"]:
        assert f"{goal['what']}\n" in said
    greedy, drawn = found["pairs"]
    assert len(greedy["rows"]) == 16 * 4
    assert greedy["floors"].keys() == {"extraction", "other", "overall"}
    assert not drawn["floors"]
    assert len(greedy["costs"]["passes"]) == 17
    # Three for each kind and temperature, one for all texts, two and one floors, two for streams.
    assert len(marks) == 2 * (3 * 2 + 1) + 3 + 2


def test_ctrl_c_reports_what_there_is(
    modules: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real, left = modules.control.EngineArm.answer, [1] * 25

    def interrupted(*args: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return real(*args)

    monkeypatch.setattr(modules.control.EngineArm, "answer", interrupted)
    status, found = run_it(modules, monkeypatch, tmp_path)
    assert status == 1
    assert found["ended"] == "interrupted"
    assert len(found["pairs"][0]["rows"]) == 21
    assert found["goals"]
    assert "ended early: interrupted" in capsys.readouterr().err
