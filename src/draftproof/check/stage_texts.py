"""Stages 3, 5 and 7: is the text with speculation the text without: greedy, seeded, in a batch?

What the first two have compared runs again in the third, as many texts at once as the target holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from draftproof.check.clock import Clock, Extent
from draftproof.check.findings import Fault, Stage
from draftproof.check.lab import Lab
from draftproof.check.near_ties import LARGEST_NOISE, Judge, Tie, empty
from draftproof.engine import Engine
from draftproof.params import SamplingParams
from draftproof.stats import Completion
from draftproof.types import Speculation

RUNNING = 0.5  # of a batch's time no more texts begin: the rest is for judging them


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A prompt's text, alone.

    Attributes:
        prompt: token ids.
        params: greedy, or with a seed.
        plain: without speculation.
        fast: with it.
    """

    prompt: Sequence[int]
    params: SamplingParams
    plain: Completion
    fast: Completion


@dataclass(slots=True)
class _Differences:
    """Where texts part from plain decoding's, and why.

    Attributes:
        lab: whose texts they are.
        stage: takes the faults.
        ours, theirs: how the texts came about, and plain decoding's.
        count: texts that ran at once.
        ties: what rounding explains.
        noise: largest change of a logit by rounding that was seen.
    """

    lab: Lab
    stage: Stage
    ours: str
    theirs: str
    count: int = 1
    ties: list[Tie] = field(default_factory=list)
    noise: float = 0.0

    def judge(self, text: Text, other: Completion) -> None:
        """A near tie, or a fault."""
        tokens, known = text.plain.token_ids, self.noise if self.count > 1 else 0.0
        judge = Judge(
            *(self.lab, text.prompt, tokens, text.params, self.lab.longest + 1, self.count, known)
        )
        pairs = enumerate(zip(tokens, other.token_ids, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), None)
        if self.count > 1 and judge.noise > LARGEST_NOISE:
            self._add(text, place or 0, self._no_rounding(judge.noise))
        elif place is None:
            self._add(text, min(len(tokens), len(other.token_ids)), self._ends(text.plain, other))
        else:
            tie = judge.tie(place, tokens[place], other.token_ids[place])
            if tie.near:
                self.ties.append(tie)
            else:
                self._add(text, place, self._apart(tie))
        self.noise = max(self.noise, judge.noise)

    def _ends(self, plain: Completion, other: Completion) -> str:
        ends = f"{plain.finish_reason} after {len(plain.token_ids)} tokens"
        return (
            f"{ends} {self.theirs}, {other.finish_reason} after {len(other.token_ids)} {self.ours}"
        )

    def _no_rounding(self, noise: float) -> str:
        return (
            f"it is another text {self.ours}, and a logit changes by {noise:.2g} when {self.count} "
            "copies of it are read at once: that is no rounding"
        )

    def _apart(self, tie: Tie) -> str:
        return (
            f"token {tie.other} {self.ours}, {tie.plain} {self.theirs}; a gap of {tie.gap:.4g}, "
            f"and rounding explains {tie.bound:.4g}"
        )

    def _add(self, text: Text, place: int, what: str) -> None:
        prompt = tuple(text.prompt)
        position = len(prompt) + place
        fault = Fault(what=what, prompt=prompt, text=self.lab.text(prompt), position=position)
        self.stage.faults.append(fault)

    def summarise(self, done: Sequence[Completion]) -> Stage:
        """The stage, with what was seen in these texts."""
        stage, ties = self.stage, self.ties
        tokens = sum(len(one.token_ids) for one in done)
        accepted = sum(one.stats.accepted for one in done)
        stage.numbers = {
            "texts": len(done),
            "tokens": tokens,
            "accepted_drafts": accepted,
            "near_ties": [tie.to_json() for tie in ties],
            "rounding": self.noise if ties or stage.faults else None,
        }
        stage.data = {"ties": ties}
        stage.checked = (
            f"{len(done)} texts of {tokens:,} tokens, {accepted:,} of them accepted drafts"
        )
        stage.detectable = "any other token in these texts"
        if ties:
            same = len(done) - len(ties) - len(stage.faults)
            stage.checked += f": {same} equal, {len(ties)} part at a near tie"
            stage.detectable += f", unless rounding of a logit by {self.noise:.2g} explains it"
        return stage


