from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest

from constrained import SCHEMAS, WIDE, ids, large, tiny, walk
from draftproof import ModelError, ParameterError
from draftproof.grammar import Constraint
from draftproof.models.gguf import GgufModel

# JSON


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_every_random_answer_is_json_that_fits_its_schema(schema: dict[str, object]) -> None:
    constraint, rng = large(schema), np.random.default_rng(1)
    check = jsonschema.Draft202012Validator(schema)
    texts = {walk(constraint, WIDE, rng) for _ in range(40)}
    for text in texts:
        check.validate(json.loads(text))
        assert not re.search(rb"[\n\t]|  ", re.sub(rb'"[^"]*"', b"", text))
    assert len(texts) > 3


def test_white_space_is_a_single_space_behind_commas_and_colons() -> None:
    constraint = large({"const": {"a": [1, 2]}})
    for text, fits in [
        ('{"a":[1,2]}', True),
        ('{"a": [1, 2]}', True),
        ('{"a":  [1,2]}', False),
        ('{ "a":[1,2]}', False),
        ('{"a":[1,2]}\n', False),
    ]:
        answer = list(text.encode())
        assert constraint.complete(answer) == fits


def test_the_schema_may_choose_its_white_space() -> None:
    constraint = large({"const": [1, 2], "x-guidance": {"item_separator": " , "}})
    assert constraint.complete(list(b"[1 , 2]"))


# What is refused


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "", "1 to 131072 characters"),
        ("regex", "a" * 131073, "1 to 131072 characters"),
        ("regex", "(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "a\\\\\\", "backslash"),
        ("regex", "\ud800", "surrogates"),
        ("regex", "[^\\s\\S]", "no text"),
        ("grammar", "begin: /a/", "no start rule"),
        ("grammar", "start: <|im_start|>", "special tokens"),
        ("grammar", 'start: "a" <[3]>', "special tokens"),
        ("grammar", "start: x\nx[max_tokens=3]: /a+/", "max_tokens"),
        ("grammar", "start: x\nx[temperature=0.1]: /a+/", "temperature"),
        ("grammar", 'start: x "b"\nx[stop="b"]: /a+/', "stop"),
        ("json_schema", "{", "not JSON"),
        ("json_schema", "[" * 100000, "not JSON"),
        ("json_schema", "[1]", "not an object"),
        ("json_schema", '{"x-guidance": 1}', "not an object"),
        ("json_schema", '{"not": {"type": "null"}}', "Unimplemented keys"),
        ("json_schema", '{"uniqueItems": true, "x-guidance": {"lenient": true}}', "Unimplemented"),
        ("json_schema", '{"type": "string", "format": "iri"}', "Unknown format"),
        ("json_schema", '{"$ref": "https://example.com/s.json"}', "example.com"),
        ("json_schema", '{"type": "word"}', "Invalid type"),
        ("json_schema", '{"minLength": 3, "maxLength": 2, "type": "string"}', "minLength"),
        ("json_schema", '{"$ref": "#"}', "no text"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(kind: str, text: str, reason: str) -> None:
    with pytest.raises(ParameterError, match=reason) as caught:
        large(text, kind)
    message = str(caught.value)
    assert message.startswith("change this ")
    assert "\n" not in message
    assert len(message) < 300


def test_signs_of_special_tokens_and_options_in_quotes_are_text() -> None:
    text = 'start: "<|x|>" /<a>|stop=/ // <b> stop=\n'
    assert large(text, "grammar").complete(list(b"<|x|>stop="))


def test_a_grammar_cannot_bring_forcing_back() -> None:
    constraint = tiny('%llguidance {"no_forcing": false}\nstart: "ab"', "grammar")
    assert ids(constraint.allowed([])) == [0, 2]


def chain(count: int) -> str:
    rules = "\n".join(f"a{i}: a{i + 1}" for i in range(count))
    return f'start: a0\n{rules}\na{count}: "x"'


DEFS = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(3000)} | {"a3000": {"type": "null"}}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("grammar", chain(9000)),  # these two would overflow the stack
        ("json_schema", json.dumps({"$defs": DEFS, "$ref": "#/$defs/a0"})),
        ("grammar", "start: A\nA: " + " & ".join(f"/(.*w{i}.*)/" for i in range(50))),  # minutes
    ],
    ids=["rules", "references", "conjunction"],
)
def test_a_text_that_would_crash_or_stall_the_parser_is_refused(
    kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.grammar_text.CHECK_SECONDS", 2)
    with pytest.raises(ParameterError, match="too complex"):
        large(text, kind)


@pytest.mark.parametrize(
    ("kind", "text", "ok"),
    [
        ("regex", "((a{1000}){1000}){1000}", b"aaaa"),
        ("json_schema", '{"type": "array", "minItems": 1000000000}', b"[1,2"),
        ("json_schema", '{"items":' * 100 + "{}" + "}" * 100, b"[[[["),
        ("grammar", chain(300), b"x"),
    ],
    ids=["repetition", "items", "nesting", "rules"],
)
def test_a_text_that_is_large_or_deep_within_reason_works(kind: str, text: str, ok: bytes) -> None:
    constraint = large(text, kind)
    for length in range(len(ok)):
        assert constraint.allowed(list(ok[:length]))[ok[length]]


def test_a_limit_reached_on_the_way_is_an_error_of_the_model() -> None:
    constraint = large("(\\w{1,1000}){1000}", "regex")
    with pytest.raises(ModelError, match="simplify"):
        any(not constraint.allowed([97] * length).any() for length in range(2000))
    assert constraint.allowed([])[97]


# A real vocabulary


@pytest.fixture(scope="module")
def demo(demo_path: str) -> Iterator[GgufModel]:
    from draftproof.models.gguf import load
    from draftproof.types import ModelOptions

    model = load(demo_path, ModelOptions(threads=1, context_length=64))
    yield model
    model.close()


@pytest.mark.model
def test_random_answers_in_a_real_vocabulary_fit(demo: GgufModel) -> None:
    tokenizer, width = demo.tokenizer, demo.capabilities.vocabulary
    pieces = [tokenizer.piece(token) for token in range(width)]
    rng = np.random.default_rng(2)
    for schema in SCHEMAS:
        constraint = Constraint("json_schema", json.dumps(schema), tokenizer, width)
        for _ in range(5):
            jsonschema.validate(json.loads(walk(constraint, pieces, rng)), schema)


@pytest.mark.model
def test_what_a_real_tokenizer_writes_is_allowed_and_forced(demo: GgufModel) -> None:
    tokenizer, width = demo.tokenizer, demo.capabilities.vocabulary
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    constraint = Constraint("json_schema", json.dumps(schema), tokenizer, width)
    answer = tokenizer.encode('{"name": "Zoë the 🦊"}')
    for length, token in enumerate(answer):
        assert constraint.allowed(answer[:length])[token]
    assert constraint.complete(answer)
    assert ids(constraint.allowed(answer)) == sorted(tokenizer.end_tokens)
    forced = constraint.forced([])
    assert forced
    assert tuple(answer[: len(forced)]) == forced
