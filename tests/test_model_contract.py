"""What every model must do, whatever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from draftproof.errors import ClosedError, ModelError
from draftproof.models import Chunk, Model, load_model
from draftproof.types import ModelOptions

CONTEXT = 32
TOLERANCE = 0.03  # for float16 caches; logits have a spread of about 1
TEXT = [0, 1, 2, 0, 2, 1, 1, 0]
OTHER = [2, 2, 1, 0, 1]


@pytest.fixture(params=["table:markov", "gguf:llama", "gguf:gemma2", "gguf:qwen2vl", "hf:llama"])
def model(
    request: pytest.FixtureRequest, tiny: dict[str, Path], tiny_checkpoint: Path
) -> Iterator[Model]:
    kind, name = request.param.split(":")
    spec = {"gguf": f"gguf:{tiny.get(name)}", "hf": f"hf:{tiny_checkpoint}"}.get(
        kind, request.param
    )
    model = load_model(spec, ModelOptions(context_length=CONTEXT, max_sequences=3, threads=1))
    yield model
    model.close()


def rows(model: Model, tokens: list[int]) -> np.ndarray:
    """Logits at every position of a text read afresh, [n, V]."""
    model.truncate(2, 0)
    (logits,) = model.forward([Chunk(2, tokens, len(tokens))])
    return np.asarray(logits).copy()


def test_capabilities_are_honest(model: Model) -> None:
    capabilities = model.capabilities
    assert capabilities.context_length == CONTEXT
    assert capabilities.max_sequences == 3
    assert capabilities.rollback
    assert not capabilities.no_rollback_reason
    assert capabilities.vocabulary == len(model.tokenizer.vocabulary())
    assert model.name


def test_logits_come_for_the_last_positions_asked_for(model: Model) -> None:
    want = rows(model, TEXT)
    none, last, all_of_them = model.forward(
        [Chunk(0, TEXT, 0), Chunk(1, TEXT[:5], 1), Chunk(2, OTHER, len(OTHER))]
    )
    assert none.shape == (0, want.shape[1])
    np.testing.assert_allclose(last, want[4:5], atol=TOLERANCE)
    assert all_of_them.shape == (len(OTHER), want.shape[1])
    assert [model.length(seq) for seq in range(3)] == [8, 5, 8 + 5]


def test_pieces_of_a_text_give_what_the_whole_gives(model: Model) -> None:
    want = rows(model, TEXT)
    for at, token in enumerate(TEXT):
        (logits,) = model.forward([Chunk(0, [token], 1)])
        np.testing.assert_allclose(logits[0], want[at], atol=TOLERANCE)


def test_sequences_together_give_what_each_alone_gives(model: Model) -> None:
    alone = [rows(model, TEXT), rows(model, OTHER)]
    model.truncate(2, 0)
    together = model.forward([Chunk(2, OTHER, len(OTHER)), Chunk(0, TEXT, len(TEXT))])
    np.testing.assert_allclose(together[1], alone[0], atol=TOLERANCE)
    np.testing.assert_allclose(together[0], alone[1], atol=TOLERANCE)


@pytest.mark.parametrize("kept", [0, 1, 5, 7])
def test_rollback_leaves_nothing_behind(model: Model, kept: int) -> None:
    want = rows(model, TEXT[:kept] + OTHER)[kept:]
    model.forward([Chunk(0, TEXT, 0), Chunk(1, TEXT, 0)])
    model.truncate(0, kept)
    assert model.length(0) == kept
    assert model.length(1) == len(TEXT)
    (logits,) = model.forward([Chunk(0, OTHER, len(OTHER))])
    np.testing.assert_allclose(logits, want, atol=TOLERANCE)
    np.testing.assert_array_equal(np.asarray(logits).argmax(1), want.argmax(1))


def test_truncating_is_idempotent_and_never_lengthens(model: Model) -> None:
    model.forward([Chunk(0, TEXT, 0)])
    for length in (20, 8, 3, 3, 5):
        model.truncate(0, length)
    assert model.length(0) == 3
    model.truncate(0, 0)
    model.truncate(0, 0)
    assert model.length(0) == 0


def test_the_context_can_be_filled_and_not_passed(model: Model) -> None:
    model.forward([Chunk(0, [1] * (CONTEXT - 1), 0)])
    with pytest.raises(ModelError, match="context"):
        model.forward([Chunk(0, [1, 1], 1)])
    model.truncate(0, CONTEXT - 1)
    model.forward([Chunk(0, [1], 1)])
    assert model.length(0) == CONTEXT


def test_closed_is_closed(model: Model) -> None:
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        model.forward([Chunk(0, [1], 1)])
    with pytest.raises(ClosedError):
        model.truncate(0, 0)


def test_the_tokenizer_gives_back_what_it_took(model: Model) -> None:
    tokenizer = model.tokenizer
    tokens = tokenizer.encode("abc")
    assert b"".join(map(tokenizer.piece, tokens)) == b"abc"
    assert all(isinstance(token, int) for token in tokens)
    assert tokenizer.end_tokens
    for token in tokenizer.end_tokens:
        assert tokenizer.piece(token) == b""
        assert tokenizer.special_text(token)
    assert tokenizer.encode("") == []
