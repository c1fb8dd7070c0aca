"""GGUF models at work: passes, failures, rollback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from draftproof.errors import ModelError
from draftproof.models import Chunk, gguf_load
from draftproof.models.gguf import GgufModel
from draftproof.models.llama import lib, logits_address

Open = Callable[..., GgufModel]
Tiny = dict[str, Path]
TEXT = [3 + i * 7 % 250 for i in range(60)]
TOLERANCE = 0.03  # float16 cache, sums in another order; logits have a spread of about 1


def fresh(model: GgufModel, seq: int, tokens: list[int], rows: int) -> np.ndarray:
    model.truncate(seq, 0)
    return model.forward([Chunk(seq, tokens, rows)])[0].copy()


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The width of every llama_decode."""
    widths: list[int] = []
    decode = lib.llama_decode

    def counted(context: object, batch: object) -> int:
        widths.append(batch.n_tokens)
        return decode(context, batch)

    monkeypatch.setattr(lib, "llama_decode", counted)
    return widths


def test_ragged_chunks_of_many_sequences_take_one_decode(
    tiny: Tiny, open_gguf: Open, decodes: list[int]
) -> None:
    model = open_gguf(tiny["llama"], context_length=64, max_sequences=8)
    alone = [fresh(model, 0, TEXT[: 3 + 5 * i], 2) for i in range(8)]
    model.truncate(0, 0)
    decodes.clear()
    chunks = [Chunk(i, TEXT[: 3 + 5 * i], 2) for i in reversed(range(8))]
    together = model.forward(chunks)
    assert decodes == [sum(3 + 5 * i for i in range(8))]
    for chunk, logits in zip(chunks, together, strict=True):
        np.testing.assert_allclose(logits, alone[chunk.seq], atol=TOLERANCE)


def test_logits_are_views_of_llama_cpps_memory(tiny: Tiny, open_gguf: Open) -> None:
    model = open_gguf(tiny["llama"], max_sequences=2)
    for rows in (1, 5, 2):  # the memory moves when it grows
        first, second = model.forward([Chunk(0, TEXT[:6], rows), Chunk(1, TEXT[:6], 1)])
        start = logits_address(model._context)
        assert first.ctypes.data == start
        assert second.ctypes.data == start + first.nbytes
        assert first.dtype == np.float32
        assert not first.flags.owndata


