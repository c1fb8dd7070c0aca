from __future__ import annotations

import gc
import itertools
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokens import ByteTokenizer
from constrained import BYTES, END, ENDS, SMALL, WIDE, WIDTH, ids, large, small, tiny
from draftproof import DraftproofError, ModelError
from draftproof.grammar import KEPT, Constraint

# Against a second opinion: Python's own regular expressions over every short text

REGEXES = ["abc", "a|ab|aba|abab", "(a|b)*c", "a{2,3}b?", "(ab)+|(ba)+", "[^ab]?a", "é?b|aé{1,2}"]
LETTERS = ("a", "b", "c", "é")


def language(regex: str) -> list[bytes]:
    """Its texts of up to seven letters: enough to end what three and a token have begun."""
    texts = ("".join(t) for n in range(8) for t in itertools.product(LETTERS, repeat=n))
    return [text.encode() for text in texts if re.fullmatch(regex, text)]


def expected(texts: Sequence[bytes], answer: Sequence[int]) -> list[int]:
    written = b"".join(SMALL[token] for token in answer)
    may = [
        token
        for token, piece in enumerate(SMALL)
        if piece and any(text.startswith(written + piece) for text in texts)
    ]
    return [*may, END] if written in texts else may


@pytest.mark.parametrize("regex", REGEXES)
def test_a_token_is_allowed_where_its_bytes_begin_a_text(regex: str) -> None:
    constraint, texts = tiny(regex), language(regex)
    answers: list[list[int]] = [[]]
    for _ in range(3):
        for answer in answers:
            wanted = expected(texts, answer)
            assert ids(constraint.allowed(answer)) == wanted
            assert constraint.complete(answer) == (wanted == [END])
        longer = [[*a, t] for a in answers for t in ids(constraint.allowed(a)) if SMALL[t]]
        answers = [a for a in longer if sum(len(SMALL[t]) for t in a) <= 3]


def test_a_character_may_be_cut_over_tokens() -> None:
    constraint = tiny("é+b")
    assert ids(constraint.allowed([])) == [6, 8]  # its first half, or all of it
    assert ids(constraint.allowed([6])) == [7, 9]
    assert constraint.complete([6, 9])
    assert constraint.complete([8, 6, 7, 1])


# Rolling back

GRAMMARS: list[tuple[str, str]] = [
    ("regex", "(a|b)*c"),
    ("regex", "(ab)+"),
    ("regex", "(aab|é)*"),
    ("grammar", 'start: "a" start "b" | "c"'),
    ("grammar", "start: x*\nx[lazy]: /(a|b)*c/"),
    ("grammar", 'start: A | B\nA: /a+b/\nB: /(ab)*c/\n%ignore "b"'),
]

sequences = st.lists(st.integers(0, WIDTH - 1), max_size=6)


