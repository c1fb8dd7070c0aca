"""Tokenizers beside checkpoints: their pieces are the bytes of their texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import tiny_hf
from draftproof.errors import ModelLoadError, PromptError
from draftproof.models.hf_vocab import HfTokenizer
from draftproof.text import TextStream
from draftproof.types import Origin

TEXTS = [
    "hello world",
    "  two  spaces and a tab\t, a line\n\n",
    "naïve Größe, Ελληνικά, 日本語, العربية",
    "👩‍👩‍👧‍👦 family 🎉🏳️‍🌈",
    "def f(x):\n    return x ** 2  # x²",
    "\x00\x7f control",
]


def settings(end: Any = None) -> Any:
    """A model as far as a tokenizer looks at one."""
    config = SimpleNamespace(eos_token_id=end)
    return SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: config),
        generation_config=SimpleNamespace(eos_token_id=None),
    )


def wrap(tokenizer: Any, width: int | None = None, end: Any = None) -> HfTokenizer:
    return HfTokenizer(tokenizer, settings(end), width or len(tokenizer), "tiny")


def sentencepiece(metaspace: bool = False) -> Any:
    """As Llama 2 (a decoder of steps) or as older conversions (Metaspace) write it."""
    words = ["▁", "h", "e", "l", "o", "▁h", "el", "▁hel", "lo", "▁hello", "w", "r", "d", "▁w"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    merges = [("▁", "h"), ("e", "l"), ("▁h", "el"), ("l", "o"), ("▁hel", "lo"), ("▁", "w")]
    vocabulary = {text: token for token, text in enumerate(tokens)}
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    else:
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece", "metaspace"])
def test_pieces_are_the_bytes_of_the_text(kind: str, text: str) -> None:
    theirs = tiny_hf.byte_level() if kind == "byte-level" else sentencepiece(kind == "metaspace")
    ours = wrap(theirs)
    tokens = ours.encode(text)
    assert tokens == theirs(text, add_special_tokens=False).input_ids
    joined = b"".join(map(ours.piece, tokens)).decode()
    assert joined.removeprefix(" " if kind != "byte-level" else "") == text.removeprefix(
        " " if kind == "metaspace" else ""
    )
    assert theirs.decode(tokens, clean_up_tokenization_spaces=False) in (joined, joined[1:])


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    tokenizer = wrap(tiny_hf.byte_level())
    tokens = tokenizer.encode("🎉!")
    assert len(tokens) == 5
    stream = TextStream(tokenizer)
    texts = ["".join(p.text for p in stream.push(token, Origin.PLAIN)) for token in tokens]
    assert texts == ["", "", "", "🎉", "!"]


def test_special_tokens_are_read_and_not_shown() -> None:
    tokenizer = wrap(tiny_hf.byte_level())
    end = tokenizer.eos
    assert end is not None
    assert tokenizer.end_tokens == {end}
    assert tokenizer.encode("a<|end|>b") == [0, end, 1]
    assert tokenizer.piece(end) == b""
    assert tokenizer.special_text(end) == "<|end|>"
    assert tokenizer.special_text(0) == "a"


def test_added_tokens_that_are_no_special_ones_are_text() -> None:
    theirs = tiny_hf.byte_level()
    theirs.add_tokens(["<think>"])
    tokenizer = wrap(theirs)
    (token,) = tokenizer.encode("<think>")
    assert tokenizer.piece(token) == b"<think>"


@pytest.mark.parametrize(("end", "want"), [(None, set()), (5, {5}), ([5, 7, 9999], {5, 7})])
def test_end_tokens_come_from_every_configuration(end: Any, want: set[int]) -> None:
    theirs = tiny_hf.byte_level()
    assert wrap(theirs, end=end).end_tokens == {theirs.eos_token_id, *want}
    assert wrap(tiny_hf.byte_level(end=False), end=end).end_tokens == want


def test_bos_is_what_the_tokenizer_puts_first() -> None:
    assert wrap(tiny_hf.byte_level()).bos is None
    theirs = tiny_hf.byte_level(bos=True)
    assert wrap(theirs).bos == theirs.bos_token_id
    assert wrap(sentencepiece()).bos == 1


def test_the_vocabulary_has_the_width_of_the_head() -> None:
    theirs = tiny_hf.byte_level()
    padded = wrap(theirs, len(theirs) + 3).vocabulary()
    assert len(set(padded)) == len(theirs) + 3
    assert padded[-1] == f"[PAD{len(theirs) + 2}]"
    narrow = wrap(theirs, 256)
    assert len(narrow.vocabulary()) == 256
    assert narrow.end_tokens == set()
    with pytest.raises(PromptError, match="hello"):
        narrow.encode("hello")


def test_padded_rows_have_no_text() -> None:
    theirs = tiny_hf.byte_level()
    assert wrap(theirs, len(theirs) + 3).piece(len(theirs)) == b""


def test_a_tokenizer_that_cuts_texts_is_left_as_it_is_and_not_obeyed() -> None:
    theirs = tiny_hf.byte_level()
    theirs("warm up", truncation=True, max_length=3)
    assert theirs.backend_tokenizer.truncation
    assert len(wrap(theirs).encode("a" * 50)) == 50
    assert theirs.backend_tokenizer.truncation


def test_lone_surrogates_do_not_break_it() -> None:
    assert wrap(tiny_hf.byte_level()).encode("a\ud800") == [
        0,
        *wrap(tiny_hf.byte_level()).encode("?"),
    ]


def test_words_are_not_bytes() -> None:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    with pytest.raises(ModelLoadError, match="tokens are not bytes \\(WordPiece\\)"):
        wrap(theirs)


def test_a_tokenizer_without_a_fast_version_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="without a fast version"):
        HfTokenizer(SimpleNamespace(), settings(), 10, "tiny")
