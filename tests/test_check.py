"""``draftproof check`` finds no fault where there is none, and every mutant of the engine."""

from __future__ import annotations

import html.parser
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import pytest
from click.testing import CliRunner

import mutants
from draftproof import (
    Chunk,
    Draft,
    DraftRequest,
    Engine,
    ModelOptions,
    SamplingParams,
    Speculation,
    Verdict,
    pages,
    rules,
)
from draftproof.check import ALPHA, QUICK, Audit, Extent, Stage, audit
from draftproof.check.check_report import html as html_page
from draftproof.check.evidence import (
    Evidence,
    _departure,
    certain,
    power_curve,
    smallest_found,
    transformed,
)
from draftproof.check.identity import rule_error
from draftproof.check.lab import Lab
from draftproof.check.near_ties import Judge
from draftproof.check.stage_law import cells
from draftproof.commands.check import check
from draftproof.drafters.lookup import LookupDrafter
from draftproof.drafters.model import ModelDrafter
from draftproof.errors import ModelLoadError, ParameterError, PromptError
from draftproof.models import table
from draftproof.prompts import Task

LETTERS = 5
SMALL = Extent(
    seconds=30, prompts=3, tokens=10, rounds=10, drafts=100, answers=60, laws=1, cells=20, runs=10
)
TINY = replace(SMALL, rounds=2, drafts=20, answers=20, tokens=5, runs=1)
SAMPLED = SamplingParams(temperature=1.0, top_k=4)


def order_two(seed: int) -> table.Table:
    """A row for each last two tokens, so that a cache that is wrong one token back shows."""
    coin = random.Random(seed)

    def row() -> list[float]:
        weights = [coin.uniform(0.2, 3) ** 2 for _ in range(LETTERS)]
        weights[3] = 0.2  # the end token
        return [weight / sum(weights) for weight in weights]

    endings = [(), *((a,) for a in range(LETTERS))]
    endings += [(a, b) for a in range(LETTERS) for b in range(LETTERS)]
    return {ending: row() for ending in endings}


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    with patch.dict(table.TABLES, {"two": order_two(1), "two-draft": order_two(2)}):
        yield


def run(
    rule: Any = None,
    drafter: str = "table:two-draft",
    params: SamplingParams = SAMPLED,
    extent: Extent = SMALL,
    seed: int = 5,
    **options: Any,
) -> Audit:
    speculation = Speculation(draft_length=3, rule=rule)
    return audit(
        *("table:two", drafter),
        params=params,
        speculation=speculation,
        extent=extent,
        seed=seed,
        **options,
    )


def failed(found: Audit) -> set[str]:
    return {stage.name for stage in found.stages if stage.faults}


# The engine as it is.


@pytest.mark.parametrize("drafter", ["table:two-draft", "lookup", "lookup,table:two-draft"])
@pytest.mark.parametrize("rule", [None, "token", "match"])
def test_the_engine_as_it_is_passes(rule: str | None, drafter: str) -> None:
    if drafter == "lookup" and rule == "token":
        rule = "match"
    found = run(rule, drafter)
    assert failed(found) == set(), [stage.worst for stage in found.stages]
    assert found.passed
    assert [stage.name for stage in found.stages] == [
        *("rules", "drafts", "greedy", "law", "seeds", "caches", "batch")
    ]


OPTIONS = [
    {"top_p": 0.8},
    {"min_p": 0.2, "temperature": 0.7},
    {"typical_p": 0.7},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"logit_bias": {0: 2.0, 2: -100}, "bad_words": ("ab", "ea")},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options))
def test_it_passes_under_the_users_options(options: dict[str, Any]) -> None:
    found = run(params=SamplingParams(**{"temperature": 1.0, **options}))
    assert failed(found) == set(), [stage.worst for stage in found.stages]


@pytest.mark.parametrize("options", [{"min_tokens": 3}, {"stop": ("a",)}, {"seed": 4}])
def test_options_of_its_own_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=f"leave out {next(iter(options))}"):
        run(params=SamplingParams(temperature=1.0, **options))


