"""From the body of a request to what the engine is asked, and whether it can be asked at all.

Runs in threads beside the engine's: long texts and grammars cost time that no answer should wait
for. Grammars are compiled here, and found compiled by the engine.

Not here: the fields of a body (``schema.py``).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from draftproof.engine import Engine
from draftproof.errors import ParameterError
from draftproof.params import GRAMMARS, SamplingParams
from draftproof.processors import constraint_for
from draftproof.sampling import choices
from draftproof.server.refusals import Refusal
from draftproof.server.schema import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    MessageBody,
    text_of,
)
from draftproof.server.settings import MAX_CHOICES, Settings
from draftproof.text import all_pieces, encode_prompt
from draftproof.types import Message, Prompt, Speculation

COMPILERS = 2  # grammars that are compiled at once; others wait, texts do not
SAME = (
    *("top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "bad_words", "min_tokens", "stop_token_ids", "ignore_eos"),
)
"""What a body calls as ``SamplingParams`` does."""


class Job(NamedTuple):
    """One answer to ask the engine for.

    Attributes:
        prompt: token ids.
        params: sampling options.
        speculation: how it is speculated on.
        prediction: token ids the answer is expected to have.
    """

    prompt: list[int]
    params: SamplingParams
    speculation: Speculation
    prediction: list[int]


class Preparation:
    """Makes jobs of bodies.

    Args:
        engine: only its target's tokenizer and its settings are used here.
        settings: the server's.
        speculation: where a request asks for nothing else.
    """

    def __init__(self, engine: Engine, settings: Settings, speculation: Speculation) -> None:
        self._tokenizer = engine.target.tokenizer
        self._capabilities = engine.target.capabilities
        self._name = engine.target.name
        named = {engine.drafter.name, settings.draft} if engine.drafter else set()
        self._drafters = named - {"none"}
        self._speculation = speculation
        self._encoding = threading.Lock()
        self._compiling = asyncio.Semaphore(COMPILERS)

    async def jobs(self, body: GenerationBody) -> list[Job]:
        """What a body asks for: for every prompt its answers, one after another.

        Raises:
            ParameterError: an option that cannot be used, or does not go with another.
            PromptError: a prompt that cannot be used.
            Refusal: one that leaves no room in the context.
        """
        params = _params(body)
        speculation = self._speculated(body)
        prompts = await asyncio.to_thread(self._prompts, body)
        each = choices(params, body.n)
        if len(prompts) * len(each) > MAX_CHOICES:
            raise ParameterError(f"{MAX_CHOICES} answers at most: give fewer prompts, or less n")
        if body.include_rounds and len(prompts) * len(each) > 1:
            raise ParameterError("include_rounds is for a single answer: leave out n")
        prediction = await asyncio.to_thread(self._predicted, body)
        if any(getattr(params, kind) is not None for kind in GRAMMARS):
            await self._compile(params)
        return [Job(p, one, speculation, prediction) for p in prompts for one in each]

    async def _compile(self, params: SamplingParams) -> None:
        async with self._compiling:
            arguments = params, self._tokenizer, self._capabilities.vocabulary
            await asyncio.to_thread(constraint_for, *arguments)

    def _prompts(self, body: GenerationBody) -> list[list[int]]:
        if isinstance(body, ChatBody):
            return [self.chat(body.messages)]
        assert isinstance(body, CompletionBody)
        given = body.prompt
        several = isinstance(given, list) and not isinstance(given[0], int)
        every: Any = given if several else [given]
        return [self.encode(prompt) for prompt in every]

    def chat(self, messages: Sequence[MessageBody]) -> list[int]:
        """Tokens of messages, through the template; of their texts joined where there is none."""
        self._require_room(sum(len(text_of(message.content)) for message in messages))
        return self._encoded(_joined(messages, self._tokenizer.chat_template is not None))

    def encode(self, prompt: Prompt, bos: bool = True) -> list[int]:
        """Tokens of a prompt.

        Args:
            prompt: text, messages or token ids.
            bos: whether it begins with the token that prompts begin with.

        Raises:
            PromptError: it cannot be used.
            Refusal: it leaves no room in the context.
        """
        if isinstance(prompt, str):
            self._require_room(len(prompt))
        return self._encoded(prompt, bos)

    def _encoded(self, prompt: Prompt, bos: bool = True) -> list[int]:
        with self._encoding:
            tokens = self._tokens(prompt, bos)
        context = self._capabilities.context_length
        if len(tokens) >= context:
            raise _too_long(
                f"the prompt has {len(tokens)} tokens and {self._name} a context of {context}: "
                "shorten it"
            )
        return tokens

    def _tokens(self, prompt: Prompt, bos: bool) -> list[int]:
        if isinstance(prompt, str) and not bos:
            return self._tokenizer.encode(prompt)
        return encode_prompt(self._tokenizer, prompt, self._capabilities.vocabulary)

    def _require_room(self, characters: int) -> None:
        """Refuse a text that cannot fit, whatever its tokens, before it is read."""
        with self._encoding:
            longest = self._longest
        if characters > longest * self._capabilities.context_length:
            raise _too_long(f"{characters} characters cannot fit: shorten the text")

    @cached_property
    def _longest(self) -> int:
        """Characters of the longest token."""
        tokenizer = self._tokenizer
        pieces = all_pieces(tokenizer, self._capabilities.vocabulary)
        return max(map(len, (*pieces, *tokenizer.vocabulary())))

    def _predicted(self, body: GenerationBody) -> list[int]:
        if body.prediction is None:
            return []
        text = text_of(body.prediction.content)
        self._require_room(len(text))
        with self._encoding:
            return self._tokenizer.encode(text)

    def _speculated(self, body: GenerationBody) -> Speculation:
        """How a request is speculated on; what it names and cannot have is refused.

        ``speculation: false`` switches all of it off, so that the same body can be asked twice.
        """
        length, draft = body.num_draft_tokens, body.draft
        if draft not in (None, "none", *self._drafters):
            known = " or ".join(sorted(self._drafters)) or "none"
            raise ParameterError(f"the drafter here is {known}: draft can name it, or be none")
        if body.speculation is False:
            return replace(self._speculation, draft_length=0)
        off = length == 0 or draft == "none"
        on = bool(body.speculation or length or draft in self._drafters)
        if off and (on or body.prediction is not None):
            raise ParameterError("drafts are switched off and asked for at once: leave one out")
        if on and not self._drafters:
            raise ParameterError("this server has no drafter: leave out what asks for one")
        if off or length:
            return replace(self._speculation, draft_length=length or 0)
        return self._speculation


def _too_long(message: str) -> Refusal:
    return Refusal(400, message, "context_length_exceeded")


def _joined(messages: Sequence[MessageBody], template: bool) -> Prompt:
    if not template:
        return "".join(text_of(message.content) for message in messages)
    return [_message(message) for message in messages]


def _message(message: MessageBody) -> Message:
    role = "system" if message.role == "developer" else message.role
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": text_of(message.content), **named}


def _params(body: GenerationBody) -> SamplingParams:
    """The sampling options of a body, checked."""
    limit = body.max_tokens if isinstance(body, CompletionBody) else _limit(body)
    return SamplingParams(
        **{name: getattr(body, name) for name in SAME},
        temperature=body.temperature,
        seed=body.seed,
        top_k=0 if body.top_k == -1 else body.top_k,
        logit_bias=_bias(body.logit_bias),
        stop=body.stop,
        max_tokens=limit,
        logprobs=_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body),
        **_structure(body),
    )


def _limit(body: GenerationBody) -> int | None:
    assert isinstance(body, ChatBody)
    return body.max_completion_tokens if body.max_tokens is None else body.max_tokens


def _logprobs(body: GenerationBody) -> int | None:
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    return body.logprobs


def _prompt_logprobs(body: GenerationBody) -> int | None:
    return body.logprobs if isinstance(body, CompletionBody) and body.echo else None


def _bias(given: dict[str, float]) -> dict[int, float]:
    if not all(name.isascii() and name.isdecimal() for name in given):
        raise ParameterError("logit_bias is given by token ids, written as texts")
    return {int(name): value for name, value in given.items()}


def _structure(body: GenerationBody) -> dict[str, Any]:
    """Which of the ways to ask for structure is used, as ``SamplingParams`` takes it."""
    asked = [*_formats(body), *_vllm(body)]
    found = [(kind, value) for kind, value in asked if value is not None]
    if len(found) > 1:
        raise ParameterError("structured output is asked for in several ways: give one of them")
    return dict(found)


def _formats(body: GenerationBody) -> list[tuple[str, Any]]:
    form = body.response_format
    if form is None or form.type == "text":
        return []
    schema = form.json_schema.json_schema if form.json_schema else {"type": "object"}
    return [("json_schema", schema)]


def _vllm(body: GenerationBody) -> list[tuple[str, Any]]:
    given = body.structured_outputs
    asked: list[tuple[str, Any]] = [
        ("json_schema", body.guided_json),
        ("regex", body.guided_regex),
        ("grammar", body.guided_grammar),
        ("grammar", _one_of(body.guided_choice)),
    ]
    if given is not None:
        asked += [
            ("json_schema", given.json_schema),
            ("json_schema", {"type": "object"} if given.json_object else None),
            ("regex", given.regex),
            ("grammar", given.grammar),
            ("grammar", _one_of(given.choice)),
        ]
    return asked


def _one_of(texts: list[str] | None) -> str | None:
    """A Lark grammar of some texts."""
    quoted = (json.dumps(text, ensure_ascii=False) for text in texts or ())
    return None if texts is None else f"start: {' | '.join(quoted)}"
