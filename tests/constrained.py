"""Toy vocabularies, schemas and random answers for tests of structured output."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from byte_tokens import ByteTokenizer
from draftproof.grammar import Constraint

# Letters in several cuts, a character of two bytes in halves and glued to others, a control token.
SMALL = [b"a", b"b", b"ab", b"ba", b"aab", b"c", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xa9b", b"", b""]
END, WIDTH = 11, len(SMALL)

BYTES = [bytes([byte]) for byte in range(256)]
MERGED = [b'{"', b'":', b'": ', b'", "', b"true", b"12", b'"}', b"name", b"\xc3\xa9t", b"}}", b"[]"]
WIDE = [*BYTES, *MERGED, b"", b"", b""]  # two end tokens behind a control token
ENDS = (len(WIDE) - 2, len(WIDE) - 1)


def small(end: int | None = END) -> ByteTokenizer:
    return ByteTokenizer(SMALL, end=end)


def wide() -> ByteTokenizer:
    tokenizer = ByteTokenizer(WIDE, end=ENDS[0])
    tokenizer.end_tokens = frozenset(ENDS)
    return tokenizer


TINY, LARGE = small(), wide()


def tiny(text: str, kind: str = "regex") -> Constraint:
    return Constraint(kind, text, TINY, WIDTH)


def large(text: object, kind: str = "json_schema") -> Constraint:
    return Constraint(kind, text if isinstance(text, str) else json.dumps(text), LARGE, len(WIDE))


def ids(row: np.ndarray) -> list[int]:
    return np.flatnonzero(row).tolist()


SCHEMAS: list[dict[str, object]] = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}},
    {"type": "array", "items": {"type": "integer", "minimum": -20, "maximum": 345}, "maxItems": 4},
    {"enum": ["red", "été", 3, None, {"a": [True]}]},
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"const": "12"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"type": "string", "pattern": "^[a-c]{2,5}\\\\?é$"},
    {"anyOf": [{"type": "integer", "multipleOf": 7, "maximum": 999}, {"type": "boolean"}]},
    {"type": "string", "format": "date"},
    {
        "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}},
        "$ref": "#/$defs/t",
    },
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [1, 2]}], "minItems": 2,
     "maxItems": 2},
    {
        "allOf": [
            {"type": "object", "properties": {"x": {"type": "number", "minimum": 0}}},
            {"properties": {"y": {"type": "string", "maxLength": 3}}, "required": ["x"]},
        ],
    },
]  # fmt: skip


def walk(constraint: Constraint, pieces: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """A random answer; ends, quotes and brackets are preferred, or it would not end."""
    closing = np.array([not piece or piece[:1] in b'"]}0' for piece in pieces])
    answer: list[int] = []
    while not constraint.complete(answer):
        allowed = constraint.allowed(answer)
        if rng.random() < 0.3 and (allowed & closing).any():
            allowed = allowed & closing
        token = int(rng.choice(np.flatnonzero(allowed)))
        if not pieces[token]:
            break
        answer.append(token)
        assert len(answer) < 5000
    return b"".join(pieces[token] for token in answer)