@pytest.mark.parametrize("method", ["tokens", "text"])
def test_cross_vocabulary_passes(method: str) -> None:
    assert failed(run(cross_vocabulary=method)) == set()


def test_greedy_passes_and_says_what_it_left_out() -> None:
    found = run(params=SamplingParams())
    assert found.passed
    skipped = {stage.name for stage in found.stages if stage.skipped}
    assert skipped == {"rules", "drafts", "law", "seeds"}
    assert {stage.status for stage in found.stages} == {"passed", "not applicable"}


def test_lookup_has_no_rows_to_be_honest_about() -> None:
    stages = {stage.name: stage for stage in run(drafter="lookup").stages}
    assert stages["drafts"].status == "not applicable"
    assert stages["rules"].status == "passed"
    assert list(stages["rules"].numbers["rule_errors"]) == ["match"]


def test_the_target_as_its_own_draft_brings_all_there_is() -> None:
    numbers = run(params=SamplingParams(temperature=1.0)).stages[5].numbers
    assert numbers["itself_refused"] == 0
    assert numbers["itself_drafted"] > 30


# The mutants.


def sampled_alone(drafter: ModelDrafter, requests: list[DraftRequest]) -> list[Draft]:
    """Mutant 12 reads the rows of drafts, which greedy and seeded ones do not have."""
    if requests[0].params.greedy or requests[0].params.seed is not None:
        return mutants.propose(drafter, requests)
    return mutants.unsure_dropped(drafter, requests)


Change = Callable[[], AbstractContextManager[Any]]
CHANGES: dict[int, Change] = {number: change for number, (_, change) in mutants.MUTANTS.items()}
CHANGES[12] = mutants.drafted(sampled_alone)

# Which stages find it for certain: by what was computed, not by chance.
CAUGHT_BY = {
    1: {"rules"},
    2: {"rules"},
    3: {"drafts"},
    4: {"drafts"},
    5: {"drafts"},
    6: {"rules"},
    7: {"rules"},
    8: {"rules"},
    9: {"rules"},
    10: {"rules"},
    11: {"rules"},
    12: {"drafts"},
    13: {"rules"},
    14: {"rules"},
    15: {"rules", "caches"},
    16: {"caches"},
    17: {"rules"},
    18: {"rules", "caches"},
}


@pytest.mark.parametrize("number", mutants.MUTANTS)
def test_a_mutant_makes_it_fail(number: int) -> None:
    rule = {6: "match", 7: "token", 11: "token", 15: "token", 18: "token"}.get(number)
    with CHANGES[number]():
        found = run(rule)
    assert not found.passed
    assert failed(found) >= CAUGHT_BY[number]
    for stage in found.stages:
        if stage.faults:
            assert stage.worst is not None
            assert stage.worst.what
            assert all(stage.worst.size <= fault.size for fault in stage.faults)


@pytest.mark.parametrize("number", [1, 3, 5, 9])
def test_the_law_alone_finds_a_large_fault(number: int) -> None:
    """Statistics, on their own, where enough is drawn for the departure."""
    with CHANGES[number]():
        found = run("token", params=replace(SAMPLED, top_k=3), extent=replace(SMALL, answers=2000))
    assert "law" in failed(found)


def test_every_mutant_has_its_stage() -> None:
    assert set(CAUGHT_BY) == set(mutants.MUTANTS)


def test_a_loop_that_breaks_down_is_a_fault() -> None:
    def broken(drafter: ModelDrafter, requests: list[DraftRequest]) -> list[Draft]:
        raise TypeError("no draft today")

    with patch.object(ModelDrafter, "propose", broken):
        found = run()
    assert "it broke down: TypeError: no draft today" in str(found.to_json())


# Faults that show only where several texts run at once.


def batch(found: Audit) -> Stage:
    return found.stages[6]


