"""The pair under observation: the real loop, with everything that passes through it written down.

Nothing of the loop is replaced. It is watched where it judges, and a request's coins can be had
again and keep what was asked of them. One sequence runs at a time: alone in its pass, it is read in
the same shapes as a fresh text that it is compared to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, to_device

from draftproof import sequence as requests
from draftproof.check.findings import Fault
from draftproof.drafters import Drafter
from draftproof.models import Model
from draftproof.noise import At, FreshNoise, Purpose, key
from draftproof.params import SamplingParams
from draftproof.rounds import Rounds
from draftproof.types import Array, Draft, Speculation, Step

USUAL = 8  # drafts of a round, at most, where their number is chosen while running


class Coins(FreshNoise):
    """Fresh noise that can be had again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed


class Draw(NamedTuple):
    """A token that was drawn: from what (not normalised, [V]), and where."""

    weights: Array
    token: int
    at: At


class Toss(NamedTuple):
    """A coin that was tossed: its chance, and where."""

    chance: float
    at: At


class Recorder:
    """Coins that write down what is asked of them.

    Args:
        seed: the same seed, the same answers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draws: list[Draw] = []
        self.tosses: list[Toss] = []
        self.reused: list[At] = []
        self._coins = Coins(seed)
        self._asked: set[At] = set()

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        """See ``Noise.below``."""
        self._note(at)
        self.tosses.append(Toss(min(1.0, float(numerator) / float(denominator)), at))
        return self._coins.below(numerator, denominator, at)

    def draw(self, weights: Array, at: At) -> int:
        """See ``Noise.draw``."""
        self._note(at)
        token = self._coins.draw(weights, at)
        self.draws.append(Draw(plain_array(weights), token, at))
        return token

    def _note(self, at: At) -> None:
        if at in self._asked:
            self.reused.append(at)
        self._asked.add(at)

    def clear(self) -> None:
        """Forget the last round's questions, but not that they were asked."""
        self.draws, self.tosses, self.reused = [], [], []


class WatchedRounds(Rounds):
    """The loop, which keeps what it judged last: the draft, and the rows of its logits."""

    judged: tuple[Draft, Array] | None = None

    def _judge(self, work: Any, logits: Array) -> Any:
        self.judged = None
        if not work.reading:
            count = len(work.draft.tokens) + 1
            self.judged = work.draft, plain_array(logits[logits.shape[0] - count :])
        return super()._judge(work, logits)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What happened to one sequence in one round that had a draft.

    Attributes:
        prompt: tokens of the prompt.
        context: committed tokens when it began, the prompt's included.
        draft: k tokens, and their rows as NumPy arrays.
        logits: the target's, [k+1, V].
        seed: of the request's coins.
        draws, tosses, reused: what was asked of them in this round.
        step: what came out.
    """

    prompt: tuple[int, ...]
    context: tuple[int, ...]
    draft: Draft
    logits: Array
    seed: int
    draws: tuple[Draw, ...]
    tosses: tuple[Toss, ...]
    reused: tuple[At, ...]
    step: Step

    def drawn(self, purpose: Purpose) -> list[Draw]:
        """The draws for drafts, or all others."""
        drafts = purpose is Purpose.DRAFT
        return [draw for draw in self.draws if (draw.at.purpose is Purpose.DRAFT) == drafts]


def fault(lab: Lab, one: Round, what: str, place: int = 0) -> Fault:
    """A fault at a place of a round's draft."""
    context = one.context
    return Fault(
        what=what, prompt=context, text=lab.text(context), position=len(context) + max(0, place)
    )


def plain_array(array: Array) -> Array:
    """A copy in NumPy, in float32 or float64: other libraries have types that NumPy has not."""
    if not isinstance(array, np.ndarray):
        xp = array_namespace(array)
        exact = array if array.dtype == xp.float64 else xp.astype(array, xp.float32)
        array = np.asarray(to_device(exact, "cpu"))
    return np.array(array, dtype=np.float32 if array.dtype == np.float32 else np.float64)


