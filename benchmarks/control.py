"""The automatic draft length beside every fixed one, by pair and kind of text, in one run.

Run ``python benchmarks/control.py --prompts FILE`` (JSONL as of ``draftproof bench``; the built-in
prompts if left out) on a quiet machine. All arms of a pair take turns on every prompt. What is
said of a kind of text rests on its tokens a second, all its prompts together.

It ends with what was aimed at and what was reached, and with 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from draftproof import Draft, DraftRequest, Engine, SamplingParams, Speculation
from draftproof.bench import run
from draftproof.bench.arms import EngineArm, parse_arms
from draftproof.bench.load import Arms
from draftproof.models.demo import demo_path
from draftproof.models.quantize import quantized_copy
from draftproof.prompts import BUILT_IN, choose, encode, read_tasks
from draftproof.types import ModelOptions

PAIRS = {
    "F16 + Q8_0": ("F16", "quantize:Q8_0"),
    "F16 + lookup": ("F16", "lookup"),
    "Q4_0 + lookup": ("Q4_0", "lookup"),
    "F32 + Q4_0 + lookup": ("F32", "lookup,quantize:Q4_0"),
}
AUTO, LIAR, PLAIN = "auto", "always wrong", "plain"
FLOORS = {  # a plain lookup at k = 3, replayed over greedy answers of this model
    "F16 + lookup": {
        "extraction": 1.64,
        "translation": 1.46,
        "rag": 1.40,
        "summarization": 1.31,
        "math": 1.25,
        "coding": 1.22,
        "qa": 1.04,
        "writing": 1.03,
    },
    "Q4_0 + lookup": {
        "extraction": 1.37,
        "translation": 1.30,
        "rag": 1.17,
        "summarization": 1.09,
        "math": 1.09,
        "coding": 1.08,
        "qa": 0.95,
        "writing": 0.96,
    },
}


class AlwaysWrong:
    """Proposes one token that never comes, at full length; free, as the worst case."""

    name = LIAR

    def __init__(self, token: int) -> None:
        self._token = token

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See ``Drafter.propose``."""
        return [Draft((self._token,) * request.length) for request in requests]

    def close(self) -> None:
        """See ``Drafter.close``."""


class Goal(NamedTuple):
    """Something aimed at."""

    what: str
    aim: float
    found: float

    def __str__(self) -> str:
        mark = "reached" if self.found >= self.aim else "MISSED"
        return f"{mark:8s} {self.found:6.3f} (aim {self.aim:.2f})  {self.what}"


def measure(pair: str, params: SamplingParams, asked: argparse.Namespace) -> dict[str, Any]:
    """All arms of a pair on all prompts: the summary of ``draftproof bench``."""
    kind, drafter = PAIRS[pair]
    specs = parse_arms([f"{drafter}@{k}" for k in asked.lengths] + [f"{drafter}@auto"])
    with Arms(quantized_copy(demo_path(), kind), specs, ModelOptions()) as arms:
        liar = EngineArm(LIAR, Engine(arms.target, AlwaysWrong(3), speculation=Speculation()))
        tasks = choose(read_tasks(asked.prompts), limit=asked.limit)
        tasks = encode(tasks, arms.target, asked.tokens)
        results = run([*arms.every, liar], tasks, params, repeats=1)
        found = results.to_json({}, arms.target.tokenizer)
    if results.interrupted:
        raise KeyboardInterrupt
    return {"pair": pair, "temperature": params.temperature, **found["summary"]}


def speeds(found: dict[str, Any], category: str | None = None) -> dict[str, float]:
    """Tokens a second of every arm, by its length; plain decoding is length 0."""
    return {
        name.rpartition("@")[2]: (arm["categories"][category] if category else arm["overall"])[
            "tokens_per_second"
        ]
        for name, arm in found["arms"].items()
    }


def goals(found: dict[str, Any], greedy: bool) -> Iterator[Goal]:
    """What is aimed at for one pair."""
    where = f"{found['pair']}, temperature {found['temperature']}"
    for category in found["categories"]:
        speed = speeds(found, category)
        fixed = {k: v for k, v in speed.items() if k not in (AUTO, LIAR)}
        best = max(fixed, key=lambda k: fixed[k])
        text = f"{where}, {category}"
        yield Goal(f"{text}: auto over the best fixed, {best}", 0.97, speed[AUTO] / fixed[best])
        yield Goal(f"{text}: auto over plain", 0.98, speed[AUTO] / speed[PLAIN])
        yield Goal(f"{text}: always wrong over plain", 0.98, speed[LIAR] / speed[PLAIN])
        floor = FLOORS.get(found["pair"], {}).get(category)
        if floor and greedy:
            yield Goal(f"{text}: auto over plain, floor", floor, speed[AUTO] / speed[PLAIN])
    speed = speeds(found)
    best = max(value for k, value in speed.items() if k not in (AUTO, LIAR))
    yield Goal(f"{where}: auto over every fixed one, all texts", 1.0, speed[AUTO] / best)


def together(pair: str, asked: argparse.Namespace) -> Goal:
    """Eight streams at once: auto over plain, turns about, tokens a second."""
    kind, drafter = PAIRS[pair]
    options = ModelOptions(max_sequences=8, context_length=2048)
    specs = parse_arms([f"{drafter}@auto"])
    rates: dict[str, list[float]] = {}
    with Arms(quantized_copy(demo_path(), kind), specs, options) as arms:
        tasks = encode(choose(read_tasks(asked.prompts), limit=2), arms.target, asked.tokens)
        prompts = [list(task.tokens) for task in tasks][:24]
        params = SamplingParams(max_tokens=asked.tokens, ignore_eos=True)
        for start in range(0, len(prompts), 8):
            for arm in arms.every:
                done = arm._engine.generate_many(prompts[start : start + 8], params)
                seconds = max(one.stats.total - one.stats.ttft for one in done)
                tokens = sum(one.stats.completion_tokens - one.stats.first for one in done)
                rates.setdefault(arm.label, []).append(tokens / seconds)
    plain, auto = (sum(values) for values in rates.values())
    return Goal(f"{pair}: eight streams, auto over plain", 0.98, auto / plain)


def table(found: dict[str, Any]) -> str:
    """Every arm over plain decoding, by kind of text."""
    names = list(speeds(found))
    head = f"{found['pair']}, temperature {found['temperature']}"
    lines = ["", head, f"{'':16s}" + "".join(f"{name[:7]:>8s}" for name in names)]
    for category in (*found["categories"], None):
        speed = speeds(found, category)
        cells = "".join(f"{speed[name] / speed[PLAIN]:8.2f}" for name in names)
        lines.append(f"{category or 'all':16s}{cells}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="auto beside every fixed draft length")
    parser.add_argument("--prompts", default=BUILT_IN, help="JSONL file of prompts")
    parser.add_argument("--limit", type=int, default=5, help="prompts of each kind")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--pairs", nargs="+", choices=list(PAIRS), default=list(PAIRS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--json", type=Path, help="write all numbers")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    every: list[Goal] = []
    documents = []
    for temperature in asked.temperatures:
        for pair in asked.pairs:
            params = SamplingParams(
                temperature=temperature,
                seed=None if temperature == 0 else 1,
                max_tokens=asked.tokens,
                ignore_eos=True,
            )
            found = measure(pair, params, asked)
            documents.append(found)
            print(table(found), flush=True)
            every += goals(found, params.greedy)
    every += [together(pair, asked) for pair in asked.pairs]
    print("", *every, sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps({"pairs": documents, "goals": every}))
    return any(goal.found < goal.aim for goal in every)


if __name__ == "__main__":
    sys.exit(main())