def test_only_the_logits_asked_for_are_computed(
    tiny: Tiny, open_gguf: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_gguf(tiny["llama"], max_sequences=2)
    flags: list[list[int]] = []
    decode = lib.llama_decode

    def seen(context: object, batch: object) -> int:
        flags.append(batch.logits[: batch.n_tokens])
        return decode(context, batch)

    monkeypatch.setattr(lib, "llama_decode", seen)
    model.forward([Chunk(0, TEXT[:4], 1), Chunk(1, TEXT[:3], 2)])
    model.forward([Chunk(0, TEXT[:4], 0), Chunk(1, TEXT[:3], 0)])
    assert flags == [[0, 0, 0, 1, 0, 1, 1], [0] * 7]


def test_more_tokens_than_one_decode_takes(
    tiny: Tiny, open_gguf: Open, decodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_gguf(tiny["llama"], max_sequences=2)
    want = [a.copy() for a in whole.forward([Chunk(0, TEXT, 20), Chunk(1, TEXT[:13], 13)])]
    monkeypatch.setattr(gguf_load, "N_BATCH", 16)
    model = open_gguf(tiny["llama"], max_sequences=2)
    decodes.clear()
    got = model.forward([Chunk(0, TEXT, 20), Chunk(1, TEXT[:13], 13)])
    assert decodes == [16, 16, 16, 16, 9]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)
    assert (model.length(0), model.length(1)) == (60, 13)


def test_an_empty_pass(tiny: Tiny, open_gguf: Open) -> None:
    model = open_gguf(tiny["llama"])
    (logits,) = model.forward([Chunk(0, TEXT[:2], 0)])
    assert logits.shape == (0, model.capabilities.vocabulary)


def test_a_refused_token_leaves_the_caches_as_they_were(tiny: Tiny, open_gguf: Open) -> None:
    model = open_gguf(tiny["llama"], max_sequences=2)
    model.forward([Chunk(0, TEXT[:5], 0)])
    with pytest.raises(ModelError, match=r"llama\.gguf failed: invalid token\[3\] = 100000"):
        model.forward([Chunk(1, TEXT[:3], 0), Chunk(0, [100_000], 1)])
    assert (model.length(0), model.length(1)) == (5, 0)
    (logits,) = model.forward([Chunk(0, TEXT[5:9], 1)])
    np.testing.assert_allclose(logits, fresh(model, 1, TEXT[:9], 1), atol=TOLERANCE)


def test_what_was_cached_before_a_failure_is_known(
    tiny: Tiny, open_gguf: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_load, "N_BATCH", 16)
    model = open_gguf(tiny["llama"], max_sequences=2)
    with pytest.raises(ModelError, match="invalid token"):
        model.forward([Chunk(0, TEXT[:20], 0), Chunk(1, [*TEXT[:20], 100_000], 1)])
    assert (model.length(0), model.length(1)) == (20, 12)
    model.truncate(0, 7)
    model.truncate(1, 0)
    (logits,) = model.forward([Chunk(0, TEXT[7:9], 1)])
    np.testing.assert_allclose(logits, fresh(model, 1, TEXT[:9], 1), atol=TOLERANCE)


@pytest.mark.parametrize("before", [True, False])
def test_ctrl_c_during_a_pass(
    tiny: Tiny, open_gguf: Open, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    model = open_gguf(tiny["llama"])
    model.forward([Chunk(0, TEXT[:5], 0)])
    decode = lib.llama_decode

    def interrupted(context: object, batch: object) -> int:
        if not before:
            decode(context, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lib, "llama_decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.forward([Chunk(0, TEXT[5:9], 1)])
    assert model.length(0) == (5 if before else 9)
    model.truncate(0, 5)
    logits = model.forward([Chunk(0, TEXT[5:9], 1)])[0].copy()
    np.testing.assert_allclose(logits, fresh(model, 0, TEXT[:9], 1), atol=TOLERANCE)


def test_running_past_the_context_appends_nothing(tiny: Tiny, open_gguf: Open) -> None:
    model = open_gguf(tiny["llama"], context_length=10, max_sequences=2)
    with pytest.raises(ModelError, match=r"holds 10 tokens a sequence, and 11 were given: shorten"):
        model.forward([Chunk(0, TEXT[:4], 0), Chunk(1, TEXT[:11], 1)])
    assert (model.length(0), model.length(1)) == (0, 0)


def test_a_full_cache_of_all_sequences(tiny: Tiny, open_gguf: Open) -> None:
    model = open_gguf(tiny["llama"], context_length=256, max_sequences=3)
    text = (TEXT * 5)[:256]
    for seq in range(3):
        model.forward([Chunk(seq, text, 0)])
    model.truncate(1, 200)
    (logits,) = model.forward([Chunk(1, text[200:], 1)])
    last = logits.copy()
    np.testing.assert_allclose(last, fresh(model, 0, text, 1), atol=TOLERANCE)


@pytest.mark.parametrize("kept", [3, 20, 150, 399])
def test_a_sliding_window_can_be_rolled_back_behind_the_window(
    tiny: Tiny, open_gguf: Open, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(gguf_load, "N_BATCH", 16)  # else even a short cache would hold the text
    model = open_gguf(tiny["gemma2"], max_sequences=2)
    text = (TEXT * 7)[:400]
    model.forward([Chunk(0, text, 0)])
    model.truncate(0, kept)
    got = model.forward([Chunk(0, TEXT[::-1][:9], 9)])[0].copy()
    want = fresh(model, 1, text[:kept] + TEXT[::-1][:9], 9)
    np.testing.assert_allclose(got, want, atol=TOLERANCE)


def test_window_entries_that_were_overwritten_are_missed(tiny: Tiny, open_gguf: Open) -> None:
    """A neighbour takes cells that the window has left: going back there must be refused."""
    model = open_gguf(tiny["gemma2"], context_length=256, max_sequences=2)
    text = (TEXT * 5)[:256]
    model.forward([Chunk(0, text[:156], 0)])
    model.forward([Chunk(1, text[:200], 0)])
    model.forward([Chunk(0, text[156:], 0)])
    model.truncate(1, 0)
    model.forward([Chunk(1, text[:200], 0)])
    model.forward([Chunk(1, text[200:], 0)])
    with pytest.raises(ModelError, match=r"cannot go back to 100 .*window.*: truncate to 0"):
        model.truncate(0, 100)
    assert model.length(0) == 256
    window = 8
    last = lib.llama_memory_seq_pos_min(model._memory, 0) + window - 1
    assert 100 < last < 256
    with pytest.raises(ModelError, match="cannot go back"):
        model.truncate(0, last - 1)
    model.truncate(0, last)
    got = model.forward([Chunk(0, text[last:], 1)])[0].copy()
    np.testing.assert_allclose(got, fresh(model, 1, text, 1), atol=TOLERANCE)
    np.testing.assert_allclose(got, fresh(model, 0, text, 1), atol=TOLERANCE)


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_a_recurrent_model_is_recognised_and_still_runs(
    tiny: Tiny, open_gguf: Open, name: str
) -> None:
    model = open_gguf(tiny[name], max_sequences=2)
    assert not model.capabilities.rollback
    assert model.capabilities.no_rollback_reason == "it has a recurrent state"
    want = fresh(model, 0, TEXT[:9], 9)
    with pytest.raises(ModelError, match=r"back to 4 of 9 entries \(it has a recurrent state\)"):
        model.truncate(0, 4)
    assert model.length(0) == 9
    model.truncate(0, 9)
    model.truncate(0, 0)
    for at, token in enumerate(TEXT[:9]):
        (logits,) = model.forward([Chunk(0, [token], 1)])
        np.testing.assert_allclose(logits[0], want[at], atol=TOLERANCE)


def test_a_cache_that_only_pretends_to_roll_back_is_found_out(
    tiny: Tiny, open_gguf: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = lib.llama_memory_seq_rm

    def pretend(memory: object, seq: int, start: int, end: int) -> bool:
        return True if start else remove(memory, seq, start, end)

    monkeypatch.setattr(lib, "llama_memory_seq_rm", pretend)
    model = open_gguf(tiny["llama"])
    assert not model.capabilities.rollback
    assert "cache" in model.capabilities.no_rollback_reason


@pytest.mark.model
def test_the_demo_model_after_rollback(f16_path: str, open_gguf: Open) -> None:
    model = open_gguf(f16_path, context_length=256, max_sequences=2)
    text = model.tokenizer.encode("Once upon a time there was a fox who lived in a forest.")
    model.forward([Chunk(0, text[:6], 0)])
    model.forward([Chunk(0, list(range(100, 108)), 8)])
    model.truncate(0, 6)
    (logits,) = model.forward([Chunk(0, text[6:], len(text) - 6)])
    got = logits.copy()
    want = fresh(model, 1, text, len(text) - 6)
    np.testing.assert_allclose(got, want, atol=0.1)
    np.testing.assert_array_equal(got.argmax(1), want.argmax(1))