def neighbours_cache(model: table.TableModel, chunks: Sequence[Chunk], shift: int = 0) -> list[Any]:
    """The last sequence of a pass looks at an entry of the first one's, ``shift`` places off."""
    rows = forward(model, chunks)
    count = chunks[-1].logits
    if len(chunks) > 1 and count:
        mine, other = (model._sequences()[chunks[i].seq] for i in (-1, 0))
        place = len(mine) - count - 1 + shift
        rows[-1][0] = model._lookup([*other[max(0, place) : place + 1], mine[-count]])
    return rows


def neighbours_rows(model: table.TableModel, chunks: Sequence[Chunk]) -> list[Any]:
    """Logits come back in another order."""
    rows = forward(model, chunks)
    return rows[::-1] if len({len(each) for each in rows}) == 1 else rows


def neighbours_entries(model: table.TableModel, seq: int, length: int) -> None:
    """Rolling one sequence back takes an entry from the next one, and puts a wrong one there."""
    sequences = model._sequences()
    if len(sequences) > 1 and length < len(sequences[seq]):
        other = sequences[(seq + 1) % len(sequences)]
        other[-1:] = [0] * len(other[-1:])
    truncate(model, seq, length)


forward, truncate = table.TableModel.forward, table.TableModel.truncate


@pytest.mark.parametrize(
    ("method", "mutant"),
    [
        ("forward", neighbours_cache),
        ("forward", neighbours_rows),
        ("truncate", neighbours_entries),
    ],
)
def test_a_target_that_mixes_up_two_sequences_fails_in_a_batch_alone(
    method: str, mutant: Any
) -> None:
    with patch.object(table.TableModel, method, mutant):
        found = run()
    assert failed(found) == {"batch"}
    worst = batch(found).worst
    assert worst is not None
    assert "in a batch" in worst.what
    assert "rounding explains 0" in worst.what


def test_a_change_that_is_too_large_for_rounding_explains_nothing() -> None:
    """Copies of a text do not hide an entry that is taken from another place."""
    sure = {end: [p**8 / sum(x**8 for x in row) for p in row] for end, row in order_two(1).items()}
    shifted = partial(neighbours_cache, shift=1)
    with (
        patch.dict(table.TABLES, {"two": sure}),
        patch.object(table.TableModel, "forward", lambda *args: shifted(*args)),
    ):
        found = run()
    assert failed(found) == {"batch"}
    assert "that is no rounding" in batch(found).faults[0].what


def test_requests_that_share_a_seed_by_mistake_are_found() -> None:
    submit, last = Engine.submit, [0]

    def mutant(engine: Engine, prompt: Any, params: SamplingParams, *args: Any) -> int:
        """The seed of the request before, where others run."""
        seed, last[0] = last[0] if engine._rounds.running else params.seed, params.seed
        seed = params.seed if None in (seed, params.seed) else seed
        return submit(engine, prompt, replace(params, seed=seed), *args)

    with patch.object(Engine, "submit", mutant):
        assert failed(run()) == {"batch"}


def test_a_batch_runs_every_text_that_was_compared_alone() -> None:
    found = run()
    numbers = batch(found).numbers
    assert numbers["sequences"] == 4
    assert numbers["texts"] == 6  # three prompts, greedy and seeded
    assert numbers["accepted_drafts"] > 0
    assert "4 at a time" in batch(found).checked
    wider = run(options=ModelOptions(max_sequences=6))
    assert batch(wider).numbers["sequences"] == 6


def test_a_batch_of_one_says_so() -> None:
    model = table.load("two", ModelOptions())
    found = audit(model, LookupDrafter(), speculation=Speculation(draft_length=3), extent=TINY)
    assert found.passed
    assert batch(found).status == "not applicable"
    assert "holds one sequence" in batch(found).skipped


def test_a_pair_without_room_for_several_sequences_says_so() -> None:
    def alone(name: str, options: ModelOptions) -> table.TableModel:
        if options.max_sequences > 1:
            raise ModelLoadError("no memory is left")
        return load(name, options)

    load = table.load
    with patch.object(table, "load", alone):
        found = run(extent=TINY)
    assert found.passed
    assert "no memory is left" in batch(found).skipped


