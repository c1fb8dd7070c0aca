"""The sampling options of a request, checked.

Not here: what they do (``sampling.py``, ``processors.py``, ``grammar.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from draftproof.checks import is_int, is_number, require

Processor: TypeAlias = Callable[[Sequence[int], Any], Any]
"""A custom logits processor: (all tokens so far, logits [V]) -> logits [V]."""

BAN = -100.0
"""A logit bias that excludes a token, as OpenAI's does."""

GRAMMARS: tuple[Literal["json_schema", "regex", "grammar"], ...] = (
    "json_schema",
    "regex",
    "grammar",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn from the target, and when an answer ends.

    Attributes:
        temperature: divides the logits; 0 is greedy (argmax, lowest id on an exact tie).
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the most probable tokens until their mass reaches top_p; 1 keeps all.
        min_p: drop tokens less probable than min_p times the most probable one; 0 keeps all.
        typical_p: keep the tokens whose surprise is nearest to the entropy until their mass
            reaches typical_p (Meister et al., TACL 2023); 1 keeps all.
        repetition_penalty: divides positive logits of tokens in prompt and answer, multiplies
            negative ones (Keskar et al., 2019); 1 changes nothing.
        presence_penalty: is taken from the logit of every token that is in the answer.
        frequency_penalty: is taken as often as the token is in the answer.
        logit_bias: what to add to a token's logit, from -100 (never that token) to 100.
        bad_words: texts that never appear in the answer, in whatever tokens.
        min_tokens: least tokens before the answer may end by itself.
        seed: with a seed the text is a function of target, prompt and seed alone, whatever the
            drafter; without one every run is fresh.
        max_tokens: most tokens to emit; None goes on to the end of the context.
        stop: strings that end the answer; the text ends before the first of them.
        stop_token_ids: tokens that end the answer, beside the model's end tokens.
        ignore_eos: go on past the model's end tokens (for measuring).
        logprobs: log-probabilities of every emitted token and of so many alternatives, by the
            target before any option acts; None for none.
        prompt_logprobs: the same for the prompt's tokens.
        json_schema: the answer is a JSON document of this schema (a mapping, or its text).
        regex: the answer matches this regular expression.
        grammar: the answer is in the language of this Lark grammar.
        processors: custom logits processors, applied last (see ``processors.py``).

    Raises:
        ParameterError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    seed: int | None = None
    max_tokens: int | None = 512
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    processors: Sequence[Processor] = ()

    def __post_init__(self) -> None:
        self._check_filters()
        self._check_penalties()
        self._check_counts()
        self._check_texts("stop", "strings")
        self._check_texts("bad_words", "texts")
        self._check_tokens()
        self._check_grammar()
        require(
            _is_list(self.processors) and all(map(callable, self.processors)),
            f"processors must be functions of (tokens, logits), not {self.processors!r}",
        )
        object.__setattr__(self, "processors", tuple(self.processors))

    def _check_filters(self) -> None:
        require(
            is_number(self.temperature) and (self.temperature == 0 or self.temperature >= 1e-4),
            f"temperature must be 0 (greedy) or at least 0.0001, not {self.temperature!r}",
        )
        require(
            is_int(self.top_k) and self.top_k >= 0,
            f"top_k must be a whole number of 0 (off) or more, not {self.top_k!r}",
        )
        for name in ("top_p", "typical_p"):
            value = getattr(self, name)
            require(
                is_number(value) and 0 < value <= 1,
                f"{name} must lie above 0 and at most at 1 (off), not {value!r}",
            )
        require(
            is_number(self.min_p) and 0 <= self.min_p <= 1,
            f"min_p must lie from 0 (off) to 1, not {self.min_p!r}",
        )

    def _check_penalties(self) -> None:
        require(
            is_number(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100,
            f"repetition_penalty must lie from 0.01 to 100, not {self.repetition_penalty!r}",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(
                is_number(value) and -100 <= value <= 100,
                f"{name} must lie from -100 to 100, not {value!r}",
            )

    def _check_counts(self) -> None:
        require(
            self.seed is None or is_int(self.seed),
            f"seed must be a whole number or None, not {self.seed!r}",
        )
        require(
            self.max_tokens is None or (is_int(self.max_tokens) and self.max_tokens >= 1),
            f"max_tokens must be a whole number of 1 or more, or None, not {self.max_tokens!r}",
        )
        require(
            is_int(self.min_tokens) and 0 <= self.min_tokens <= (self.max_tokens or 2**31),
            f"min_tokens must be a whole number from 0 to max_tokens, not {self.min_tokens!r}",
        )
        require(
            isinstance(self.ignore_eos, bool), f"ignore_eos must be a bool, not {self.ignore_eos!r}"
        )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            require(
                value is None or (is_int(value) and value >= 0),
                f"{name} must be a whole number of 0 (no alternatives) or more, or None, "
                f"not {value!r}",
            )

    def _check_texts(self, name: str, kind: str) -> None:
        """A bare string would be read as one text per letter: take it as one text."""
        given = getattr(self, name)
        texts = (given,) if isinstance(given, str) else given
        require(
            _is_list(texts) and all(isinstance(text, str) and text for text in texts),
            f"{name} must be {kind} that are not empty, not {given!r}",
        )
        object.__setattr__(self, name, tuple(texts))

    def _check_tokens(self) -> None:
        tokens, given = self.stop_token_ids, self.logit_bias
        require(
            _is_list(tokens) and all(is_int(token) and token >= 0 for token in tokens),
            f"stop_token_ids must be token ids, not {tokens!r}",
        )
        object.__setattr__(self, "stop_token_ids", tuple(map(int, tokens)))
        bias = dict(given) if _is_pairs(given) else None
        require(
            bias is not None
            and all(
                is_int(token) and token >= 0 and is_number(value) and -100 <= value <= 100
                for token, value in bias.items()
            ),
            f"logit_bias must give token ids a value from -100 (never) to 100, not {given!r}",
        )
        require(
            bias is None or len(bias) == len(given),
            f"logit_bias names a token twice: {given!r}",
        )
        pairs = ((int(token), float(value)) for token, value in (bias or {}).items())
        object.__setattr__(self, "logit_bias", tuple(sorted(pairs)))

    def _check_grammar(self) -> None:
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", json.dumps(self.json_schema))
        given = [name for name in GRAMMARS if getattr(self, name) is not None]
        require(
            len(given) <= 1, f"{' and '.join(given)} cannot both rule the answer: give one of them"
        )
        for name in given:
            text = getattr(self, name)
            require(isinstance(text, str) and bool(text), f"{name} must be text, not {text!r}")
            require(
                not self.min_tokens,
                f"min_tokens cannot be promised together with {name}, which may be complete "
                "before: leave one of them out",
            )
            require(
                not self.ignore_eos,
                f"ignore_eos cannot go together with {name}, which says where the answer ends: "
                "leave one of them out",
            )

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken instead of drawing."""
        return self.temperature == 0

    def changed(self) -> set[str]:
        """The names of the options that are not as they are when left out."""
        return {f.name for f in fields(self) if getattr(self, f.name) != f.default}


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_pairs(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        _is_list(value) and all(_is_list(pair) and len(pair) == 2 for pair in value)
    )
