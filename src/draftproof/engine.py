"""The public face: requests in, steps and completions out. The loop itself is in ``rounds.py``.

Not safe to use from two threads at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from os import PathLike
from typing import Self, TypeVar, cast

from draftproof.drafters import Drafter
from draftproof.errors import ClosedError, ParameterError, PromptError
from draftproof.models import Model, Progress
from draftproof.pair import Pair
from draftproof.params import SamplingParams
from draftproof.rounds import Rounds
from draftproof.sequence import Sequence
from draftproof.stats import Completion
from draftproof.text import checked_ids, encode_prompt
from draftproof.types import ModelOptions, Prompt, Speculation, Step

logger = logging.getLogger("draftproof")
_T = TypeVar("_T")


class Engine:
    """Generates with a target, sped up by a drafter, exactly as the target alone would.

    Args:
        target: a model, or a spec as ``load_model`` takes it.
        drafter: a drafter, a draft model, a spec as ``load_drafter`` takes it, or None for plain
            decoding.
        speculation: the default of all requests; without a drafter nothing is proposed.
        options: how models given by their spec are loaded; the engine closes those itself.
        prefill_chunk: most prompt tokens of one target pass.
        progress: called with the part of a model that is loaded, from 0 to 1.
        cross_vocabulary: as in ``load_drafter``, for a drafter given by its spec.

    Raises:
        ModelLoadError: a model cannot be loaded.
        PairError: this drafter cannot draft for this target.
    """

    def __init__(
        self,
        target: Model | str | PathLike[str],
        drafter: Drafter | Model | str | PathLike[str] | None = None,
        *,
        speculation: Speculation | None = None,
        options: ModelOptions | None = None,
        prefill_chunk: int = 256,
        progress: Progress | None = None,
        cross_vocabulary: str | None = None,
    ) -> None:
        if type(prefill_chunk) is not int or prefill_chunk < 1:
            raise ParameterError(f"prefill_chunk must be 1 or more, not {prefill_chunk!r}")
        self._speculation = _given(speculation, Speculation())
        options = _given(options, ModelOptions())
        self._pair = Pair(target, drafter, options, progress, cross_vocabulary)
        self._closed = False
        self.target, self.drafter = self._pair.target, self._pair.drafter
        self._rounds = Rounds(self.target, self.drafter, prefill_chunk)
        self._finished: dict[int, Sequence] = {}
        self._inbox: dict[int, deque[Step]] = {}
        self._requests = 0

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        prediction: str | Many[int] | None = None,
    ) -> int:
        """Queue a request; it runs in the rounds of ``step``.

        Args:
            prompt: text as it is, chat messages, or token ids.
            params: sampling options; greedy if left out.
            speculation: instead of the engine's default.
            prediction: text (or token ids) the answer is expected to have, which is a free draft.

        Returns:
            The request's id.

        Raises:
            PromptError: the prompt is empty, of the wrong shape, or leaves no room.
            ParameterError: options that are not exact together.
        """
        self._check_open()
        capabilities = self.target.capabilities
        tokens = encode_prompt(self.target.tokenizer, prompt, capabilities.vocabulary)
        if len(tokens) >= capabilities.context_length:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens and the context {capabilities.context_length}"
                ": shorten the prompt, or load the model with a longer context"
            )
        sequence = Sequence(
            self._requests,
            tokens,
            _given(params, SamplingParams()),
            _given(speculation, self._speculation),
            self.target.tokenizer,
            capabilities,
            self._predicted(prediction),
        )
        sequence.stats.load = self._pair.seconds
        self._requests += 1
        self._rounds.waiting.append(sequence)
        return sequence.request

    def _predicted(self, prediction: str | Many[int] | None) -> Many[int]:
        """Its tokens; as a prompt's, but it may be empty, and begins without BOS."""
        if isinstance(prediction, str):
            return self.target.tokenizer.encode(prediction)
        size = self.target.capabilities.vocabulary
        return checked_ids(prediction, size, "prediction") if prediction is not None else ()

    def cancel(self, request: int) -> None:
        """End a request between two rounds; its neighbours and the caches stay as they are.

        Nothing happens where it has ended already.
        """
        sequence = self._rounds.find(request)
        if sequence is not None:
            sequence.end("cancelled")
            self._end(sequence)

    def completion(self, request: int) -> Completion:
        """The answer of a finished or cancelled request; kept until it is fetched, once.

        Raises:
            ParameterError: no such request, or it is not finished.
            DraftproofError: what ended the request, if it failed.
        """
        if request not in self._finished:
            raise ParameterError(f"request {request} is not finished, or was fetched before")
        return self._finished.pop(request).completion()

    def follow(self, request: int) -> Iterator[Step]:
        """Run rounds, for all requests, and yield this one's steps from now on until it ends.

        Leaving the iterator early cancels the request.

        Raises:
            ParameterError: no such request.
        """
        if not 0 <= request < self._requests:
            raise ParameterError(f"there is no request {request}")
        return _begun(self._follow(request))

    def _follow(self, request: int) -> Iterator[Step | None]:
        inbox = self._inbox[request] = deque()
        try:
            yield None
            while inbox or self._rounds.find(request):
                if not inbox:
                    self.step()
                while inbox:
                    yield inbox.popleft()
        finally:
            self._inbox.pop(request, None)
            if not self._closed:
                self.cancel(request)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        prediction: str | Many[int] | None = None,
    ) -> Iterator[Step]:
        """Submit a request and yield its steps. Arguments and errors as in ``submit``."""
        return _begun(self._stream(self.submit(prompt, params, speculation, prediction)))

    def _stream(self, request: int) -> Iterator[Step | None]:
        try:
            yield from self._follow(request)
            self.completion(request)  # raises what ended the request, if it failed
        finally:
            self._finished.pop(request, None)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
        prediction: str | Many[int] | None = None,
    ) -> Completion:
        """Answer one prompt. Arguments and errors as in ``submit``."""
        (done,) = self._answers([self.submit(prompt, params, speculation, prediction)])
        return done

    def generate_many(
        self,
        prompts: Many[Prompt],
        params: SamplingParams | Many[SamplingParams] | None = None,
        speculation: Speculation | None = None,
    ) -> list[Completion]:
        """Answer several prompts, as many at once as the target holds sequences.

        Args:
            prompts: the prompts.
            params: sampling options of all of them, or one for each.
            speculation: instead of the engine's default.

        Returns:
            The answers, in the order of the prompts.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Many):
            raise PromptError("several prompts come as a list: [prompt, ...]")
        each = params if isinstance(params, Many) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise ParameterError(f"{len(prompts)} prompts came with {len(each)} params")
        pairs = zip(prompts, each, strict=True)
        return self._answers(self.submit(prompt, one, speculation) for prompt, one in pairs)

    def _answers(self, submitted: Iterable[int]) -> list[Completion]:
        """Run requests to their ends; where anything fails, none of them is left behind."""
        requests: list[int] = []
        try:
            requests.extend(submitted)
            while not self._finished.keys() >= set(requests):
                self.step()
            return [self.completion(request) for request in requests]
        except BaseException:
            for request in requests:
                self.cancel(request)
                self._finished.pop(request, None)
            raise

    def step(self) -> list[Step]:
        """Run one round for all running sequences; the empty list if there is nothing to do.

        Raises:
            ModelError: a model failed. Sequences and caches are as before the round.
        """
        self._check_open()
        steps = []
        for sequence, step in self._rounds.run():
            steps.append(step)
            if sequence.request in self._inbox:
                self._inbox[sequence.request].append(step)
            if sequence.finish_reason:
                self._end(sequence)
        return steps

    def _end(self, sequence: Sequence) -> None:
        self._rounds.remove(sequence)
        self._finished[sequence.request] = sequence
        stats, reason = sequence.stats, sequence.finish_reason
        logger.info(
            "request %d: %s, %d prompt and %d completion tokens in %d rounds; drafts: %d accepted, "
            "%d rejected, %d discarded; %.1f tokens/s",
            *(sequence.request, reason, stats.prompt_tokens, stats.completion_tokens, stats.rounds),
            *(stats.accepted, stats.rejected, stats.discarded, stats.tokens_per_second),
        )

    def close(self) -> None:
        """Free the models this engine loaded. May be called twice."""
        self._closed = True
        self._pair.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _given(value: _T | None, default: _T) -> _T:
    """The value, or the default where there is none."""
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise ParameterError(f"give a {type(default).__name__}, not {value!r}")
    return value


def _begun(steps: Iterator[Step | None]) -> Iterator[Step]:
    """Run a generator up to its first yield, so that it notices also when it is never iterated."""
    next(steps)
    return cast(Iterator[Step], steps)
