"""The automatic draft length beside every fixed one, by pair and kind of text, in one run.

Run ``python benchmarks/control.py --prompts FILE`` (JSONL as of ``draftproof bench``; the built-in
prompts if left out) on a quiet machine. All arms of a pair take turns on every prompt. A prompt is
read once for all of them, and what counts is the time behind the first round: tokens a second of
all prompts of a kind together. Eight streams at once come last (``control_streams.py``).

It ends with what was aimed at and what was reached, each with a bootstrap interval over prompts,
and with 1 where something is not reached. Ctrl-C ends it early, with what there is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_costs import (
    FLOORS,
    LIAR,
    AlwaysWrong,
    costs_table,
    floors,
    limits,
    measure_costs,
)
from control_numbers import MARKS, REACHED, Goal, Spent, Strata, interval, speedup, tally
from control_streams import Streams, groups, run_streams, stream_options

from draftproof import Engine, SamplingParams
from draftproof.bench import Results, run
from draftproof.bench.arms import PLAIN, EngineArm, parse_arms
from draftproof.bench.load import Arms
from draftproof.bench.summary import Row
from draftproof.checks import require
from draftproof.errors import DraftproofError
from draftproof.machine import commit, machine, versions
from draftproof.models.demo import demo_path
from draftproof.models.quantize import quantized_copy
from draftproof.plan.profiles import Profile
from draftproof.prompts import BUILT_IN, choose, encode, read_tasks
from draftproof.types import ModelOptions

PAIRS = {
    "F16 + Q8_0": ("F16", "quantize:Q8_0"),
    "F16 + lookup": ("F16", "lookup"),
    "Q4_0 + lookup": ("Q4_0", "lookup"),
    "F32 + Q4_0 + lookup": ("F32", "lookup,quantize:Q4_0"),
}
AUTO = "auto"
ALL = "all"
STALL = 20  # plain passes: no round of a quiet machine takes as long


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of a pair at a temperature.

    Attributes:
        pair: its name.
        results: all answers.
        costs: of the target's passes and of drafts.
        floors: by category, a plain lookup's speedup at these costs; empty where there is no aim.
        document: all numbers.
    """

    pair: str
    results: Results
    costs: Profile
    floors: dict[str, float]
    document: dict[str, Any]

    @property
    def title(self) -> str:
        """The pair and the temperature."""
        return f"{self.pair}, temperature {self.results.params.temperature}"

    def strata(self) -> dict[str, dict[str, Strata]]:
        """By kind of text, and for all together, every arm's tokens and seconds."""
        arms = [short(label) for label in self.results.arms]
        sums = tally(map(spent, self.results.rows), arms)
        kinds = sums[PLAIN]
        found = {kind: {arm: [sums[arm][kind]] for arm in arms} for kind in kinds}
        return found | ({ALL: {arm: [*sums[arm].values()] for arm in arms}} if kinds else {})

    def to_json(self) -> dict[str, Any]:
        """The summary of ``draftproof bench``, the costs, and all answers."""
        rows = zip(self.document["rows"], self.results.rows, strict=True)
        return {
            "pair": self.pair,
            "temperature": self.results.params.temperature,
            **self.document["summary"],
            "costs": self.costs.to_json(),
            "limits": limits(self.costs),
            "floors": self.floors,
            "prompts": [
                {"category": task.category, "token_ids": task.tokens} for task in self.results.tasks
            ],
            "rows": [{**row, "token_ids": each.answer.token_ids} for row, each in rows],
        }


def short(label: str) -> str:
    """An arm's draft length, which tells it from the others of a pair."""
    return label.rpartition("@")[2]


def spent(row: Row) -> Spent:
    """What an answer took behind its first round."""
    tokens, seconds = (sum(column) for column in zip((0, 0.0), *row.later, strict=True))
    return Spent(short(row.arm), row.category, row.task, row.repeat, int(tokens), seconds)


def measure(pair: str, temperature: float, asked: argparse.Namespace) -> Found:
    """The costs of a pair, then all its arms on all prompts."""
    kind, drafter = PAIRS[pair]
    seed = None if temperature == 0 else 1
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=asked.tokens)
    specs = parse_arms([f"{drafter}@{k}" for k in asked.lengths] + [f"{drafter}@{AUTO}"])
    with Arms(quantized_copy(demo_path(), kind), specs, ModelOptions(), cold=False) as arms:
        tasks = choose(read_tasks(asked.prompts), limit=asked.limit)
        tasks = encode(tasks, arms.target, asked.tokens)
        costs = measure_costs(arms, tasks)
        print("", pair, costs_table(costs), sep="\n", flush=True)
        liar = EngineArm(LIAR, Engine(arms.target, AlwaysWrong(3)), cold=False)
        results = run([*arms.every, liar], tasks, params, asked.repeats)
        aimed = params.greedy and pair in FLOORS
        here = floors(results.rows, tasks, params, arms.target, costs) if aimed else {}
        document = results.to_json({}, arms.target.tokenizer)
    return Found(pair, results, costs, here, document)


