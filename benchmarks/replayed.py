"""The choice of draft lengths by itself: recorded answers, at the costs of any machine.

Run ``python benchmarks/replayed.py FOUND.json --costs PROFILE`` on what ``control.py --json``
wrote; a profile as of ``draftproof plan --profile``, or ``here`` for the costs measured with the
answers.

The engine, the controller and lookup are the real ones. The target gives back the recorded greedy
answer, and its passes take what the profile says, on a clock of their own: the loop costs nothing,
and there is no noise but what ``--noise`` adds. What is left is the decision.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from control_costs import DRAFTED, FLOORS, LIAR, AlwaysWrong, PlainLookup

from draftproof import Drafter, Engine, SamplingParams, Speculation
from draftproof.bench.arms import PLAIN
from draftproof.control.latency import Table
from draftproof.drafters.chain import ChainDrafter
from draftproof.drafters.lookup import LookupDrafter
from draftproof.models import Capabilities, Chunk
from draftproof.models.table import LetterTokenizer
from draftproof.plan.profiles import Profile, load_profile, profile_of
from draftproof.types import Array

AUTO, FLOOR = "auto", "simple@3"
END = 0
CALIBRATED = (*range(1, 10), 13, 17)


class Text(NamedTuple):
    """A prompt and its recorded answer, with token ids that count from 1; the end token is 0."""

    category: str
    prompt: list[int]
    answer: list[int]


class Recorded:
    """A target that knows its answer.

    Args:
        profile: what its passes take.
        vocabulary: V.
        noise: standard deviation of the logarithm of what a pass takes.
    """

    name = "recorded"

    def __init__(self, profile: Profile, vocabulary: int, noise: float) -> None:
        self.tokenizer = LetterTokenizer(vocabulary, END)
        self.capabilities = Capabilities(context_length=1 << 16, vocabulary=vocabulary)
        self.text: list[int] = []
        self.now = 0.0
        self._profile, self._noise = profile, noise
        self._coin = random.Random(1)
        self._cached = 0

    def clock(self) -> float:
        """Seconds that the passes took."""
        return self.now

    def seconds(self, tokens: int) -> float:
        """What a pass takes; a prompt's as many of the widest ones as it needs."""
        widest = self._profile.longest(1) + 1
        times, rest = divmod(tokens, widest)
        return times * self._profile.verify(widest, 1) + (
            self._profile.verify(rest, 1) if rest else 0
        )

    def forward(self, chunks: Sequence[Chunk]) -> list[Array]:
        """See ``Model.forward``."""
        (chunk,) = chunks
        self._cached += len(chunk.tokens)
        rows = np.zeros((chunk.logits, self.capabilities.vocabulary), np.float32)
        for row, place in enumerate(range(self._cached - chunk.logits + 1, self._cached + 1)):
            rows[row, self.text[place] if place < len(self.text) else END] = 1
        noise = self._coin.lognormvariate(0, self._noise) if self._noise else 1.0
        self.now += self.seconds(len(chunk.tokens)) * noise
        return [rows]

    def length(self, seq: int) -> int:
        """See ``Model.length``."""
        return self._cached

    def truncate(self, seq: int, length: int) -> None:
        """See ``Model.truncate``."""
        self._cached = min(self._cached, length)

    def close(self) -> None:
        """See ``Model.close``."""


def texts(found: dict[str, Any]) -> list[Text]:
    """The plain arm's answers of a pair."""
    answers = {row["prompt"]: row["token_ids"] for row in found["rows"] if row["arm"] == PLAIN}
    longest = max(map(len, answers.values()))
    return [
        renumbered(prompt["category"], prompt["token_ids"], answers[number], longest)
        for number, prompt in enumerate(found["prompts"])
        if number in answers
    ]


def renumbered(category: str, prompt: list[int], answer: list[int], longest: int) -> Text:
    """An answer shorter than others has ended by itself: its last token is the end."""
    ids: dict[int, int] = {}
    known = [ids.setdefault(token, len(ids) + 1) for token in (*prompt, *answer)]
    answer = known[len(prompt) :]
    ended = [*answer[:-1], END] if len(answer) < longest else answer
    return Text(category, known[: len(prompt)], ended)


