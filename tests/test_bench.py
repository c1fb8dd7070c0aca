"""The benchmark: arms, counting, summary against hand-made rows, and the command."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from draftproof import ModelOptions, ParameterError, PromptError, SamplingParams
from draftproof import bench as module
from draftproof.bench import run
from draftproof.bench.arms import (
    PLAIN,
    Answer,
    ArmSpec,
    EngineArm,
    drafters_of,
    parse_arm,
    parse_arms,
)
from draftproof.bench.hf import load
from draftproof.bench.load import Arms
from draftproof.bench.report import html, times
from draftproof.bench.summary import Row, summary
from draftproof.cli import main
from draftproof.intervals import Interval, median, ratio
from draftproof.machine import commit, machine, versions
from draftproof.models import load_model
from draftproof.prompts import Task, choose, encode, read_tasks
from draftproof.stats import Stats

TARGET = "table:markov"
TASKS = [Task("x", "ab"), Task("x", "abca"), Task("y", "ca")]
GREEDY = SamplingParams(max_tokens=24)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    rows = [{"category": t.category, "turns": [t.text, "b"], "id": 1} for t in TASKS]
    file.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    return str(file)


# Arms


@pytest.mark.parametrize(
    ("text", "drafter", "length"),
    [
        ("plain", "none", 0),
        ("lookup@3", "lookup", 3),
        ("lookup@0", "lookup", 0),
        ("lookup", "lookup", None),
        ("quantize:Q4_0@auto", "quantize:Q4_0", None),
        ("lookup,my@home.gguf@auto", "lookup,my@home.gguf", None),
        ("my@home.gguf", "my@home.gguf", None),
        ("transformers", "transformers", None),
    ],
)
def test_an_arm_is_read(text: str, drafter: str, length: int | None) -> None:
    assert parse_arm(text) == ArmSpec(text, drafter, length)


@pytest.mark.parametrize("text", ["", "@3", "none", "none@2", "plain@2", "@auto"])
def test_what_is_no_arm(text: str) -> None:
    with pytest.raises(ParameterError, match="an arm is plain, DRAFTER"):
        parse_arm(text)


def test_plain_comes_first_and_nothing_twice() -> None:
    assert [arm.label for arm in parse_arms(["lookup@3", "plain"])] == ["plain", "lookup@3"]
    with pytest.raises(ParameterError, match="lookup@3 is named twice"):
        parse_arms(["lookup@3", "lookup@3"])
    specs = parse_arms(["lookup@3", "lookup,table:markov-draft@2", "transformers:lookup@3"])
    assert drafters_of(specs) == ["lookup", "table:markov-draft"]


def test_models_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof import drafters, pair

    loaded: list[str] = []

    def counted(spec: str, *rest: Any) -> Any:
        loaded.append(spec)
        return load_model(spec, *rest)

    monkeypatch.setattr(pair, "load_model", counted)
    monkeypatch.setattr(drafters, "load_model", counted)
    specs = parse_arms([f"{p}table:markov-draft@{k}" for p in ("", "lookup,") for k in (1, 2)])
    with Arms(TARGET, specs, ModelOptions()) as arms:
        assert len(arms.every) == 5
        assert loaded == [TARGET, "table:markov-draft"]
        assert len({id(arm._engine.target) for arm in arms.every}) == 1


def test_every_answer_begins_with_cold_caches() -> None:
    specs = parse_arms(["table:markov-draft@2"])
    with Arms(TARGET, specs, ModelOptions()) as arms:
        for arm in arms.every:
            for _ in range(2):
                answer = arm.answer([0, 1, 2], GREEDY)
                assert answer.stats.cached_tokens == 0
                assert sum(n for n, _ in answer.rounds) == len(answer.token_ids) == 24
                assert len(answer.rounds) == answer.stats.rounds


def test_transformers_is_an_arm(tiny_checkpoint: Path) -> None:
    target = f"hf:{tiny_checkpoint}"
    drafts = ("transformers", "transformers:lookup@3", f"transformers:{target}@3")
    options = ModelOptions(context_length=64, device="cpu", threads=1)
    with Arms(target, parse_arms(drafts), options) as arms:
        tasks = encode([Task("x", "a b a b a b a b")], arms.target, 12, raw=True)
        results = run(arms.every, tasks, SamplingParams(max_tokens=12), repeats=1)
        found = results.to_json({}, arms.target.tokenizer)["summary"]
    assert found["differences"] == []
    each = {arm: block["overall"] for arm, block in found["arms"].items()}
    assert [block["tokens"] for block in each.values()] == [12] * 4
    assert each["transformers"]["acceptance_length"] == 1
    assert each[drafts[2]]["acceptance_length"] == 4  # it drafts as itself
    assert each[drafts[2]]["acceptance_rate"] is None


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("transformers:lookup", "needs a length: transformers:lookup@4"),
        ("transformers@3", "plain decoding has no draft length"),
        ("transformers:eagle@3", "drafts by lookup or hf:FOLDER, not 'eagle'"),
    ],
)
def test_what_transformers_cannot_do(arm: str, message: str, tiny_checkpoint: Path) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        load(parse_arm(arm), f"hf:{tiny_checkpoint}", ModelOptions(), ())


# Running


def measured(*arms: str, repeats: int = 2, **changes: Any) -> module.Results:
    params = SamplingParams(**{"max_tokens": 24, **changes})
    with Arms(TARGET, parse_arms(arms), ModelOptions()) as loaded:
        tasks = encode(TASKS, loaded.target, 24)
        return run(loaded.every, tasks, params, repeats)


def test_arms_take_turns_in_random_order() -> None:
    results = measured("lookup@2", "lookup@4", repeats=3)
    rows = results.rows
    assert len(rows) == 3 * 3 * 3
    groups = [rows[i : i + 3] for i in range(0, len(rows), 3)]
    for group in groups:  # all arms of one prompt and repeat, one after another
        assert len({(row.task, row.repeat) for row in group}) == 1
        assert {row.arm for row in group} == {"plain", "lookup@2", "lookup@4"}
    assert len({tuple(row.arm for row in group) for group in groups}) > 1
    assert len({tuple(g[0].task for g in groups[i : i + 3]) for i in (0, 3, 6)}) > 1


def test_texts_are_equal_and_counted_alike() -> None:
    results = measured("table:markov-draft@3", "lookup@auto", temperature=1.0, seed=4)
    found = results.to_json({"target": TARGET, "repeats": 2}, load_model(TARGET).tokenizer)
    each = found["summary"]["arms"]
    assert found["summary"]["differences"] == []
    assert found["summary"]["texts_compared"] == 3 * 2 * 3 - 3
    assert len({each[arm]["overall"]["tokens"] for arm in each}) == 1
    drafted = each["table:markov-draft@3"]["overall"]
    assert 1 < drafted["acceptance_length"] <= 4
    assert 0 < drafted["acceptance_rate"] <= 1
    assert 0 < drafted["mean_draft_length"] <= 3
    plain = each[PLAIN]["overall"]
    assert (plain["acceptance_length"], plain["plain_rounds"]) == (1, 1)
    assert plain["speedup"]["value"] == 1
    assert found["versions"]["python"] == sys.version.split()[0]


def test_texts_without_a_seed_are_not_compared() -> None:
    found = measured("lookup@2", temperature=1.0).to_json({}, load_model(TARGET).tokenizer)
    assert found["summary"]["differences"] is None


def test_an_interrupt_keeps_what_was_measured() -> None:
    class Tired:
        label = "tired"
        answers = 0

        def answer(self, prompt: Any, params: SamplingParams) -> Answer:
            self.answers += 1
            if self.answers > 4:  # the first was the warm-up
                raise KeyboardInterrupt
            return Answer((0,), ((1, 0.1),), None)

    tasks = [Task("x", "ab", (0, 1))]
    results = run([Tired()], tasks, GREEDY, repeats=9)
    assert results.interrupted
    assert len(results.rows) == 3


# The summary


class Letters:
    """Spells tokens as letters."""

    def piece(self, token: int) -> bytes:
        return bytes([97 + token])


def row(task: int, arm: str, repeat: int, rounds: list[tuple[int, float]], **more: Any) -> Row:
    tokens = more.get("tokens", tuple(range(sum(n for n, _ in rounds))))
    category = "even" if task % 2 == 0 else "odd"
    return Row(task, category, arm, repeat, Answer(tokens, tuple(rounds), more.get("stats")))


def made() -> list[Row]:
    """Two prompts, three repeats; the arm is twice as fast on the first, 3 times on the second."""
    rows = []
    for repeat, slow in enumerate((1.0, 5.0, 1.0)):  # the machine slows down for both
        for task, gain in enumerate((2.0, 3.0)):
            rows.append(row(task, PLAIN, repeat, [(1, 0.5)] + [(1, 0.1 * slow)] * 4))
            rows.append(row(task, "a", repeat, [(3, 0.7), (2, 0.2 * slow / gain)]))
    return rows


def test_a_speedup_is_paired_and_per_token() -> None:
    found = summary(made(), [PLAIN, "a"], True, Letters())
    arm = found["arms"]["a"]
    assert arm["categories"]["even"]["speedup"] == {"value": 2.0, "low": None, "high": None}
    assert arm["categories"]["odd"]["speedup"]["value"] == pytest.approx(3)
    assert arm["overall"]["speedup"]["value"] == pytest.approx(2.5)
    assert arm["overall"]["speedup"]["low"] == pytest.approx(2)
    assert arm["overall"]["prompts_with_speedup"] == 2
    assert arm["overall"]["acceptance_length"] == 2.5
    assert arm["overall"]["acceptance_rate"] is None  # nobody counted
    assert found["categories"] == ["even", "odd"]


def test_latencies_are_per_token_never_per_chunk() -> None:
    """Ten tokens: nine at once in 0.9 s, one in 0.2 s."""
    block = summary([row(0, PLAIN, 0, [(1, 1.5), (9, 0.9), (1, 0.2)])], [PLAIN], True, Letters())[
        "arms"
    ][PLAIN]["overall"]
    assert block["tpot"]["p50"] == pytest.approx(0.1)
    assert block["tpot"]["p90"] == pytest.approx(0.11)
    assert block["ttft"] == {"p50": 1.5, "p90": 1.5, "p99": 1.5}
    assert block["tokens_per_second"] == pytest.approx(10 / 1.1)


def test_an_answer_of_one_round_has_no_speed() -> None:
    rows = [row(0, PLAIN, 0, [(1, 0.5), (1, 0.1)]), row(0, "a", 0, [(2, 0.5)])]
    found = summary(rows, [PLAIN, "a"], True, Letters())["arms"]["a"]["overall"]
    assert found["speedup"] is None
    assert found["prompts_with_speedup"] == 0
    assert found["tpot"] is None
    assert times(found["speedup"]) == "-"


def test_it_is_shown_where_texts_part() -> None:
    rows = [
        row(0, PLAIN, 0, [(1, 0.1)] * 4, tokens=(0, 1, 2, 3)),
        row(0, "a", 0, [(1, 0.1)] * 4, tokens=(0, 1, 3, 3)),
        row(0, "a", 1, [(1, 0.1)] * 3, tokens=(0, 1, 2)),
        row(0, PLAIN, 1, [(1, 0.1)] * 4, tokens=(0, 1, 2, 3)),
    ]
    found = summary(rows, [PLAIN, "a"], True, Letters())
    assert found["texts_compared"] == 3
    first, second = found["differences"]
    assert (first["arm"], first["repeat"], first["position"]) == ("a", 0, 2)
    assert (first["plain"], first["text"]) == ("cd", "dd")
    assert (second["position"], second["plain"], second["text"]) == (3, "d", "")


def test_the_engines_counts_are_added_up() -> None:
    stats = [
        Stats(rounds=4, drafted=8, evaluated=6, accepted=3, plain=1, correction=2, bonus=1),
        Stats(rounds=1, drafted=0, evaluated=0, accepted=0, plain=1),
    ]
    rows = [row(0, PLAIN, n, [(1, 0.1)], stats=one) for n, one in enumerate(stats)]
    block = summary(rows, [PLAIN], False, Letters())["arms"][PLAIN]["overall"]
    assert block["acceptance_rate"] == 0.5
    assert block["mean_draft_length"] == 8 / 5
    assert block["plain_rounds"] == 2 / 5


# Intervals, prompts, the machine


def test_intervals() -> None:
    assert median([3.0]) == Interval(3.0)
    one = median([1.0, 2.0, 3.0, 4.0, 100.0])
    assert one.value == 3
    assert 1 <= one.low < 3 < one.high <= 100
    assert median([2.0] * 5) == Interval(2.0, 2.0, 2.0)
    two = ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    assert two.value == 15 / 6
    assert 2 <= two.low < two.high <= 3
    assert str(Interval(1.5, 1.25, 2)) == "1.50 [1.25, 2.00]"


def test_the_built_in_prompts_are_of_many_kinds() -> None:
    tasks = read_tasks()
    kinds = {task.category for task in tasks}
    assert len(kinds) >= 8
    for kind in kinds:
        assert len(choose(tasks, [kind])) == 3
    assert len(choose(tasks, limit=1)) == len(kinds)
    assert [task.category for task in choose(tasks, ["code", "maths", "code"], 1)] == [
        "code",
        "maths",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nothing", r"p\.jsonl, line 3 is not JSON \(.*\): write one object a line"),
        ("[]", r"line 3 has no category"),
        ('{"turns": ["a"]}', r"line 3 has no category"),
        ('{"category": "", "turns": ["a"]}', r"line 3 has no category"),
        ('{"category": "x"}', r"line 3 has no text"),
        ('{"category": "x", "turns": []}', r"line 3 has no text"),
        ('{"category": "x", "turns": "abc"}', r"line 3 has no text"),
        ('{"category": "x", "turns": [3]}', r"line 3 has no text"),
        ('{"category": "x", "turns": ["\\n"]}', r"line 3 has no text"),
    ],
)
def test_a_broken_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"category": "x", "turns": ["a"]}}\n\n{line}\n')
    with pytest.raises(PromptError, match=message) as caught:
        read_tasks(str(file))
    assert "\n" not in str(caught.value)


def test_broken_files_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"category": "x", "turns": ["a"]}\r\n')
    assert read_tasks(str(file)) == [Task("x", "a")]
    file.write_bytes(b'{"category": "x", "turns": ["\xff"]}')
    with pytest.raises(PromptError, match="line 1 is not JSON"):
        read_tasks(str(file))
    file.write_bytes(b"\n")
    with pytest.raises(PromptError, match="holds no prompts"):
        read_tasks(str(file))


def test_a_prompt_that_does_not_fit_is_named() -> None:
    target = load_model(TARGET, ModelOptions(context_length=20))
    with pytest.raises(PromptError, match=r"prompt 2 \(x\) has 4 tokens, and with 17 behind it"):
        encode(TASKS, target, 17)
    with pytest.raises(PromptError, match=r"prompt 1 \(z\): this model knows the letters"):
        encode([Task("z", "?")], target, 3)


def test_the_machine_is_described() -> None:
    found = machine()
    assert found["cpu"]
    assert found["logical_cores"] == os.cpu_count()
    assert found["memory_bytes"] is None or found["memory_bytes"] > 2**28
    assert versions()["draftproof"] is not None
    assert re.fullmatch(r"[0-9a-f]{40}( with changes)?", commit() or "0" * 40)


# The command


def test_the_document(prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "b.json", tmp_path / "b.html"
    args = ("bench", TARGET, "--arm", "table:markov-draft@2", "--arm", "lookup@auto")
    short = ("--prompts", prompts, "--max-tokens", "12", "--repeats", "2", "--categories", "x")
    assert main([*args, *short, "--json", str(file), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "table:markov-draft@2" in out
    assert "texts: 10 of 10 equal plain decoding's" in out
    found = json.loads(file.read_text())
    assert set(found) >= {"machine", "versions", "commit", "options", "summary", "rows"}
    assert found["options"]["arms"] == ["table:markov-draft@2", "lookup@auto"]
    assert len(found["rows"]) == 2 * 2 * 3
    assert all(sum(n for n, _ in row["rounds"]) == 12 for row in found["rows"])
    document = page.read_text()
    assert document.startswith("<!DOCTYPE html>")
    assert document.count("<svg") == 2
    assert html(found) == document

    assert main([*args, *short, "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["options"] == found["options"]


def test_ctrl_c_writes_what_there_is(
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, real, answers = tmp_path / "b.json", EngineArm.answer, itertools.count(1)

    def interrupted(arm: EngineArm, *args: Any) -> Answer:
        if next(answers) == 8:
            raise KeyboardInterrupt
        return real(arm, *args)

    monkeypatch.setattr(EngineArm, "answer", interrupted)
    args = ("bench", TARGET, "--arm", "lookup@2", "--prompts", prompts, "--max-tokens", "12")
    assert main([*args, "--json", str(file)]) == 130
    assert "interrupted: these are the 5 answers measured by then" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["interrupted"]
    assert len(found["rows"]) == 5


def test_ctrl_c_before_the_first_answer_is_a_document_too(
    prompts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arm: EngineArm, *args: Any) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineArm, "answer", interrupted)
    args = ("bench", TARGET, "--arm", "lookup@2", "--prompts", prompts, "--max-tokens", "12")
    assert main([*args]) == 130
    assert "these are the 0 answers" in capsys.readouterr().out
    assert main([*args, "--json", "-"]) == 130
    assert json.loads(capsys.readouterr().out)["rows"] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Missing option '--arm'"),
        (("--arm", "plain@3"), "an arm is plain"),
        (("--arm", "lookup@2", "--arm", "lookup@2"), "named twice"),
        (("--arm", "nowhere.gguf"), "nowhere.gguf: no such file"),
        (("--arm", "quantize:Q4_0@2"), "quantize needs a target in a GGUF file"),
        (("--arm", "lookup@2", "--top-k", "5"), "--top-k changes nothing at temperature 0"),
        (("--arm", "lookup@2", "--device", "cpu"), "--device is for hf: models alone"),
        (("--arm", "lookup@2", "--threads", "1"), "--threads does nothing for a table"),
        (
            ("--arm", "lookup@2", "--categories", "z"),
            "no prompt is of category 'z': there are x, y",
        ),
        (("--arm", "lookup@2", "--json", "/nowhere/b.json"), "/nowhere is no folder"),
        (("--arm", "lookup@2", "--html", "/"), "is a folder: give a file"),
        (("--arm", "lookup@2", "--max-tokens", "90"), "does not fit into the context of 64"),
        (("--arm", "transformers"), "needs a target hf:FOLDER"),
    ],
)
def test_a_mistake_is_one_line(
    args: tuple[str, ...], message: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", TARGET, "--prompts", prompts, *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("draftproof: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.model
def test_the_demo_with_lookup(demo_path: str) -> None:
    text = "Copy this word by word: the fox, the dog and the crow met at the mill by the river."
    options = ModelOptions(context_length=256, threads=1)
    with Arms(demo_path, parse_arms(["lookup@3"]), options) as arms:
        tasks = encode([Task("editing", text)], arms.target, 20)
        results = run(arms.every, tasks, SamplingParams(max_tokens=20), repeats=1)
        found = results.to_json({}, arms.target.tokenizer)
    assert found["summary"]["arms"]["lookup@3"]["overall"]["acceptance_length"] > 1.2
    assert found["summary"]["arms"]["lookup@3"]["overall"]["speedup"]["value"] > 0
    assert len(found["summary"]["differences"]) == 0