def nearly_tied(kind: type[table.TableModel], prompts: int) -> Audit:
    """An audit, without faults, of a target whose two best tokens are equal."""
    rows = {(): (0.45, 0.45, 0.1), (0,): (0.1, 0.45, 0.45), (1,): (0.45, 0.1, 0.45)}
    target = kind(rows, "nearly tied", options=ModelOptions(max_sequences=2))
    drafter = table.TableModel(rows, "draft", options=ModelOptions(max_sequences=2))
    extent = replace(SMALL, prompts=prompts, tokens=20, rounds=4)
    found = audit(target, drafter, speculation=Speculation(draft_length=3), seed=3, extent=extent)
    assert found.passed, [stage.worst for stage in found.stages]
    return found


class Crowded(table.TableModel):
    """A table whose passes over several sequences round otherwise."""

    def forward(self, chunks: Sequence[Chunk]) -> list[Any]:
        return [
            rows + (len(chunks) > 1) * 0.01 * np.sin(np.arange(rows.size)).reshape(rows.shape)
            for rows in super().forward(chunks)
        ]


def test_rounding_in_a_batch_is_measured_in_a_batch() -> None:
    found = nearly_tied(Crowded, prompts=3)
    numbers = batch(found).numbers
    assert numbers["near_ties"]
    assert 0 < numbers["rounding"] <= 0.01
    assert "part at a near tie" in batch(found).checked


# False alarms and evidence.


def test_no_seed_raises_an_alarm() -> None:
    extent = replace(TINY, prompts=1, drafts=60, answers=60)
    for seed in range(12):
        found = run(seed=seed, extent=extent)
        assert found.passed, [stage.worst for stage in found.stages]


@pytest.mark.parametrize("count", [2, 10, 40])
def test_the_evidence_is_a_martingale(count: int) -> None:
    """Its expectation stays 1 under the null: summed over all counts of a few draws."""
    chances = np.random.default_rng(count).dirichlet(np.ones(2))
    evidence = Evidence(chances)
    for total in (1, 5, 20):
        counts = np.array([[i, total - i] for i in range(total + 1)])
        binomial = [1.0]
        for i in range(1, total + 1):
            binomial.append(binomial[-1] * (total - i + 1) / i)
        null = [
            ways * chances[0] ** i * chances[1] ** (total - i) for i, ways in enumerate(binomial)
        ]
        assert float(np.exp(evidence.of(counts)) @ np.array(null)) == pytest.approx(1.0)


def test_evidence_seldom_grows_under_the_null_and_always_under_another_law() -> None:
    coins = np.random.default_rng(1)
    chances = coins.dirichlet(np.ones(16))
    highest = []
    for _ in range(100):
        evidence = Evidence(chances)
        counts = np.cumsum(coins.multinomial(1, chances, 400), axis=0)
        highest.append(float(evidence.of(counts).max()))
    # Ville: 1 in 20 ever passes 20; twice as many would be a chance of 1 in 1000.
    assert np.mean(np.array(highest) > np.log(20)) < 0.1
    other = Evidence(chances)
    for cell in coins.choice(16, 400, p=np.roll(chances, 1)):
        other.add(int(cell))
    assert certain([other])


def test_an_envelope_takes_rounding_out_of_the_evidence() -> None:
    chances = np.full(4, 0.25)
    shifted = np.array([0.27, 0.23, 0.25, 0.25])
    strict, lenient = Evidence(chances), Evidence(chances, np.maximum(chances, shifted))
    for each in (strict, lenient):
        each.counts = (shifted * 40_000).astype(int)
    assert strict.log > lenient.log
    assert lenient.log < 0
    assert lenient.slack == pytest.approx(0.02)


def test_the_power_it_states_is_the_power_it_has() -> None:
    evidence = Evidence(np.full(8, 1 / 8))
    evidence.counts = np.full(8, 250)
    curve = power_curve([evidence], seed=3)
    found = smallest_found(curve)
    assert 0.05 < found < 0.2
    assert not any(chance for variation, chance in curve if variation < 0.02)
    coins, hits = np.random.default_rng(7), 0
    for _ in range(100):
        half = coins.permutation(8)[:4]
        law = np.full(8, (0.5 - found) / 4)
        law[half] = (0.5 + found) / 4
        counts = coins.multinomial(2000, law)
        hits += float(evidence.of(counts[None])[0]) > -np.log(ALPHA)
    assert hits >= 95


