"""JSON schemas, regexes and grammars as llguidance reads them, or the reason why they are refused.

Not here: following an answer through one (``grammar.py``).
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from typing import Any, Literal, TypeAlias

from draftproof.errors import ParameterError

Kind: TypeAlias = Literal["json_schema", "regex", "grammar"]

NAMES = {"json_schema": "JSON schema", "regex": "regex", "grammar": "grammar"}
MAX_TEXT = 2**17  # characters; OpenAI's limit for schemas is near
CHECK_SECONDS = 5

LIMITS = {"max_lexer_states": 50_000, "max_grammar_size": 100_000, "verbose_errors": False}
"""Of llguidance, below its defaults where those would let a grammar take hundreds of MB."""

WRITING = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""JSON on one line, compact or as Python writes it. Where any white space may follow, a model can
write it for ever: here only what the schema leaves open can go on and on."""

# No forcing: every way to write a forced text is allowed, and not only the tokenizer's own.
_SUFFIX = '\n%llguidance {"no_forcing": true}'

# Strings, comments and regexes of a Lark grammar; then what cannot be kept exactly.
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/')
_REFUSED = re.compile(r"<|\b(?:max_tokens|temperature|stop)\s*=")

# Some texts would take llguidance minutes or overflow its stack. A process of its own can be
# killed. Threads have twice this stack and more.
_CHECK = """
import json, sys, threading
sys.path[:], grammar, limits = json.load(sys.stdin)
import llguidance
def check():
    limited = llguidance.LLParserLimits(**limits)
    source = llguidance.LLMatcher.grammar_from_lark(grammar)
    llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, limits=limited, log_level=0)
threading.stack_size(2**22)
thread = threading.Thread(target=check)
thread.start()
thread.join()
print("done")
"""


def lark(kind: Kind, text: str) -> str:
    """Every kind as a Lark grammar.

    Raises:
        ParameterError: it is not of its kind, or has what would not be kept exactly.
    """
    return _translated(kind, text) + _SUFFIX


def _translated(kind: Kind, text: str) -> str:
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT:
        raise refusal(kind, f"it must be a text of 1 to {MAX_TEXT} characters")
    if re.search("[\ud800-\udfff]", text):
        raise refusal(kind, "it has characters that no text can have (lone surrogates)")
    if kind == "json_schema":
        return f"start: %json {json.dumps(_schema(text))}"
    if kind == "regex":
        from llguidance import regex_to_lark

        if re.search(r"(?<!\\)(?:\\\\)*\\\Z", text):  # it would be dropped
            raise refusal(kind, "it ends in a backslash")
        return f"start: /{regex_to_lark(text, '')}/"
    if _REFUSED.search(_QUOTED.sub('""', text)):
        raise refusal(kind, "special tokens, max_tokens, temperature and stop are not supported")
    return text


def _schema(text: str) -> dict[str, Any]:
    """A schema with the way to write it. What llguidance cannot keep is refused, not ignored."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal("json_schema", f"it is not JSON, {line_of(str(error))}") from error
    if not isinstance(schema, dict):
        raise refusal("json_schema", "it is not an object")
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        raise refusal("json_schema", "x-guidance is not an object")
    return {**schema, "x-guidance": {**WRITING, **options, "lenient": False}}


@functools.lru_cache(maxsize=64)
def can_be_compiled(grammar: str) -> bool:
    """Whether llguidance survives a Lark grammar, within seconds; finding out takes a tenth."""
    command = [sys.executable, "-I", "-S", "-c", _CHECK]
    given = json.dumps([sys.path, grammar, LIMITS])
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.stdout == "done\n"


def refusal(kind: Kind, reason: str) -> ParameterError:
    """The error for a text that cannot be used."""
    return ParameterError(f"change this {NAMES[kind]}, it cannot be used: {reason}")


def line_of(message: str) -> str:
    """The part of a message that says what is wrong, on one line."""
    lines = [line for line in message.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error: ")), lines[0])
    line = re.sub(r"^(error: )?(at \d+\(\d+\): )?(failed to compile JSON schema: )?", "", line)
    return line if len(line) <= 200 else f"{line[:200]}..."
