"""The planner: the formula, replays against real rounds, profiles, and the command."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof import Engine, ModelOptions, ParameterError, SamplingParams, Speculation
from draftproof.cli import main
from draftproof.drafters import load_drafter
from draftproof.models import load_model
from draftproof.plan import (
    LONGEST,
    OVERALL,
    Trace,
    limit,
    pays,
    plan,
    rounds,
    speedup,
    together,
    tokens_per_round,
)
from draftproof.plan.measure import measure_passes, plain_text, trace
from draftproof.plan.pair import Survey, batch_sizes, model_files, survey
from draftproof.plan.profiles import (
    MEASURED,
    ROOFLINE,
    WIDEST,
    Pass,
    Profile,
    load_profile,
    roofline,
    save_profile,
    shipped,
)
from draftproof.plan.report import Findings, answer
from draftproof.plan.settings import settings
from draftproof.prompts import Task

PAIR = ("table:markov", "table:markov-draft")


def flat(sizes: Sequence[int] = (1,), slope: float = 0.0) -> Profile:
    """A pass takes 1 second, and ``slope`` more for each further token."""
    passes = [
        Pass(size * width, size, 1 + slope * (size * width - size))
        for size in sizes
        for width in range(1, WIDEST + 1)
    ]
    return Profile(
        kind=MEASURED, machine="m", model="t", context=1, source="s", passes=tuple(passes)
    )


# The formula


def test_the_formula_by_hand() -> None:
    assert tokens_per_round(0.8, 4) == pytest.approx(3.3616)
    assert speedup(0.8, 4, 0.1, 1.0) == pytest.approx(2.4011, abs=1e-4)
    assert tokens_per_round(1, 7) == 8
    assert tokens_per_round(0, 7) == 1
    assert speedup(0.3, 0, 0.5, 1.0) == 1
    assert speedup(0, 3, 0.2, 1.5) == pytest.approx(1 / 2.1)


def test_the_formula_is_the_mean_of_what_happens() -> None:
    """All outcomes of k coins, each weighed by its probability."""
    for alpha, k in itertools.product((0.0, 0.3, 0.8, 1.0), range(6)):
        mean = 0.0
        for coins in itertools.product((True, False), repeat=k):
            weight = 1.0
            for coin in coins:
                weight *= alpha if coin else 1 - alpha
            mean += weight * (1 + len(list(itertools.takewhile(bool, coins))))
        assert tokens_per_round(alpha, k) == pytest.approx(mean)


@pytest.mark.parametrize(
    ("alpha", "k", "draft", "verify"),
    [
        *((-0.1, 4, 0.1, 1), (1.1, 4, 0.1, 1), (float("nan"), 4, 0.1, 1)),
        *((0.8, -1, 0.1, 1), (0.8, 4, -0.1, 1), (0.8, 4, 0.1, 0), (0.8, 4, 0.1, float("inf"))),
    ],
)
def test_the_formula_refuses_what_it_cannot_mean(
    alpha: float, k: int, draft: float, verify: float
) -> None:
    with pytest.raises(ParameterError):
        speedup(alpha, k, draft, verify)


# Traces and their replay


def traced(
    drafter: str, prompt: str, params: SamplingParams
) -> tuple[Trace, tuple[int, ...], list[int]]:
    target = load_model("table:markov")
    tokens = target.tokenizer.encode(prompt)
    task = Task("x", prompt, tuple(tokens))
    text = plain_text(target, task, params)
    speaks = load_drafter(drafter, target)
    assert speaks is not None
    return trace(task, text, target, speaks, params, LONGEST), text, tokens


SEEDED = [SamplingParams(max_tokens=40, temperature=1.0, seed=seed) for seed in range(6)]
ENDLESS = [replace(params, ignore_eos=True) for params in SEEDED]


@pytest.mark.parametrize("drafter", ["lookup", "table:markov-draft", "table:markov"])
@pytest.mark.parametrize("params", [SamplingParams(max_tokens=30), *SEEDED, *ENDLESS])
def test_a_replay_is_what_the_engine_does(drafter: str, params: SamplingParams) -> None:
    found, text, tokens = traced(drafter, "abca", params)
    assert len(found.offered) == len(text)
    with Engine("table:markov", drafter) as engine:
        for k in (0, 1, 2, 3, 5, 16):
            steps = list(engine.stream(tokens, params, Speculation(draft_length=k)))
            real = [(len(s.drafted), s.evaluated, s.accepted, len(s.tokens)) for s in steps]
            assert [tuple(one) for one in rounds(found, k)] == real


def simulated(trace: Trace, k: int, costs: list[float], draft: float) -> float:
    """The seconds of one answer, position by position."""
    at, seconds = 0, 0.0
    while at < len(trace.offered):
        seconds += costs[min(k, trace.offered[at])] + draft * min(k, trace.offered[at])
        at += 1
        for _ in range(min(k, trace.offered[at - 1], trace.accepted[at - 1])):
            at += 1
    return seconds


def random_trace(seed: int, length: int = 60) -> Trace:
    coin = random.Random(seed)
    offered = tuple(coin.randrange(LONGEST + 1) for _ in range(length))
    accepted = tuple(min(coin.randint(0, o), length - i) for i, o in enumerate(offered))
    return Trace(f"kind {seed % 2}", offered, accepted)


def test_the_plan_is_a_brute_force_simulation() -> None:
    profile, draft = flat(slope=0.07), 0.03
    traces = [random_trace(seed) for seed in range(6)]
    found = plan("d", traces, profile, {1: draft}, [1])
    costs = [1 + 0.07 * k for k in range(WIDEST)]
    for name, group in ((OVERALL, traces), ("kind 1", traces[1::2])):
        for k, one in enumerate(found.estimates[1][name]):
            seconds = sum(simulated(each, k, costs, draft) for each in group)
            assert one.k == k
            assert one.speedup.value == pytest.approx(60 * len(group) / seconds)
            assert one.speedup.low <= one.speedup.value <= one.speedup.high
            assert one.verify_cost == pytest.approx(costs[k])
            assert one.draft_cost == pytest.approx(k * draft)
    assert len(found.estimates[1][OVERALL]) == LONGEST + 1


def test_constant_acceptance_gives_the_formula() -> None:
    coin, length = random.Random(1), 4000
    hits = [coin.random() < 0.7 for _ in range(length + LONGEST)]
    run = [len(list(itertools.takewhile(bool, hits[i : i + LONGEST]))) for i in range(length)]
    offered = tuple([LONGEST] * length)
    found = plan("d", [Trace("x", offered, tuple(run))], flat(), {1: 0.05}, [1])
    for one in found.estimates[1][OVERALL]:
        assert one.speedup.value == pytest.approx(speedup(0.7, one.k, 0.05, 1.0), rel=0.05)
        assert one.formula == pytest.approx(one.speedup.value, rel=0.05)


def test_a_batch_of_equal_traces_is_one_of_them() -> None:
    """In lockstep: the batch's tokens are each one's times the size."""
    one = random_trace(3)
    for k in (0, 2, 7):
        alone = sum(1 + 0.1 * r.drafted + 0.02 * r.drafted for r in rounds(one, k))
        wide = flat([4], slope=0.1 / 4)
        tokens, seconds = together([one], k, 4, wide, 0.02)
        assert tokens >= 4 * 60
        # The first round of those that follow is counted with the last of those that ended.
        extra = next(rounds(one, k))
        assert tokens == 4 * (60 + extra.emitted)
        assert seconds == pytest.approx(alone + 1 + 0.12 * extra.drafted)


def test_a_full_batch_of_plain_decoding_gains_nothing() -> None:
    traces = [random_trace(seed, 20 + seed) for seed in range(5)]
    found = plan("d", traces, flat([1, 2, 4], slope=0.1), {1: 0.1, 2: 0.1, 4: 0.1}, [1, 2, 4])
    for groups in found.estimates.values():
        assert groups[OVERALL][0].speedup.value == pytest.approx(1)
        assert groups[OVERALL][0].formula == 1


def test_the_best_length_is_none_where_nothing_pays() -> None:
    slow = plan("d", [random_trace(s) for s in range(4)], flat(slope=2.0), {1: 1.0}, [1])
    assert slow.best().k == 0
    good = Trace("x", (LONGEST,) * 51, tuple(min(LONGEST, 51 - i) for i in range(51)))
    fast = plan("d", [good, good], flat(), {1: 0.0}, [1])
    assert fast.best().k == LONGEST
    assert fast.best().speedup.value == pytest.approx(17)
    assert pays(fast.best())
    assert "pays on m: d with a draft length of 16 gives 17.00x" in answer([slow, fast], flat())
    assert "does not pay on m" in answer([slow], flat())


def test_the_physical_limit() -> None:
    assert limit(flat()) == (17, 16)
    assert limit(flat(slope=1.0)) == (1, 16)
    speed, length = limit(load_profile("cpu-2-core-smollm2-135m-q40"))
    assert (length, speed) == (15, pytest.approx(16 * 7.6 / 54.9))


# Profiles


def test_a_profile_survives_a_file(tmp_path: Path) -> None:
    written = replace(flat([1, 4], 0.2), drafts={"lookup": {1: 1e-6, 4: 2e-6}})
    save_profile(written, tmp_path / "p.json")
    assert load_profile(str(tmp_path / "p.json")) == written


def test_those_that_come_along_say_what_they_are() -> None:
    assert {"cpu-2-core-smollm2-135m-q40", "h100-sxm-roofline-llama-3.1-8b"} <= set(shipped())
    for name in shipped():
        profile = load_profile(name)
        assert profile.source
        assert ("roofline" in name) == (profile.kind == ROOFLINE)
        assert profile.longest(1) >= 15
    q40 = load_profile("cpu-2-core-smollm2-135m-q40")
    assert (q40.plain(1), q40.verify(5, 1)) == (0.0076, 0.0216)
    assert q40.verify(7, 1) == pytest.approx((0.0258 + 0.0316) / 2)


def test_a_roofline_is_memory_then_arithmetic() -> None:
    passes = {(p.tokens, p.sequences): p.seconds for p in roofline(100, 1e9, 2e9, 1e3, 1e12, 1e13)}
    assert passes[1, 1] == pytest.approx((1e9 + 1e5) / 1e12)
    assert passes[5, 1] == passes[1, 1]
    assert passes[17, 1] == pytest.approx(17 * 2e9 / 1e13)
    assert passes[64, 64] == pytest.approx(64 * 2e9 / 1e13)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "3", "{}", "not json"),
        '{"kind": "guessed"}',
        '{"kind": "measured", "machine": "", "model": "", "source": "", "context": 1}',
        *(
            f'{{"kind": "measured", "machine": "", "model": "", "source": "", "context": 1, '
            f'"passes": {passes}}}'
            for passes in (
                *("[]", "[[1, 1]]", '[["a", 1, 1.0]]', "[[1, 2, 1.0]]", "[[1, 1, 0]]"),
                *("[[2, 1, 1.0]]", "[[1, 1, -3]]", "[7]", "{}", "[[1, 1, NaN]]"),
            )
        ),
    ],
)
def test_a_broken_profile_is_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(content)
    with pytest.raises(ParameterError, match=r"p\.json is no profile \(") as caught:
        load_profile(str(file))
    assert "\n" not in str(caught.value)


def test_a_missing_profile_names_those_there_are() -> None:
    with pytest.raises(ParameterError, match="h100-sxm"):
        load_profile("nowhere.json")


def test_batch_sizes_are_those_the_profile_knows() -> None:
    assert batch_sizes(None, None) == [1, 2, 4, 8]
    assert batch_sizes([4], None) == [1, 4]
    assert batch_sizes(None, flat([1, 2, 3])) == [1, 2]
    assert batch_sizes([3], flat([1, 2, 3])) == [1, 3]
    with pytest.raises(ParameterError, match="no batches of 8, only of 1, 2, 3"):
        batch_sizes([8], flat([1, 2, 3]))


# Measuring


def test_passes_of_every_width_are_measured_and_forgotten() -> None:
    target = load_model("table:markov", ModelOptions(max_sequences=2))
    parts: list[float] = []
    found = measure_passes(target, [0, 1, 2], [1, 2], 5, 3, parts.append)
    assert {(p.tokens, p.sequences) for p in found} == {
        (width * size, size) for size in (1, 2) for width in range(1, 6)
    }
    assert all(0 < p.low <= p.seconds <= p.high for p in found)
    assert parts[-1] == 1
    assert target.length(0) == target.length(1) == 0


TASKS = [Task("x", "ab"), Task("x", "abc"), Task("y", "ca")]


def asked(**changes: object) -> Survey:
    params = SamplingParams(max_tokens=12)
    kept = {"tasks": TASKS, "params": params, "options": ModelOptions(), "repeats": 2}
    return Survey(target="table:markov", drafters=["lookup"], **{**kept, **changes})


def test_another_machine_is_planned_for_with_the_same_traces() -> None:
    there = flat([1, 2])
    found = survey(asked(profile=there, draft_cost=0.0))
    assert list(found.plans[0].estimates) == [1, 2]
    here = survey(asked(sizes=[1]))
    for one, other in zip(
        *(which.plans[0].estimates[1][OVERALL] for which in (found, here)), strict=True
    ):
        assert one.tokens_per_round == other.tokens_per_round
        assert one.acceptance_rate == other.acceptance_rate
        assert one.verify_cost == 1
    assert here.profile.kind == MEASURED
    assert found.profile.machine == "m"


def test_what_a_draft_costs_comes_from_the_profile_where_it_knows() -> None:
    there = replace(flat(), drafts={"lookup": {1: 0.25}})
    found = survey(asked(profile=there))
    assert found.plans[0].draft_seconds == {1: 0.25}
    carried = survey(asked(profile=flat())).plans[0].draft_seconds[1]
    assert 0 < carried != 0.25
    assert survey(asked(profile=there, draft_cost=0.5)).plans[0].draft_seconds == {1: 0.5}


# Settings


def test_settings_are_complete_commands() -> None:
    files = {"t": "/m/t.gguf", "d": "/m/d.gguf"}
    found = settings("t", "d", 3, files)
    assert found["draftproof"] == ["draftproof chat --target t --draft d --draft-length 3"]
    assert found["llama.cpp"][0] == (
        "llama-server -m /m/t.gguf --spec-type draft-simple -md /m/d.gguf --spec-draft-n-max 3 "
        "--spec-draft-n-min 0 --spec-draft-p-min 0"
    )
    assert "--draft-max 3" in found["llama.cpp"][1]
    copied = settings("t", "lookup", 5, files)
    assert "--spec-type ngram-simple" in copied["llama.cpp"][0]
    assert "--spec-ngram-simple-size-m 5" in copied["llama.cpp"][0]
    both = settings("t", "lookup,d", 5, files)
    assert "--spec-type ngram-simple,draft-simple" in both["llama.cpp"][0]
    assert "vLLM" not in both


def test_settings_for_checkpoints_are_vllms() -> None:
    files = {"hf:t": "/m/t", "hf:d": "/m/d o"}
    (line,) = settings("hf:t", "hf:d", 4, files)["vLLM"]
    config = json.loads(line.partition("--speculative-config ")[2].strip("'"))
    assert config == {"method": "draft_model", "model": "/m/d o", "num_speculative_tokens": 4}
    (line,) = settings("hf:t", "lookup", 4, files)["vLLM"]
    assert '"method": "ngram"' in line
    assert settings("hf:t", "lookup", 0, files)["vLLM"] == ["vllm serve /m/t"]
    assert "llama.cpp" not in settings("hf:t", "hf:d", 4, files)
    assert list(settings("table:markov", "lookup", 4, {})) == ["draftproof"]


def test_tables_have_no_files() -> None:
    assert model_files("table:markov", ["lookup", "table:markov-draft"]) == {}


# The command


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    rows = [{"category": task.category, "turns": [task.text]} for task in TASKS]
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def test_on_paper_no_model_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    paper = ("plan", "--alpha", ".8", "--k", "4", "--draft-cost", ".1", "--verify-cost", "1")
    assert main([*paper]) == 0
    assert capsys.readouterr().out == "3.36 tokens a round, 2.40x plain decoding\n"
    assert main([*paper, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speedup"] == pytest.approx(2.4011, abs=1e-4)


def test_a_plan_of_two_drafters(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("p.json", "p.png", "p.html")]
    measured = ("plan", *PAIR, "lookup", "--prompts", prompts, "--max-tokens", "12")
    quick = ("--repeats", "2", "--batch-sizes", "1,2")
    outputs = ("--save-profile", str(files[0]), "--png", str(files[1]), "--html", str(files[2]))
    assert main([*measured, *quick, *outputs]) == 0
    out = capsys.readouterr().out
    assert "table:markov with lookup" in out
    assert "draftproof chat --target table:markov" in out
    assert files[1].read_bytes().startswith(b"\x89PNG")
    page = files[2].read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org/", "")

    assert main([*measured, "--profile", str(files[0]), "--json", "--repeats", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["drafter"] for one in found["plans"]] == ["table:markov-draft", "lookup"]
    assert list(found["plans"][0]["estimates"]) == ["1", "2"]
    assert len(found["plans"][0]["estimates"]["2"]["overall"]) == 17
    assert set(found["settings"]) == {"draftproof"}
    assert found["profile"]["drafts"].keys() == {"table:markov-draft", "lookup"}


def test_sampling_is_seeded(prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
    hot = ("plan", *PAIR, "--prompts", prompts, "--max-tokens", "6", "--temperature", "1")
    assert main([*hot, "--repeats", "1", "--batch-sizes", "1", "--json"]) == 0
    assert "temperature 1.0, seed 0" in json.loads(capsys.readouterr().out)["notes"][0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "name a target and what drafts for it"),
        (("table:markov",), "name a target and what drafts for it"),
        (("--alpha", "2"), "alpha must lie from 0 to 1"),
        (("--alpha", ".5", "table:markov"), "TARGET means nothing with --alpha"),
        (("--alpha", ".5", "--top-k", "3"), "--top-k means nothing with --alpha"),
        (("--alpha", ".5", "--verify-cost", "0"), "verify cost must be more than 0"),
        ((*PAIR, "--k", "3"), "--k is measured here"),
        ((*PAIR, "--draft-cost", ".3"), "--draft-cost is measured here"),
        ((*PAIR, "--batch-sizes", "2,x"), "batch sizes are whole numbers"),
        ((*PAIR, "--batch-sizes", "0"), "batch sizes are whole numbers"),
        ((*PAIR, "--profile", "/nowhere"), "the profile /nowhere cannot be read"),
        ((*PAIR, "--prompts", "/nowhere"), "/nowhere cannot be read"),
        ((*PAIR, "--png", "/nowhere/x.png"), "/nowhere is no folder"),
        ((*PAIR, "--categories", "chess"), "no prompt is of category 'chess'"),
        ((*PAIR, "--seed", "3"), "--seed changes nothing at temperature 0"),
        (("table:markov", "none"), "none drafts nothing"),
        (("table:nope", "lookup"), "no table is called 'nope'"),
        (PAIR, "prompt 1 (extraction): this model knows the letters a to d only"),
    ],
)
def test_a_mistake_is_one_line(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], prompts: str
) -> None:
    known = () if "--prompts" in args or args in ((), PAIR) or "--alpha" in args else ("--prompts",)
    given = (*known, prompts) if known and "--categories" not in args else ()
    assert main(["plan", *args, *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("draftproof: error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.model
def test_the_demo_with_lookup(demo_path: str) -> None:
    text = "Copy this word by word: the fox, the dog and the crow met at the mill by the river."
    options = ModelOptions(context_length=256, threads=1)
    params = SamplingParams(max_tokens=20)
    found = survey(
        Survey(
            target=demo_path,
            drafters=["lookup"],
            tasks=[Task("editing", text)],
            params=params,
            options=options,
            sizes=[1],
            repeats=1,
        )
    )
    (one,) = found.plans
    assert found.profile.longest(1) == LONGEST
    estimates = one.estimates[1][OVERALL]
    assert len(estimates) == LONGEST + 1
    assert estimates[4].tokens_per_round > 1.2
    shown = Findings(
        demo_path,
        found.plans,
        found.profile,
        1,
        [],
        settings(demo_path, "lookup", 4, model_files(demo_path, ["lookup"])),
    ).to_json()
    assert "llama.cpp" in shown["settings"]