@pytest.mark.parametrize("chances", [[0.25] * 4, [0.97, 0.01, 0.01, 0.01], [0.5, 0.5], [1.0, 0.0]])
@pytest.mark.parametrize("variation", [0.01, 0.2, 0.5])
def test_departures_are_as_far_as_they_are_said_to_be(
    chances: list[float], variation: float
) -> None:
    evidence = Evidence(np.array(chances))
    for seed in range(10):
        law = _departure(evidence.chances, variation, np.random.default_rng(seed))
        assert law.min() >= 0
        assert np.abs(law - evidence.chances).sum() / 2 == pytest.approx(variation, rel=1e-3)


def test_transformed_draws_are_uniform() -> None:
    coins = np.random.default_rng(2)
    row = np.array([0.1, 0.5, 0.1, 0.0, 0.3])
    values = [transformed(row, int(x), coins.random()) for x in coins.choice(5, 4000, p=row)]
    assert np.abs(np.histogram(values, bins=10, range=(0, 1))[0] - 400).max() < 100
    assert transformed(row, 1, 0.0) == 0
    assert transformed(row, 4, 0.0) == pytest.approx(0.5)
    assert transformed(row, 2, 0.0) == pytest.approx(0.9)


# The identity.


@pytest.mark.parametrize("name", ["token", "block", "match"])
def test_the_identity_holds_for_random_rows(name: str) -> None:
    coins = np.random.default_rng(4)
    for _ in range(5):
        p, q = coins.dirichlet(np.full(6, 0.5), 4), coins.dirichlet(np.full(6, 0.7), 3)
        draft = Draft(tuple(int(coins.choice(6, p=row)) for row in q), list(q))
        assert rule_error(rules.RULES[name], list(p), list(q), draft) < 1e-12


def test_the_identity_holds_for_a_deterministic_draft() -> None:
    p = list(np.random.default_rng(4).dirichlet(np.ones(6), 4))
    assert rule_error(rules.match, p, None, Draft((1, 5, 0))) < 1e-12


def test_cells_have_the_targets_chances() -> None:
    params = SamplingParams(temperature=1.0)
    model = table.load("two", ModelOptions())
    lab = Lab(model, LookupDrafter(), params, Speculation(), [[0]], seed=1)
    split = cells(lab, (0,), params, 30)
    assert split.chances.sum() == pytest.approx(1)
    assert split.envelope == pytest.approx(split.chances)
    assert len(split.chances) <= 30
    total = np.zeros(len(split.chances))
    rows = order_two(1)
    for a in range(LETTERS):
        for b in range(LETTERS):
            for c in range(LETTERS):
                total[split.of((a, b, c))] += rows[0,][a] * rows[0, a][b] * rows[a, b][c]
    assert split.chances == pytest.approx(total)


# Near ties.


@pytest.mark.parametrize(
    ("options", "second", "gap"),
    [
        ({"temperature": 0.0}, 0.98, 0.02),  # the second largest logit
        ({"top_k": 1}, 0.98, 0.02),  # top-k takes it instead
        ({"min_p": 0.5}, 0.3, 0.007),  # it comes in at the cut-off, exp(-0.693)
        ({"top_p": 0.65}, 0.3, 0.081),  # the same, where log odds of 0.7 become those of top-p
    ],
    ids=str,
)
def test_the_gap_of_a_tie_is_what_the_logits_must_move(
    options: dict[str, Any], second: float, gap: float
) -> None:
    """The least over seeds: those in whose race the second token would win."""
    row = np.array([1.0, second, -9.0])
    seeds = [None] if "temperature" in options else range(40)
    judge, gaps = Judge.__new__(Judge), []
    for seed in seeds:
        judge.params = SamplingParams(**{"temperature": 1.0, **options, "seed": seed})
        gaps.append(judge._gap(row, 3, 1))
    assert min(gaps) == pytest.approx(gap, rel=0.25)
    judge.params = replace(judge.params, temperature=0.0, seed=None)
    assert judge._gap(row, 3, 0) == 0
    assert judge._gap(row, 3, 2) == np.inf