@dataclass(slots=True)
class Lab:
    """A pair, how it is used, and the seed of the audit's coins.

    Attributes:
        target: the target.
        drafter: the drafter.
        params: sampling options of a user; no seed.
        speculation: how the user speculates.
        prompts: token ids, shortest first.
        seed: the audit's own.
    """

    target: Model
    drafter: Drafter
    params: SamplingParams
    speculation: Speculation
    prompts: Sequence[list[int]]
    seed: int
    _runs: int = field(default=0)

    @property
    def longest(self) -> int:
        """Most drafts of a round, or as many as are usual."""
        length = self.speculation.draft_length
        return USUAL if length is None else length

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as people read them."""
        piece = self.target.tokenizer.piece
        return b"".join(piece(token) for token in tokens).decode("utf-8", errors="replace")

    def coin(self) -> int:
        """The seed of another run."""
        self._runs += 1
        return key(self.seed, self._runs)

    def observe(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        speculation: Speculation,
        drafter: Drafter | None = None,
    ) -> Iterator[Round]:
        """Run prompts one after another and look at every round that has a draft.

        Whoever iterates must leave the target alone meanwhile.
        """
        rounds = WatchedRounds(self.target, drafter or self.drafter, 256)
        for prompt in prompts:
            each, noise = self._sequence(prompt, params, speculation)
            rounds.waiting.append(each)
            while not each.finish_reason:
                noise.clear()
                for _, step in rounds.run():
                    if rounds.judged and rounds.judged[0].tokens and step.tokens:
                        yield _round(each, noise, *rounds.judged, step)
            rounds.remove(each)
            if each.error is not None:
                raise each.error

    def request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        speculation: Speculation | None = None,
    ) -> requests.Sequence:
        """A request as the engine makes it, that nothing runs yet."""
        target, speculation = self.target, speculation or Speculation()
        return requests.Sequence(
            *(0, list(prompt), params, speculation, target.tokenizer, target.capabilities)
        )

    def rows(
        self, prompt: Sequence[int], after: Sequence[int], logits: Array, params: SamplingParams
    ) -> Array:
        """Logits [n, V] as the options that look at the tokens before change them.

        Args:
            prompt: tokens of the prompt.
            after: tokens behind it; the last row predicts what follows all of them.
            logits: the target's, [n, V].
            params: the options.

        Returns:
            The rows, up to one behind which no text can be.
        """
        processors = self.request(prompt, params).processors
        return logits if processors is None else processors.apply(logits, after)[0]

    def _sequence(
        self, prompt: Sequence[int], params: SamplingParams, speculation: Speculation
    ) -> tuple[requests.Sequence, Recorder]:
        """A request, with coins of the audit's own where it is not seeded."""
        made, noise = self.request(prompt, params, speculation), Recorder(self.coin())
        if params.seed is None:
            made.noise = noise
        return made, noise

    def answers(
        self, prompt: Sequence[int], params: SamplingParams, speculation: Speculation, count: int
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        """Independent answers to one prompt, each with the number of its drafts.

        The prompt's cached entries are used again.
        """
        rounds = Rounds(self.target, self.drafter, 256)
        for _ in range(count):
            each, _noise = self._sequence(prompt, params, speculation)
            rounds.waiting.append(each)
            while not each.finish_reason:
                rounds.run()
            rounds.remove(each)
            if each.error is not None:
                raise each.error
            yield tuple(each.tokens[len(prompt) :]), each.stats.drafted


def _round(
    each: requests.Sequence, noise: Recorder, draft: Draft, logits: Array, step: Step
) -> Round:
    context = tuple(each.tokens[: len(each.tokens) - len(step.tokens)])
    length = len(each.tokens) - each.stats.completion_tokens
    rows = None if draft.rows is None else [plain_array(row) for row in draft.rows]
    return Round(
        prompt=context[:length],
        context=context,
        draft=Draft(draft.tokens, rows),
        logits=logits,
        seed=noise.seed,
        draws=tuple(noise.draws),
        tosses=tuple(noise.tosses),
        reused=tuple(noise.reused),
        step=step,
    )
