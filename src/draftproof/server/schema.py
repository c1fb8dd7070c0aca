"""The bodies of requests: what is known, what is refused with a reason, what is unknown.

Nothing is ignored silently. A null is as good as nothing. What is accepted and has no effect is
``user``, ``metadata``, ``safety_identifier`` and ``prompt_cache_key``, which only name things.

Validating stops at the first thing that is wrong in a long list: else a hostile body could hold up
everyone for seconds.

Not here: whether values make sense together; ``SamplingParams`` and the engine tell that.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from draftproof.server.settings import (
    MAX_BAD_WORD,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_DRAFT,
    MAX_IDS,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_STOP,
    MAX_STOPS,
)

TOOLS = "tools are not supported: leave them out, and describe them in the messages"
LOCAL = "there is nothing of this kind behind this server: leave it out"

REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "tools": (TOOLS, ([],)),
    "tool_choice": (TOOLS, ("none",)),
    "functions": (TOOLS, ([],)),
    "function_call": (TOOLS, ("none",)),
    "tool_calls": (TOOLS, ([],)),
    "parallel_tool_calls": (TOOLS, ()),
    "best_of": ("every answer is returned here: take n", (1,)),
    "suffix": ("this server cannot fill in: leave the suffix out", ("",)),
    "modalities": ("answers are text", (["text"],)),
    "audio": ("answers are text", ()),
    "annotations": (LOCAL, ([],)),  # OpenAI's own answers, sent back, have these
    "reasoning_effort": (LOCAL, ()),
    "verbosity": (LOCAL, ()),
    "store": ("nothing is stored here: leave it out", (False,)),
    "service_tier": (LOCAL, ("auto", "default")),
    "web_search_options": (LOCAL, ()),
}
"""Known fields that are refused: why, and the values that ask for nothing."""


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("text", "this text holds lone surrogates") from None
    return text


Text: TypeAlias = Annotated[str, AfterValidator(_encodable)]
Stop: TypeAlias = Annotated[Text, Field(min_length=1, max_length=MAX_STOP)]
BadWord: TypeAlias = Annotated[Text, Field(min_length=1, max_length=MAX_BAD_WORD)]
Id: TypeAlias = Annotated[int, Field(ge=0)]
Ids: TypeAlias = Annotated[list[Id], Field(fail_fast=True)]


def _refused(name: str, why: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{why}", {"name": name, "why": why})


_T = TypeVar("_T")
Several: TypeAlias = Annotated[
    list[_T], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]


class Body(BaseModel):
    """Knows its fields and no others; takes nulls for what is left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, value in (("body", data), *data.items()):
            if isinstance(value, dict) and len(value) > MAX_IDS:
                raise _refused(name, f"there are more than {MAX_IDS} entries")
        given = {name: value for name, value in data.items() if value is not None}
        for name in given.keys() & REFUSED.keys():
            reason, harmless = REFUSED[name]
            value = given.pop(name)
            if not any(value == each and type(value) is type(each) for each in harmless):
                raise _refused(name, reason)
        return given


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: Text


Content: TypeAlias = Text | Annotated[list[TextPart], Field(max_length=MAX_PARTS, fail_fast=True)]


class MessageBody(Body):
    """A message of a chat. ``developer`` is another word for ``system``."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Text | None = None


Messages: TypeAlias = Annotated[
    list[MessageBody], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]


class StreamOptions(Body):
    """What a stream tells besides."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class Prediction(Body):
    """Text that the answer is expected to have much of: used as a draft."""

    type: Literal["content"]
    content: Content


class SchemaFormat(Body):
    """A JSON schema with its name."""

    name: Text
    json_schema: dict[str, Any] = Field(default_factory=dict, alias="schema")
    description: Text | None = None
    strict: bool = True


class ResponseFormat(Body):
    """Structured output as OpenAI asks for it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None

    @model_validator(mode="after")
    def _together(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("together", "type json_schema and a json_schema go together")
        return self


class StructuredOutputs(Body):
    """Structured output as vLLM asks for it; one of them. ``grammar`` is in Lark."""

    json_schema: dict[str, Any] | Text | None = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: Text | None = None
    grammar: Text | None = None
    choice: list[Stop] | None = Field(default=None, min_length=1, max_length=MAX_IDS)


class GenerationBody(Body):
    """What both ways to ask for an answer share. Ranges are those of ``SamplingParams``."""

    model: Text | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = Field(default_factory=dict, max_length=MAX_IDS)
    bad_words: list[BadWord] = Field(default_factory=list, max_length=MAX_BAD_WORDS)
    min_tokens: int = 0
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] = Field(default_factory=list)
    stop_token_ids: list[Id] = Field(default_factory=list, max_length=MAX_IDS)
    ignore_eos: bool = False
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | Text | None = None
    guided_regex: Text | None = None
    guided_grammar: Text | None = None
    guided_choice: list[Stop] | None = Field(default=None, min_length=1, max_length=MAX_IDS)
    speculation: bool | None = None
    num_draft_tokens: int | None = Field(default=None, ge=0, le=MAX_DRAFT)
    draft: Text | None = None
    prediction: Prediction | None = None
    include_rounds: bool = False
    user: Text | None = None
    metadata: dict[str, Text] | None = Field(default=None, max_length=16)
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None

    @model_validator(mode="after")
    def _streamed(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise _refused("stream_options", "these go with stream: true")
        if self.include_rounds and not self.stream:
            raise _refused("include_rounds", "this goes with stream: true")
        return self


class ChatBody(GenerationBody):
    """The body of ``/v1/chat/completions``."""

    messages: Messages
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @model_validator(mode="after")
    def _paired(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise _refused("top_logprobs", "these go with logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise _refused("max_tokens", "this is max_completion_tokens: give one of them")
        return self


def _prompted(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """One sentence for all the types that are tried."""
    if isinstance(value, list) and len(value) > MAX_CHOICES and not isinstance(value[0], int):
        raise PydanticCustomError("prompts", f"at most {MAX_CHOICES} prompts")
    try:
        return validate(value)
    except ValidationError:
        if isinstance(value, str):
            raise
        why = "a prompt is text, or token ids from 0; there may be a list of prompts"
        raise PydanticCustomError("prompt", why) from None


class CompletionBody(GenerationBody):
    """The body of ``/v1/completions``. A prompt is text or token ids; a list of them, several."""

    prompt: Annotated[
        Text | Several[Text] | Annotated[Ids, Field(min_length=1)] | Several[Ids],
        WrapValidator(_prompted),
    ]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool = False
    max_tokens: int = 16


class TokenizeBody(Body):
    """The body of ``/tokenize``: a text, or the messages of a chat."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: Literal[True] = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one", "give a prompt or messages, and not both")
        return self


class DetokenizeBody(Body):
    """The body of ``/detokenize``."""

    model: Text | None = None
    tokens: Ids


def text_of(content: Content) -> str:
    """The text of a content, in one or in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