def goals(found: Found) -> Iterator[Goal]:
    """What is aimed at for one pair at one temperature."""
    for kind, arms in found.strata().items():
        text = f"{found.title}, {kind}:"
        plain = interval(arms[AUTO], arms[PLAIN])
        best = fastest_fixed(arms)
        against_best = interval(arms[AUTO], arms[best])
        if kind == ALL:
            yield Goal(f"{text} auto over every fixed one, the best is {best}", 1.0, against_best)
            continue
        yield Goal(f"{text} auto over the best fixed, {best}", 0.97, against_best)
        yield Goal(f"{text} auto over plain", 0.98, plain)
        yield Goal(f"{text} {LIAR} over plain", 0.98, interval(arms[LIAR], arms[PLAIN]))
        floor = FLOORS.get(found.pair, {}).get(kind)
        if found.results.params.greedy and floor is not None:
            yield Goal(f"{text} auto over plain, floor of the text", floor, plain)
        if kind in found.floors:
            what = f"{text} auto over plain, floor at this machine's costs"
            yield Goal(what, found.floors[kind], plain)


def fastest_fixed(arms: dict[str, Strata]) -> str:
    """The best fixed length in hindsight; plain decoding is one of them."""
    fixed = [arm for arm in arms if arm not in (AUTO, LIAR)]
    return max(fixed, key=lambda arm: speedup(arms[arm], arms[PLAIN]))


def table(found: Found) -> str:
    """Every arm over plain decoding, by kind of text, and how near it comes to the limit."""
    ratios = {
        kind: [speedup(arm, arms[PLAIN]) for arm in arms.values()]
        for kind, arms in found.strata().items()
    }
    if not ratios:
        return f"{found.title}: no prompt was answered by all arms"
    most = max(limit for limit, _ in limits(found.costs).values())
    best = [max(column) for column in zip(*ratios.values(), strict=True)]
    lines = [f"{found.title}: speed over plain decoding", line("", map(short, found.results.arms))]
    lines += [line(kind, (f"{one:.2f}" for one in row)) for kind, row in ratios.items()]
    lines.append(line(f"of {most:.2f}x, all", (f"{one / most:.0%}" for one in ratios[ALL])))
    lines.append(line(f"of {most:.2f}x, best", (f"{one / most:.0%}" for one in best)))
    if stalls(found):
        lines.append(f"{stalls(found)} rounds took over {STALL} plain passes: other processes ran")
    return "\n".join(lines)


def stalls(found: Found) -> int:
    """Rounds that were held up by something else."""
    most = STALL * found.costs.plain(1)
    return sum(seconds > most for row in found.results.rows for _, seconds in row.later)


def line(head: str, cells: Iterator[str]) -> str:
    return f"{head:16s}" + "".join(f"{cell[:7].strip():>8s}" for cell in cells)


def together(pair: str, asked: argparse.Namespace) -> Streams:
    """Eight streams at once, auto and plain."""
    kind, drafter = PAIRS[pair]
    options = stream_options()
    with (
        Engine(quantized_copy(demo_path(), kind), options=options) as plain,
        Engine(plain.target, drafter, options=options) as auto,
    ):
        tasks = choose(read_tasks(asked.prompts), limit=asked.limit)
        prompts = groups(encode(tasks, plain.target, asked.tokens), asked.groups)
        require(bool(prompts), "eight streams need sixteen prompts: give more, or --groups 0")
        return run_streams(pair, plain, auto, prompts, asked.tokens, asked.repeats)


def everything(asked: argparse.Namespace, document: dict[str, Any]) -> Iterator[Goal]:
    """All goals, those of a pair as soon as it is done; Ctrl-C is raised behind what there is."""
    for pair in asked.pairs:
        for temperature in asked.temperatures:
            found = measure(pair, temperature, asked)
            document["pairs"].append(found.to_json())
            print("", table(found), sep="\n", flush=True)
            yield from goals(found)
            interrupt(found.results.interrupted)
    for pair in asked.pairs if asked.groups else ():
        streams = together(pair, asked)
        document["streams"].append(streams.to_json())
        yield from streams.goals()
        interrupt(streams.interrupted)


def interrupt(interrupted: bool) -> None:
    if interrupted:
        raise KeyboardInterrupt


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="auto beside every fixed draft length")
    parser.add_argument("--prompts", default=BUILT_IN, help="JSONL file of prompts")
    parser.add_argument("--limit", type=int, default=5, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--pairs", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--repeats", type=int, default=1, help="of every arm and prompt")
    parser.add_argument(
        "--groups", type=int, default=4, help="of sixteen prompts, eight at once; 0: none"
    )
    parser.add_argument("--json", type=Path, help="write all numbers")
    return parser.parse_args()


def report(goals: Sequence[Goal]) -> None:
    """What is not reached, again, and how many are."""
    print("", *(goal for goal in goals if goal.mark != REACHED), sep="\n")
    marks = [goal.mark for goal in goals]
    print(*(f"{marks.count(mark)} {mark}" for mark in MARKS), sep=", ")


def main() -> int:
    asked = arguments()
    document: dict[str, Any] = {"machine": machine(), "versions": versions(), "commit": commit()}
    document |= {"options": vars(asked), "ended": None, "pairs": [], "streams": []}
    found: list[Goal] = []
    try:
        for goal in everything(asked, document):
            found.append(goal)
            print(goal, flush=True)
    except KeyboardInterrupt:
        document["ended"] = "interrupted"
    except DraftproofError as error:
        document["ended"] = str(error)
    report(found)
    if asked.json:
        document["goals"] = [goal.to_json() for goal in found]
        asked.json.write_text(json.dumps(document, default=str))
    if document["ended"]:
        print(f"ended early: {document['ended']}", file=sys.stderr)
    return bool(document["ended"]) or any(goal.mark != REACHED for goal in found)


if __name__ == "__main__":
    sys.exit(main())