def replay(
    every: Sequence[Text], target: Recorded, make: Callable[[], Drafter] | None, length: int | None
) -> dict[str, float]:
    """Tokens a second behind the first round, by kind of text and for all.

    Args:
        every: the texts, one after the other.
        target: gives them back.
        make: makes the drafter.
        length: the draft length, None for auto.
    """
    chain = ChainDrafter([make()], target.clock) if make else None
    if chain:
        chain.control.estimates.target.adopt(Table({n: target.seconds(n) for n in CALIBRATED}))
    engine = Engine(target, chain, speculation=Speculation(draft_length=length))
    params = SamplingParams(max_tokens=max(len(text.answer) for text in every))
    sums: dict[str, Array] = {}
    for text in every:
        spent = one_answer(engine, target, text, params)
        for kind in (text.category, "all"):
            sums[kind] = sums.get(kind, 0) + spent
    return {kind: tokens / seconds for kind, (tokens, seconds) in sorted(sums.items())}


def one_answer(engine: Engine, target: Recorded, text: Text, params: SamplingParams) -> Array:
    """Tokens and seconds behind the first round, [2]."""
    target.text = [*text.prompt, *text.answer]
    request = engine.submit(text.prompt, params)
    steps = engine.follow(request)
    while not (first := next(steps)).tokens:
        pass
    begun = target.now
    tokens = sum(len(step.tokens) for step in steps)
    assert engine.completion(request).token_ids == tuple(text.answer)
    assert tokens == len(text.answer) - len(first.tokens)
    return np.array([tokens, target.now - begun])


def costs(name: str, found: dict[str, Any]) -> Profile:
    """The profile that was asked for."""
    return profile_of(found["costs"]) if name == "here" else load_profile(name)


def report(found: dict[str, Any], asked: argparse.Namespace) -> None:
    """Every arm over plain decoding, and auto over the best fixed length."""
    every, profile = texts(found), costs(asked.costs, found)
    vocabulary = 1 + max(max(*text.prompt, *text.answer) for text in every)
    arms: dict[str, tuple[Callable[[], Drafter] | None, int | None]] = {
        PLAIN: (None, 0),
        **{str(k): (LookupDrafter, k) for k in asked.lengths},
        FLOOR: (PlainLookup, DRAFTED),
        AUTO: (LookupDrafter, None),
        LIAR: (lambda: AlwaysWrong(END), None),
    }
    speeds = {
        name: replay(every, Recorded(profile, vocabulary, asked.noise), *arm)
        for name, arm in arms.items()
    }
    floors = FLOORS.get(found["pair"], {})
    print(f"\n{found['pair']}: answers replayed at the costs of {profile.machine}, {profile.model}")
    print(f"{'':16s}" + "".join(f"{name[:8]:>9s}" for name in (*arms, "of best", "floor")))
    for kind, plain in speeds[PLAIN].items():
        fixed = max(speeds[name][kind] for name in (PLAIN, *map(str, asked.lengths)))
        cells = [f"{speeds[name][kind] / plain:9.2f}" for name in arms]
        cells += [f"{speeds[AUTO][kind] / fixed:9.3f}", f"{floors.get(kind, ''):>9}"]
        print(f"{kind:16s}" + "".join(cells))


def main() -> None:
    """Print a table for each pair that drafts by lookup."""
    parser = argparse.ArgumentParser(description="the choice of draft lengths by itself")
    parser.add_argument("found", type=Path, help="what control.py --json wrote")
    parser.add_argument("--costs", default="here", help="a profile, or here (default)")
    parser.add_argument("--noise", type=float, default=0.0, help="of a pass, as a part")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(range(1, 9)))
    asked = parser.parse_args()
    for found in json.loads(asked.found.read_text())["pairs"]:
        if found["temperature"] == 0:
            report(found, asked)


if __name__ == "__main__":
    main()