@given(st.sampled_from(GRAMMARS), st.lists(st.tuples(sequences, st.booleans()), max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_order_of_answers_gives_what_a_fresh_parser_gives(
    grammar: tuple[str, str], asked: list[tuple[list[int], bool]]
) -> None:
    constraint = tiny(grammar[1], grammar[0])
    for answer, ahead in asked:
        fresh = tiny(grammar[1], grammar[0])
        if ahead:  # asking what is forced leaves the rest as it was
            assert constraint.forced(answer) == fresh.forced(answer)
        assert ids(constraint.allowed(answer)) == ids(fresh.allowed(answer))
        assert constraint.complete(answer) == fresh.complete(answer)


@given(st.sampled_from(GRAMMARS), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_rounds_of_drafts_through_ends_and_rejections_give_what_fresh_parsers_give(
    grammar: tuple[str, str], coins: Callable[..., int]
) -> None:
    constraint, committed = tiny(grammar[1], grammar[0]), []
    for _ in range(4):
        draft: list[int] = []
        for _ in range(coins.randrange(4)):
            draft.append(coins.choice(ids(constraint.allowed([*committed, *draft]))))
        for length in range(len(draft) + 1):
            answer = [*committed, *draft[:length]]
            fresh = tiny(grammar[1], grammar[0])
            assert ids(constraint.allowed(answer)) == ids(fresh.allowed(answer))
            assert constraint.complete(answer) == fresh.complete(answer)
        committed += draft[: coins.randrange(len(draft) + 1)]


def test_a_state_is_computed_once_for_the_draft_model_and_the_target() -> None:
    constraint = tiny("(a|b)*c")
    rows = [constraint.allowed([0] * length) for length in range(KEPT)]
    assert all(constraint.allowed([0] * length) is rows[length] for length in range(KEPT))
    constraint.allowed([0] * KEPT)
    assert constraint.allowed([]) is not rows[0]  # no more than that are kept
    assert ids(constraint.allowed([])) == ids(rows[0])


def test_rows_cannot_be_changed_by_who_reads_them() -> None:
    with pytest.raises(ValueError, match="read-only"):
        tiny("a").allowed([])[0] = False


# Ends


def test_end_tokens_come_exactly_where_the_grammar_accepts() -> None:
    constraint = large("12|1", "regex")
    one, twelve = WIDE.index(b"1"), WIDE.index(b"12")
    assert ids(constraint.allowed([])) == [one, twelve]
    assert ids(constraint.allowed([one])) == [WIDE.index(b"2"), *ENDS]
    assert ids(constraint.allowed([twelve])) == list(ENDS)
    assert [constraint.complete(answer) for answer in ([], [one], [twelve])] == [False, False, True]


@pytest.mark.parametrize("end", ENDS)
def test_behind_an_end_token_nothing_but_ends(end: int) -> None:
    constraint = large("a*", "regex")
    letter = WIDE.index(b"a")
    assert ids(constraint.allowed([letter, end])) == list(ENDS)
    assert constraint.complete([letter, end])
    assert ids(constraint.allowed([letter])) == [letter, *ENDS]  # back through the end


def test_without_end_tokens_a_complete_answer_is_told_apart() -> None:
    constraint = Constraint("regex", "ab?", small(None), WIDTH)
    assert ids(constraint.allowed([0])) == [1]
    assert not constraint.complete([0])  # it may end, or go on
    assert constraint.complete([2])
    assert constraint.allowed([2]).all()  # nothing that follows can be emitted
    assert ids(constraint.allowed([0])) == [1]


def test_control_tokens_are_never_allowed_even_if_they_look_like_text() -> None:
    tokenizer = ByteTokenizer([b"a", b"</s>", b"<s>"], end=1, bos=2)
    constraint = Constraint("regex", "(a|<s>|</s>)*", tokenizer, 3)
    assert ids(constraint.allowed([0])) == [0, 1]
    assert constraint.complete([0, 1])


def test_behind_a_refused_token_everything_is_allowed() -> None:
    constraint = tiny("(a|b)*c")
    assert constraint.allowed([5, 0]).all()
    assert constraint.allowed([0, 10]).all()  # a control token
    assert constraint.forced([5, 0]) == ()
    assert not constraint.complete([5, 0])
    assert ids(constraint.allowed([5])) == [END]


def test_a_vocabulary_that_cannot_go_on_is_an_error_and_leaves_the_rest_intact() -> None:
    tokenizer = ByteTokenizer([b"a", b"b", b""], end=2)
    constraint = Constraint("regex", "ab|bx", tokenizer, 3)
    for _ in range(2):
        with pytest.raises(ModelError, match="cannot go on"):
            constraint.allowed([1])
        assert ids(constraint.allowed([0])) == [1]


# What is forced


def test_forced_tokens_are_the_tokenizers_own() -> None:
    constraint = large({"type": "object", "properties": {"name": {}}, "required": ["name"]})
    assert [WIDE[token] for token in constraint.forced([])] == [b'{"', b"name"]
    assert large("abc|abd", "regex").forced([]) == (97, 98)
    assert tiny("ab|abc|aba").forced([]) == ()  # it may become ab, or a and ba
    assert large("abc|xyz", "regex").forced([]) == ()


@given(st.sampled_from(GRAMMARS), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_forced_tokens_are_allowed_and_the_only_text(
    grammar: tuple[str, str], coins: Callable[..., int]
) -> None:
    constraint, answer = tiny(grammar[1], grammar[0]), []
    for _ in range(5):
        forced = constraint.forced(answer)
        if forced:
            text = b"".join(SMALL[token] for token in forced)
            pieces = [SMALL[token] for token in ids(constraint.allowed(answer))]
            assert all(text.startswith(p) or p.startswith(text) for p in pieces)
        for length, token in enumerate(forced):
            assert constraint.allowed([*answer, *forced[:length]])[token]
        answer.append(coins.choice(ids(constraint.allowed(answer))))


@pytest.mark.parametrize("change", ["space", "lies", "knows nothing", "closed"])
def test_a_tokenizer_that_writes_something_else_forces_nothing_wrong(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ByteTokenizer([*BYTES, b" a", b""], end=257, space=change == "space")

    def encode(text: str) -> list[int]:
        if change == "lies":
            return [98] * len(text)
        raise DraftproofError(change)

    if change != "space":
        monkeypatch.setattr(tokenizer, "encode", encode)
    constraint = Constraint("regex", "abc", tokenizer, 258)
    assert constraint.forced([]) == ()
    assert ids(constraint.allowed([])) == [97]


# Sharing


def test_a_vocabulary_is_prepared_once_and_goes_with_its_tokenizer() -> None:
    tokenizer = small()
    seen: list[int] = []
    tokenizer.piece = lambda token: seen.append(token) or SMALL[token]
    constraints = [Constraint("regex", text, tokenizer, WIDTH) for text in ("a", "b", "a")]
    assert seen[:WIDTH] == list(range(WIDTH))
    assert len(seen) < 3 * WIDTH  # one text is encoded to see how
    constraints[0].allowed([0])
    assert ids(constraints[2].allowed([])) == [0]
    gone = weakref.ref(tokenizer)
    del tokenizer, constraints
    gc.collect()
    assert gone() is None


MISSING = """
import sys
sys.modules["llguidance"] = None
from draftproof.grammar import Constraint
from draftproof.models.table import LetterTokenizer
try:
    Constraint("regex", "a", LetterTokenizer(3), 3)
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_a_missing_library_is_named_with_its_command() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True)
    assert done.stdout.startswith("MissingExtraError structured output")
    assert done.stdout.strip().endswith("pip install 'draftproof[grammar]'")