class Rounded(table.TableModel):
    """A table whose passes over several tokens round otherwise than those over one."""

    def forward(self, chunks: Sequence[Chunk]) -> list[Any]:
        return [
            rows + (len(chunk.tokens) > 1) * 0.01 * np.sin(np.arange(rows.size)).reshape(rows.shape)
            for rows, chunk in zip(super().forward(chunks), chunks, strict=True)
        ]


def test_near_ties_are_told_apart_from_faults() -> None:
    """Two equal tokens: which one is taken depends on the pass alone."""
    found = nearly_tied(Rounded, prompts=1)
    greedy = found.stages[2]
    assert greedy.numbers["near_ties"]
    assert all(0 <= tie.gap <= tie.bound <= 0.04 for tie in greedy.data["ties"])
    assert 0 < greedy.numbers["rounding"] <= 0.02
    assert "unless rounding of a logit by 0.0" in greedy.detectable
    assert "Near ties" in html_page(found)


def test_a_wrong_greedy_token_is_no_near_tie() -> None:
    def gullible(picks: Iterator[int], draft: Draft) -> Verdict:
        return Verdict(len(draft.tokens), list(picks)[len(draft.tokens)])

    with patch("draftproof.rounds.match_picks", gullible):
        found = run()
    assert "greedy" in failed(found)
    worst = found.stages[2].worst
    assert worst is not None
    assert "rounding explains 0" in worst.what


# The command.


def invoke(*args: str) -> Any:
    return CliRunner().invoke(check, args, standalone_mode=False)


@pytest.fixture
def quick() -> Iterator[None]:
    small = replace(SMALL, rounds=4, drafts=60, answers=60, tokens=6)
    with patch("draftproof.commands.check.QUICK", small):
        yield


@pytest.mark.usefixtures("quick")
def test_the_command_shows_a_table() -> None:
    done = invoke("table:two", "table:two-draft", "--quick", "--seed", "1")
    assert done.return_value == 0
    assert "no fault found" in done.output
    for name in ("1 rules", "2 drafts", "3 greedy", "4 law", "5 seeds", "6 caches", "7 batch"):
        assert name in done.output


@pytest.mark.usefixtures("quick")
def test_the_document_is_stable_and_can_be_repeated() -> None:
    args = ("table:two", "table:two-draft", "--quick", "--seed", "1", "--json", "--top-k", "4")
    first, again = (json.loads(invoke(*args).output) for _ in range(2))
    first.pop("seconds"), again.pop("seconds")
    assert first == again
    assert set(first) == {"passed", "target", "drafter", "options", "seed", "alpha", "stages"}
    for stage in first["stages"]:
        assert set(stage) == {
            *("name", "status", "checked", "detectable", "skipped"),
            *("numbers", "fault_count", "faults"),
        }


@pytest.mark.usefixtures("quick")
def test_a_fault_is_shown_with_the_smallest_prompt_and_exit_code_1() -> None:
    with CHANGES[1]():
        done = invoke("table:two", "table:two-draft", "--quick", "--seed", "1")
        document = invoke("table:two", "table:two-draft", "--quick", "--seed", "1", "--json")
    assert done.return_value == 1
    assert "failed (rules" in done.output
    assert "shown by 1 tokens" in done.output
    faults = json.loads(document.output)["stages"][0]["faults"]
    assert faults[0]["prompt"]
    assert len(faults[0]["prompt"]) <= len(faults[-1]["prompt"])


