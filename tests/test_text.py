from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import Engine, Origin, PromptError, SamplingParams
from draftproof.models.table import TableModel
from draftproof.text import TextStream, apply_template, encode_prompt
from toys import Pieces, cut, decode

LETTERS = "abé€😀"


class Read(NamedTuple):
    text: str
    tokens: int
    stopped: bool


def stream(pieces: list[bytes], stop: tuple[str, ...]) -> Read:
    """Token by token, up to a stop string."""
    text, count = TextStream(Pieces(pieces), stop), 0
    out = []
    while count < len(pieces) and not text.stopped:
        out += text.push(count, Origin.PLAIN)
        count += 1
    out += text.finish()
    return Read("".join(piece.text for piece in out), count, text.stopped)


def offline(pieces: list[bytes], stop: tuple[str, ...]) -> Read:
    """The same by decoding everything again after every token."""
    for count in range(len(pieces) + 1):
        text, stopped = cut(decode(b"".join(pieces[:count]), False), stop)
        if stopped:
            return Read(text, count, True)
    text, stopped = cut(decode(b"".join(pieces), True), stop)
    return Read(text, len(pieces), stopped)


@st.composite
def chopped(draw: st.DrawFn) -> tuple[list[bytes], tuple[str, ...]]:
    """A text cut into pieces at any byte, and stop strings of the same letters."""
    data = draw(st.text(LETTERS, max_size=12)).encode()
    data = data[: len(data) - draw(st.integers(0, 3))]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    edges = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    stops = st.lists(st.text(LETTERS + "\ufffd", min_size=1, max_size=4), max_size=3)
    return pieces, tuple(draw(stops))


@given(chopped())
@settings(max_examples=800, deadline=None)
def test_pieces_join_to_the_offline_text(case: tuple[list[bytes], tuple[str, ...]]) -> None:
    assert stream(*case) == offline(*case)


@pytest.mark.parametrize("stop", ["STOP", "S", "ST€P", "é😀"])
def test_a_stop_is_found_at_every_offset_of_token_edges(stop: str) -> None:
    data = f"before {stop} after".encode()
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            pieces = [data[:first], data[first:second], data[second:]]
            text, _, stopped = stream(pieces, (stop,))
            assert (text, stopped) == ("before ", True)


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (["ab", "c"], ("abc", "b"), "a"),  # the stop that is complete first
        (["abc"], ("abc", "b"), "a"),  # in one token as in three
        (["a", "b", "c"], ("abc", "b"), "a"),
        (["x", "abc"], ("bc", "abc"), "x"),  # complete together: the longer one
        (["aa", "ab"], ("aab",), "a"),  # a failed beginning holds another one
        (["a", "a", "a", "b"], ("aab",), "a"),
        (["stop"], ("stop", "stop"), ""),
        (["one", "two", "three"], ("two", "three"), "one"),
    ],
)
def test_overlapping_stops(pieces: list[str], stop: tuple[str, ...], text: str) -> None:
    assert stream([piece.encode() for piece in pieces], stop)[0] == text


def test_text_is_let_out_as_soon_as_it_is_certain() -> None:
    text = TextStream(Pieces([b"one ", b"<e", b"x", b"<en", b"d>", b"more"]), ("<end>",))
    let_out = ["".join(p.text for p in text.push(t, Origin.PLAIN)) for t in range(5)]
    assert let_out == ["one ", "", "<ex", "", ""]
    assert text.stopped
    assert text.push(5, Origin.PLAIN) == text.finish() == []


def test_held_text_comes_out_at_the_end_with_its_origins() -> None:
    text = TextStream(Pieces([b"a<", b"en", b"\xe2\x82"]), ("<end>",))
    assert [p.text for p in text.push(0, Origin.ACCEPTED)] == ["a"]
    assert text.push(1, Origin.BONUS) == []
    assert text.push(2, Origin.CORRECTION) == []
    assert [(p.text, p.origin) for p in text.finish()] == [
        ("<", Origin.ACCEPTED),
        ("en", Origin.BONUS),
        ("\ufffd", Origin.CORRECTION),
    ]


def test_half_a_character_at_the_end_keeps_its_origin() -> None:
    text = TextStream(Pieces([b"\xc3"]))
    assert text.push(0, Origin.ACCEPTED) == []
    assert [(p.text, p.origin) for p in text.finish()] == [("\ufffd", Origin.ACCEPTED)]


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    text = TextStream(Pieces(["€".encode()[:1], "€".encode()[1:]]))
    assert text.push(0, Origin.ACCEPTED) == []
    assert [(p.text, p.origin) for p in text.push(1, Origin.BONUS)] == [("€", Origin.BONUS)]