def _told(one: Completion) -> tuple[object, ...]:
    """What has to be the same."""
    return one.token_ids, one.text, one.finish_reason


def check_greedy(lab: Lab, clock: Clock, extent: Extent, texts: list[Text]) -> Stage:
    """Temperature 0. Appends to ``texts`` what it compared."""
    params = SamplingParams(max_tokens=extent.tokens)
    return _compare(lab, clock, extent, Stage(name="greedy"), lambda number: params, texts)


def check_seeds(lab: Lab, clock: Clock, extent: Extent, texts: list[Text]) -> Stage:
    """The user's sampling options, each prompt with a seed of its own. Appends to ``texts``."""
    params = replace(lab.params, max_tokens=extent.tokens)
    return _compare(
        *(lab, clock, extent, Stage(name="seeds")),
        *(lambda number: replace(params, seed=lab.seed + number), texts),
    )


def _compare(
    lab: Lab,
    clock: Clock,
    extent: Extent,
    stage: Stage,
    options: Callable[[int], SamplingParams],
    texts: list[Text],
) -> Stage:
    """Plain decoding against speculation, of the user's draft length and of auto in turns."""
    ways = [replace(lab.speculation, rule=None), Speculation()]
    differences = _Differences(lab, stage, "with speculation", "without")
    plain, fast = Engine(lab.target), Engine(lab.target, lab.drafter)
    done: list[Completion] = []
    for number, prompt in enumerate(lab.prompts[: extent.prompts]):
        if done and not clock.left():
            break
        params = options(number)
        one, other = plain.generate(prompt, params), fast.generate(prompt, params, ways[number % 2])
        texts.append(Text(prompt, params, one, other))
        done.append(other)
        if _told(one) != _told(other):
            differences.judge(texts[-1], other)
            plain, fast = Engine(lab.target), Engine(lab.target, lab.drafter)
    return differences.summarise(done)


def check_batch(lab: Lab, clock: Clock, texts: Sequence[Text]) -> Stage:
    """The texts again, several at once; each is to be what it was alone, or plain decoding's.

    Args:
        lab: a pair that holds several sequences.
        clock: how long it may take.
        texts: what was compared alone.
    """
    stage, count = Stage(name="batch"), lab.target.capabilities.max_sequences
    if count == 1 or len(texts) < 2:
        stage.skipped = "the target holds one sequence" if count == 1 else "there are no two texts"
        return stage
    done = _together(lab, clock, sorted(texts, key=lambda text: len(text.prompt)), count)
    empty(lab.target, count)  # judging is to begin with a cache in which there is nothing
    differences = _Differences(lab, stage, "in a batch", "alone", count)
    for text, one in done:
        if _told(one) not in (_told(text.plain), _told(text.fast)):
            differences.judge(text, one)
    differences.summarise([one for _, one in done])
    stage.numbers["sequences"] = count
    stage.checked += f"; {min(count, len(done))} at a time"
    return stage


def _together(
    lab: Lab, clock: Clock, texts: Sequence[Text], count: int
) -> list[tuple[Text, Completion]]:
    """Texts and what they are in a batch; where one ends another begins, while there is time."""
    engine, speculation = Engine(lab.target, lab.drafter), Speculation(draft_length=lab.longest)
    waiting, running = deque(texts), dict[int, Text]()
    done: list[tuple[Text, Completion]] = []
    while True:
        begun = len(done) + len(running)
        while waiting and len(running) < count and (begun < count or clock.left(RUNNING)):
            text = waiting.popleft()
            running[engine.submit(text.prompt, text.params, speculation)] = text
            begun += 1
        if not running:
            return done
        ended = [step.request for step in engine.step() if step.finish_reason]
        done += [(running.pop(each), engine.completion(each)) for each in ended]
