"""Bit-exact mode: the same bits however a text is cut, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import (
    Chunk,
    Engine,
    Model,
    ModelError,
    ModelLoadError,
    ModelOptions,
    ParameterError,
    load_model,
)
from draftproof.errors import ClosedError
from draftproof.models import Capabilities
from draftproof.models.bit_exact import BitExactModel
from draftproof.models.table import LetterTokenizer
from draftproof.models.widths import ALIGNED, Widths

CONTEXT, SIZE = 640, 6

Kernel = Callable[[int, int, int, bool], object]
"""Which kernel gives a row its bits: of the pass's width, the row, where the pass begins, and
whether other sequences are cached."""

KERNELS: dict[str, tuple[Kernel, Widths]] = {
    "one for all": (lambda w, row, start, other: 0, Widths((1, 2, 3, 4, 5, 6, 7, 8, 12, 16))),
    "width 1 differs": (lambda w, row, start, other: w == 1, Widths((2, 3, 4, 5, 6, 7, 8, 12, 16))),
    "width 1 differs behind 256": (
        lambda w, row, start, other: w == 1 and start >= 256,
        Widths((2, 3, 4, 5, 6, 7, 8, 12, 16)),
    ),
    "width 1 differs behind 512": (
        lambda w, row, start, other: w == 1 and start >= 512,
        Widths((2, 3, 4, 5, 6, 7, 8, 12, 16)),
    ),
    "to 4, to 8, more": (lambda w, row, start, other: (w > 4) + (w > 8), Widths((5, 6, 7, 8))),
    "each width its own": (lambda w, row, start, other: w, Widths((ALIGNED,), ALIGNED)),
    "the row counts": (lambda w, row, start, other: row % 3, Widths((ALIGNED,), ALIGNED)),
    "the end counts": (lambda w, row, start, other: (start + w) % 5, Widths((ALIGNED,), ALIGNED)),
}
WIDE = {  # where wide passes are the same too, and how many of them
    "one for all": (32, 48, 128, 256),
    "width 1 differs": (32, 48, 128, 256),
    "width 1 differs behind 256": (32, 48, 128, 256),
    "width 1 differs behind 512": (32, 48, 128, 256),
}


class Fake:
    """A model whose logits hang on every token before, and on the kernels that read them."""

    name = "fake"
    path = "fake.gguf"

    def __init__(self, kernel: Kernel, context: int = CONTEXT, sequences: int = 2) -> None:
        self.capabilities = Capabilities(
            context_length=context, vocabulary=SIZE, max_sequences=sequences
        )
        self.tokenizer = LetterTokenizer(SIZE)
        self.passes: list[list[Chunk]] = []
        self.failing = False
        self._kernel = kernel
        self._states: list[list[int]] = [[] for _ in range(sequences)]
        self._buffer = np.empty((context, SIZE))  # as llama.cpp: overwritten by the next pass

    def forward(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        self.passes.append(list(chunks))
        return [self._append(*chunk) for chunk in chunks]

    def _append(self, seq: int, tokens: Sequence[int], logits: int) -> np.ndarray:
        states = self._states[seq]
        start, width = len(states), len(tokens)
        others = any(other for other in self._states if other is not states)
        assert start + width <= self.capabilities.context_length
        for row, token in enumerate(tokens):
            if self.failing and row == width // 2:
                raise ModelError("fake failed")
            before = states[-1] if states else 0
            states.append(hash((before, token, self._kernel(width, row, start, others))))
        for row in range(width - logits, width):
            head = self._kernel(logits, row, start, others) if logits != width else 0
            seen = hash((states[start + row], head)) % 2**20
            self._buffer[row] = np.sin(np.arange(1, SIZE + 1) * (seen + 1))
        return self._buffer[width - logits : width]

    def length(self, seq: int) -> int:
        return len(self._states[seq])

    def truncate(self, seq: int, length: int) -> None:
        del self._states[seq][length:]

    def close(self) -> None:
        self._states = []


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, SIZE, count)]


def whole(model: Model, text: list[int], seq: int = 0) -> np.ndarray:
    """Logits of a text that is read at once, [n, V]."""
    model.truncate(seq, 0)
    (rows,) = model.forward([Chunk(seq, text, len(text))])
    model.truncate(seq, 0)
    return np.asarray(rows).copy()


@pytest.fixture(scope="module", params=KERNELS)
def loaded(request: pytest.FixtureRequest) -> tuple[str, Fake, BitExactModel]:
    fake = Fake(KERNELS[request.param][0])
    return request.param, fake, BitExactModel(fake)


@pytest.fixture
def made(loaded: tuple[str, Fake, BitExactModel]) -> tuple[str, Fake, BitExactModel]:
    empty(loaded[2])
    return loaded


def empty(model: BitExactModel) -> None:
    for seq in range(model.capabilities.max_sequences):
        model.truncate(seq, 0)


def test_the_cheapest_class_is_found(made: tuple[str, Fake, BitExactModel]) -> None:
    name, _, model = made
    narrow = KERNELS[name][1]
    assert model.widths == replace(narrow, widths=(*narrow.widths, *WIDE.get(name, ())))
    assert model.cost.widths is model.widths
    assert model.length(0) == 0
    assert str(model.cost).startswith("bit-exact: passes of ")


def test_wide_passes_that_differ_are_left_out() -> None:
    assert BitExactModel(Fake(lambda w, *_: w >= 64)).widths.widths[-1] == 48
    assert BitExactModel(Fake(lambda w, *_: w >= 32)).widths.widths[-1] == 16


piece = st.tuples(st.integers(0, 1), st.integers(1, 20), st.integers(0, 4), st.booleans())


@settings(max_examples=30, deadline=None)
@given(pieces=st.lists(piece, min_size=1, max_size=25), first=st.sampled_from([0, 245, 500]))
def test_any_cut_gives_the_same_bits(
    loaded: tuple[str, Fake, BitExactModel], pieces: list[tuple[int, int, int, bool]], first: int
) -> None:
    """Two texts in turns, in pieces, with drafts that are rejected, with and without logits."""
    _, fake, model = loaded
    texts = [tokens_of(600, seed) for seed in (1, 2)]
    empty(model)  # of the example before
    wanted = [whole(model, text) for text in texts]
    at = [first, 0]
    if first:
        model.forward([Chunk(0, texts[0][:first], 0)])
    for seq, size, rejected, looked_at in pieces:
        start, end = at[seq], min(at[seq] + size, 600)
        if start == end:
            continue
        drafts = [(t + 1) % SIZE for t in texts[seq][end : end + rejected]]
        tokens = [*texts[seq][start:end], *drafts]
        (rows,) = model.forward([Chunk(seq, tokens, len(tokens) if looked_at else 0)])
        assert rows.shape == (len(tokens) if looked_at else 0, SIZE)
        model.truncate(seq, end)
        at[seq] = end
        assert (model.length(seq), fake.length(seq)) == (end, end)
        np.testing.assert_array_equal(rows[: end - start], wanted[seq][start:end][: len(rows)])


def test_all_passes_are_of_the_class(made: tuple[str, Fake, BitExactModel]) -> None:
    """And hold one sequence, whose logits are asked for all together."""
    _, fake, model = made
    fake.passes.clear()
    model.forward([Chunk(0, tokens_of(70), 1), Chunk(1, [3], 1)])
    model.forward([Chunk(0, [1, 2], 2), Chunk(1, [1], 1)])
    for (chunk,) in fake.passes:
        assert len(chunk.tokens) in model.widths.widths
        assert chunk.logits in (0, len(chunk.tokens))
    assert len(fake.passes) >= 4


def test_the_logits_of_a_batch_stay_valid(made: tuple[str, Fake, BitExactModel]) -> None:
    model = made[2]
    texts = tokens_of(9, 1), tokens_of(4, 2)
    alone = [whole(model, text)[-2:] for text in texts]
    together = model.forward([Chunk(seq, text, 2) for seq, text in enumerate(texts)])
    for ours, wanted in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("context", [1, 7, 16, 37, 300])
@pytest.mark.parametrize("name", KERNELS)
def test_the_context_can_be_filled_to_its_end(name: str, context: int) -> None:
    """Where there is no room for padding."""
    model = BitExactModel(Fake(KERNELS[name][0], context))
    limit = model.capabilities.context_length
    assert limit == context - context % model.widths.align
    text = tokens_of(limit)
    wanted = whole(model, text)
    model.forward([Chunk(0, text[: limit - 1], 0)] if limit > 1 else [Chunk(1, [0], 0)])
    (rows,) = model.forward([Chunk(0, text[limit - 1 :], 1)])
    np.testing.assert_array_equal(rows, wanted[-1:])
    with pytest.raises(ModelError, match=f"holds {limit} tokens"):
        model.forward([Chunk(0, [0], 1)])
    assert model.length(0) == limit


def test_the_context_is_what_was_asked_for() -> None:
    model = BitExactModel(Fake(KERNELS["one for all"][0]), 100)
    assert model.capabilities.context_length == 100


def restless(start: int) -> Kernel:
    """Never the same twice, from a position on."""
    calls = count()
    return lambda w, row, begin, other: begin + row >= start and next(calls)


@pytest.mark.parametrize(
    "kernel",
    [restless(0), restless(510), lambda w, row, start, other: other],
    ids=["never twice the same", "behind 510", "neighbours count"],
)
def test_no_class_is_refused(kernel: Kernel) -> None:
    with pytest.raises(ModelLoadError, match=r"fake cannot be run bit-exactly.*leave bit-exact"):
        BitExactModel(Fake(kernel))


def test_a_model_that_cannot_go_back_is_refused() -> None:
    fake = Fake(KERNELS["one for all"][0])
    fake.capabilities = replace(
        fake.capabilities, rollback=False, no_rollback_reason="it has a recurrent state"
    )
    with pytest.raises(ModelLoadError, match="recurrent"):
        BitExactModel(fake)


def test_a_class_that_ends_in_long_texts_is_noticed_there() -> None:
    """It is tried again whenever a text is twice as long."""
    fake = Fake(lambda w, row, start, other: w == 2 and start > 1200, context=4000)
    model = BitExactModel(fake)

    def read() -> None:
        for at in range(0, 4000, 8):
            model.forward([Chunk(0, tokens_of(8, at), 1)])

    with pytest.raises(ModelError, match=r"no longer give the same bits.*context length of"):
        read()
    assert 1200 < model.length(0) < 2400


def test_a_failed_pass_changes_nothing(made: tuple[str, Fake, BitExactModel]) -> None:
    _, fake, model = made
    text = tokens_of(30)
    wanted = whole(model, text)
    model.forward([Chunk(0, text[:21], 0)])
    fake.failing = True
    with pytest.raises(ModelError):
        model.forward([Chunk(0, text[21:], 9)])
    fake.failing = False
    assert model.length(0) == 21
    (rows,) = model.forward([Chunk(0, text[21:], 9)])
    np.testing.assert_array_equal(rows, wanted[21:])


def test_the_rest_is_the_models_own() -> None:
    fake = Fake(KERNELS["one for all"][0])
    model = BitExactModel(fake)
    assert (model.name, model.path, model.tokenizer) == ("fake", "fake.gguf", fake.tokenizer)
    table = load_model("table:markov", ModelOptions(bit_exact=True))
    assert table.path is None
    table.close()
    table.close()
    with pytest.raises(ClosedError):
        table.forward([Chunk(0, [0], 1)])


def test_the_option_is_checked() -> None:
    with pytest.raises(ParameterError, match="bit_exact"):
        ModelOptions(bit_exact=1)


def test_a_draft_model_is_an_ordinary_one() -> None:
    options = ModelOptions(bit_exact=True)
    with Engine("table:markov", "table:markov-draft", options=options) as engine:
        assert isinstance(engine.target, BitExactModel)
        assert not isinstance(engine.drafter.model, BitExactModel)
        assert engine.generate("ab").text == Engine(engine.target).generate("ab").text