def test_a_model_of_byte_tokens_streams_what_it_generates() -> None:
    model = TableModel({(): [0.3, 0.3, 0.2, 0.1, 0.1]}, options=None)
    model.tokenizer = Pieces([b"\xc3", b"\xa9", b"a", b"b", b"\xe2"])
    engine = Engine(model, "lookup")
    for seed in range(30):
        params = SamplingParams(temperature=1, seed=seed, max_tokens=20, stop=("é", "ba"))
        steps = list(engine.stream([2], params))
        tokens = [token for step in steps for token in step.tokens]
        data = [model.tokenizer.piece(token) for token in tokens]
        assert "".join(step.text for step in steps) == stream(data, params.stop)[0]


# -- prompts --------------------------------------------------------------------------------------

BYTES = [bytes([b]) for b in range(256)]


def tokenizer(template: str | None = None, bos: bool = True) -> Pieces:
    """Bytes, an end token <e> and a BOS <s>."""
    return Pieces([*BYTES, b"<e>", b"<s>"], end=256, bos=257 if bos else None, template=template)


HELLO = [{"role": "user", "content": "hi"}]


def render(template: str, messages: object = HELLO) -> str:
    return apply_template(tokenizer(template), messages)


@pytest.mark.parametrize("prompt", ["hi", "<s>hi"])
def test_bos_comes_exactly_once(prompt: str) -> None:
    assert encode_prompt(tokenizer(), prompt, 258) == [257, *b"hi"]
    assert encode_prompt(tokenizer(bos=False), "hi", 258) == [*b"hi"]


@pytest.mark.parametrize("start", ["", "{{ bos_token }}"])
def test_bos_comes_exactly_once_through_a_template(start: str) -> None:
    template = start + "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    assert encode_prompt(tokenizer(template), HELLO, 258) == [257, *b"hi", 256]


def test_token_ids_are_taken_as_they_are() -> None:
    ids = [5, 257, 257]
    tokens = encode_prompt(tokenizer(), ids, 258)
    assert tokens == ids
    tokens.append(1)
    assert ids == [5, 257, 257]
    assert encode_prompt(tokenizer(), (1, 2), 258) == [1, 2]


def test_templates_have_what_transformers_gives_them() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "hi"}'
    assert render("{{ 'ü<' | tojson }}") == '"ü<"'
    assert render("{{ messages | tojson(indent=1) }}").startswith("[\n {")
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    loop = "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(loop) == "012"
    assert render("{% if add_generation_prompt %}go{% endif %}") == "go"
    assert render("  {% if true %}\n  x\n  {% endif %}\n") == "  x\n"  # blocks leave no space


def test_the_generation_tag_passes_its_body_through() -> None:
    """As in transformers, where what is set in it stays in it."""
    tagged = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(tagged) == "hi"
    inner = "{% set x = 1 %}{%- generation -%} {% set x = 2 %}{{ x }} {%- endgeneration %}{{ x }}"
    assert render(inner) == "21"
    with pytest.raises(PromptError, match="chat template"):
        render("{% generation %}open")


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_what_a_template_may_be_given_is_none(name: str) -> None:
    assert render(f"{{% if {name} is not none %}}given{{% else %}}none{{% endif %}}") == "none"


def test_a_template_may_refuse() -> None:
    with pytest.raises(PromptError, match="no system message here"):
        render("{{ raise_exception('no system message here') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ raise_exception.__code__.co_consts }}",
        "{{ strftime_now.__globals__['sys'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ ('{0.__class__.__base__}' | attr('format'))(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_hostile_template_cannot_escape(template: str) -> None:
    with pytest.raises(PromptError) as caught:
        render(template)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at.all }}",
        "{% if %}",
        "{{ raise_exception('two\nlines') }}",
        "{% include 'other' %}",
    ],
)
def test_a_template_that_fails_gives_one_line(template: str) -> None:
    with pytest.raises(PromptError, match="chat template") as caught:
        render(template)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "messages",
    [
        [{"content": "hi"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": 1, "content": "hi"}],
    ],
)
def test_a_message_needs_role_and_content(messages: object) -> None:
    with pytest.raises(PromptError, match="role and a content"):
        encode_prompt(tokenizer("{{ messages }}"), messages, 258)


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(PromptError, match="--raw"):
        encode_prompt(tokenizer(None), HELLO, 258)