class Links(html.parser.HTMLParser):
    """Everything a page would load from elsewhere, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.links.append(f"{tag} {value}")
            if name == "id":
                self.ids.append(value or "")


@pytest.mark.usefixtures("quick")
def test_the_page_is_one_file_with_pictures(tmp_path: Path) -> None:
    file = tmp_path / "audit.html"
    assert invoke("table:two", "table:two-draft", "--quick", "--html", str(file)).return_value == 0
    text = file.read_text()
    assert text.count("<svg") == 5
    page = Links()
    page.feed(text)
    assert page.links == []
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"url\((?!#)|@import|<script", text)
    for title in ("Drafted tokens in their rows", "Target and text", "What so many draws find"):
        assert title in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["table:two", "none"], "nothing is drafted"),
        (["table:two", "table:two-draft", "--draft-length", "0"], "x>=1"),
        (["table:two", "lookup", "--rule", "block"], "is not used by lookup"),
        (["table:two", "nowhere.gguf"], "no such file"),
        (["table:two", "table:two-draft", "--prompts", "nowhere.jsonl"], "cannot be read"),
        (["table:two", "table:two-draft", "--temperature", "0", "--top-k", "4"], "changes nothing"),
    ],
)
def test_mistakes_are_refused(args: list[str], message: str) -> None:
    done = invoke(*args)
    assert message in str(done.exception)


def test_ctrl_c_ends_it() -> None:
    with patch("draftproof.commands.check.audit", side_effect=KeyboardInterrupt):
        assert isinstance(invoke("table:two", "lookup").exception, click.Abort)


def test_a_prompt_the_target_cannot_read_is_refused() -> None:
    with pytest.raises(PromptError, match="letters"):
        run(tasks=[Task("any", "Hello")])
    assert run(tasks=[Task("any", "ab"), Task("any", "c")], extent=TINY).passed


# Pages.


def drawn(title: str) -> str:
    picture = pages.figure(3, 2)
    axes = picture.subplots()
    axes.plot([1, 2], [1, 2], label="black & white", color="black")
    axes.set_title(title)
    axes.legend()
    return pages.svg(picture)


def test_a_picture_is_a_function_of_what_it_shows() -> None:
    one, other = drawn("a < b"), drawn("c")
    assert one == drawn("a < b")
    assert not set(re.findall(r'\bid="([^"]*)"', one)) & set(re.findall(r'\bid="([^"]*)"', other))
    assert 'aria-label="a &lt; b"' in one
    assert "black &amp; white</text>" in one
    assert "#000000" not in one
    assert "#ffffff" not in one


def test_a_table_escapes_and_sets_numbers_to_the_right() -> None:
    text = pages.table(["name", "ms", "speed"], [["<b>", 1.23456, "2.1x"], ["2", 3, "-"]])
    assert "&lt;b&gt;" in text
    assert '<td class="number">1.235</td>' in text
    assert '<td class="number">2.1x</td>' in text
    assert "<td>2</td>" in text


def test_a_page_asks_for_nothing_else() -> None:
    text = pages.page("A & B", ["<p>one</p>"])
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>A &amp; B</title>" in text
    assert "<p>one</p>" in text
    assert not re.search(r"https?:", text)


@pytest.mark.model
def test_the_demo_model_passes(demo_path: str, q40_path: str) -> None:
    extent = replace(
        QUICK, seconds=9, prompts=1, tokens=12, rounds=4, drafts=24, answers=40, runs=10
    )
    found = audit(
        *(demo_path, q40_path),
        params=SamplingParams(temperature=0.8, top_p=0.95),
        options=ModelOptions(context_length=256, threads=1),
        tasks=[Task("any", "Name three rivers in Europe."), Task("any", "Why does ice float?")],
        seed=1,
        extent=extent,
    )
    assert found.passed, [stage.worst for stage in found.stages]
    assert all(stage.status == "passed" for stage in found.stages)
    assert found.stages[0].numbers["vocabulary"] == 49152
    assert found.stages[0].numbers["largest_row_error"] < 1e-6


def test_a_drafter_that_cannot_be_loaded_again_is_not_run_in_a_batch() -> None:
    """It was made for the target that is freed by then."""
    found = run(drafter=LookupDrafter(), extent=TINY)
    assert found.passed
    assert "give its spec" in batch(found).skipped
