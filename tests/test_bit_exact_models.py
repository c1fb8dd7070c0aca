"""Bit-exact mode on real models: the same text before a token gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from draftproof import (
    Chunk,
    Engine,
    Model,
    ModelOptions,
    SamplingParams,
    Speculation,
    load_drafter,
    load_model,
)
from draftproof.models.bit_exact import BitExactModel

PROMPTS = (
    "List three fruits, then list them again: ",
    "The quick brown fox jumped over the lazy dog. Repeat: The quick brown fox",
    "Once upon a time",
)
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=3)


class Witness:
    """Stands in front of a model, and fails where a text gives other bits than it gave before."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._texts: list[list[int]] = [[] for _ in range(model.capabilities.max_sequences)]
        self._seen: dict[tuple[int, ...], bytes] = {}
        self.again = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, chunks: Sequence[Chunk]) -> list[object]:
        logits = self._model.forward(chunks)
        for chunk, rows in zip(chunks, logits, strict=True):
            text = self._texts[chunk.seq] = [*self._texts[chunk.seq], *chunk.tokens]
            for row in range(chunk.logits):
                key = tuple(text[: len(text) - chunk.logits + row + 1])
                bits = np.asarray(rows[row]).tobytes()
                assert self._seen.setdefault(key, bits) == bits, f"{len(key)} tokens"
                self.again += self._seen[key] is not bits
        return logits

    def truncate(self, seq: int, length: int) -> None:
        self._model.truncate(seq, length)
        del self._texts[seq][length:]


def check_texts(model: Model, drafts: Sequence[str], prompts: Sequence[str] = PROMPTS) -> None:
    """Plain, speculated on, in a batch with a cancelled neighbour, and on a cached prefix."""
    target = Witness(model)
    drafters = [load_drafter(spec, target, ModelOptions(threads=1)) for spec in drafts]
    plain = {}
    for params in (GREEDY, SEEDED):
        for prompt in prompts:
            plain[prompt, params] = Engine(target).generate(prompt, params)
    for params in (GREEDY, SEEDED):
        for drafter, length in zip(cycle(drafters), (1, 3, 8), strict=False):
            engine = Engine(target, drafter, speculation=Speculation(draft_length=length))
            done = engine.generate(prompts[1], params)
            assert done.token_ids == plain[prompts[1], params].token_ids
        check_batch(engine, prompts, params, plain)
    before = target.again
    whole_text = [*model.tokenizer.encode(prompts[1]), *plain[prompts[1], GREEDY].token_ids]
    for start in range(0, len(whole_text), 10):  # read as a prompt what was decoded before
        target.truncate(0, start)
        target.forward([Chunk(0, whole_text[start:], min(10, len(whole_text) - start))])
    assert target.again > before
    for drafter in drafters:
        drafter.close()


def check_batch(engine: Engine, prompts: Sequence[str], params: SamplingParams, plain: dict):
    requests = [engine.submit(prompt, params) for prompt in prompts]
    for _ in range(3):
        engine.step()
    engine.cancel(requests[1])
    while engine.step():
        pass
    for prompt, request in zip(prompts, requests, strict=True):
        ids = engine.completion(request).token_ids
        assert ids == plain[prompt, params].token_ids[: len(ids)]
        assert request == requests[1] or len(ids) == params.max_tokens


@pytest.fixture(scope="module")
def real(f16_path: str) -> Iterator[BitExactModel]:
    """One thread: two wait for each other by spinning, on a busy machine for long."""
    options = ModelOptions(context_length=128, threads=1, max_sequences=3, bit_exact=True)
    model = load_model(f16_path, options)
    yield model
    model.close()


@pytest.mark.model
def test_the_demo_models_bits(real: BitExactModel, q40_path: str) -> None:
    check_texts(real, ("lookup", q40_path))


@pytest.mark.model
def test_a_checkpoints_bits(tiny_checkpoint: Path) -> None:
    """Its attention rounds by how long the pass and the cache are."""
    options = ModelOptions(context_length=60, max_sequences=3, bit_exact=True, dtype="float32")
    model = load_model(f"hf:{tiny_checkpoint}", options)
    assert model.capabilities.context_length >= 56
    check_texts(model, ("lookup",), ("abcabcab", "hello hello h", "a b"))
    model.close()
