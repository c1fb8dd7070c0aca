"""The tokenizers inside GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_gguf
from draftproof.models import Chunk
from draftproof.models.gguf import GgufModel

Open = Callable[..., GgufModel]
Tiny = dict[str, Path]


def test_the_tokenizer_of_the_file(tiny: Tiny, open_gguf: Open) -> None:
    tokenizer = open_gguf(tiny["llama"]).tokenizer
    assert tokenizer.end_tokens == {1, 2}
    assert tokenizer.bos == 0
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.vocabulary() == tiny_gguf.vocabulary()[0]
    tokens = tokenizer.encode("hello<|eot|>hell")
    assert [tokenizer.special_text(t) for t in tokens] == ["hello", "<|eot|>", "hell"]
    assert [tokenizer.piece(t) for t in tokens] == [b"hello", b"", b"hell"]
    assert tokenizer.piece(tokens[0]) is tokenizer.piece(tokens[0])


def test_padding_and_other_tokenizers_can_be_told_apart(tiny: Tiny, open_gguf: Open) -> None:
    plain, padded, other = (
        open_gguf(tiny[name]).tokenizer.vocabulary() for name in ("llama", "padded", "spm")
    )
    assert padded[: len(plain)] == plain
    assert len(padded) == len(plain) + 9
    assert other[: len(plain)] != plain[: len(other)]


def test_a_file_may_want_no_bos_and_have_no_template(tiny: Tiny, open_gguf: Open) -> None:
    tokenizer = open_gguf(tiny["other"]).tokenizer
    assert tokenizer.chat_template is None
    spm = open_gguf(tiny["spm"]).tokenizer
    assert spm.bos == 1  # llama.cpp's default for this kind


@pytest.mark.parametrize("name", ["llama", "spm"])
@pytest.mark.parametrize(
    "text",
    ["", "a", "\0", "a\0b\0", "é", "日本語 🙂", " \n\t", "\x7f\x80", "x" * 10_000],
    ids=["empty", "a", "nul", "nuls", "accent", "wide", "space", "control", "long"],
)
def test_any_text_comes_back(tiny: Tiny, open_gguf: Open, name: str, text: str) -> None:
    tokenizer = open_gguf(tiny[name]).tokenizer
    data = b"".join(map(tokenizer.piece, tokenizer.encode(text)))
    if name == "spm" and text:
        assert data[:1] == b" "  # its own prefix
        data = data[1:]
    assert data == text.encode()


def test_a_text_of_more_tokens_than_bytes(tmp_path: Path, open_gguf: Open) -> None:
    file = tiny_gguf.llama(tmp_path / "spaceless.gguf", tokenizer="spaceless")
    tokens = open_gguf(file).tokenizer.encode(" " * 100)
    assert len(tokens) == 3 * (100 + 1)  # and its own prefix


def test_a_lone_surrogate_is_replaced(tiny: Tiny, open_gguf: Open) -> None:
    tokenizer = open_gguf(tiny["llama"]).tokenizer
    assert b"".join(map(tokenizer.piece, tokenizer.encode("a\ud800b"))) == b"a?b"


@pytest.mark.model
def test_the_demo_model_knows_a_capital(demo_path: str, open_gguf: Open) -> None:
    model = open_gguf(demo_path, context_length=256)
    tokenizer = model.tokenizer
    prompt = tokenizer.encode("The capital of France is")
    (logits,) = model.forward([Chunk(0, prompt, 1)])
    assert tokenizer.piece(int(logits[0].argmax())) == b" Paris"
    ends = {tokenizer.special_text(token) for token in tokenizer.end_tokens}
    assert {"<|endoftext|>", "<|im_end|>"} <= ends
    assert tokenizer.bos is None
    assert "<|im_start|>" in (tokenizer.chat_template or "")
