"""The bookkeeping of captured passes, with a capture that runs on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_hf
from draftproof import Engine, ModelOptions, ParameterError, SamplingParams, Speculation
from draftproof.models import Chunk, hf
from draftproof.models.hf import HfModel
from draftproof.models.hf_graphs import MOST, WIDEST
from test_hf import close

TOKENIZER = tiny_hf.byte_level()
TEXT = [11 * i % 250 for i in range(60)]
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)


class Capture:
    """Replays by running again, into the same place, from what lies in the buffers then."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.captured += 1
        place = run()

        def replay() -> torch.Tensor:
            self.replayed += 1
            return place.copy_(run())

        return replay


def bake(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """What a capture does that holds numbers which Python knew at the time."""
    logits = run()
    return lambda: logits


def fail(run: Callable[[], torch.Tensor]) -> Any:
    raise RuntimeError("operation not permitted\nwhen stream is capturing")


def captured(
    name: str = "Llama", capture: Any = None, **options: Any
) -> tuple[Any, HfModel, Capture]:
    users = tiny_hf.model(name)
    model = HfModel(users, TOKENIZER, ModelOptions(**{"max_sequences": 2, **options}), "tiny")
    capture = capture or Capture()
    model.use_graphs(capture)
    return users, model, capture


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Gemma3Text", "Gemma2", "GPT2", "Mistral"])
def test_replays_give_the_models_own_logits(name: str) -> None:
    """Two sequences at different places, with rollbacks; windows too."""
    users, model, capture = captured(name)
    want, other = tiny_hf.alone(users, TEXT), tiny_hf.alone(users, TEXT[::-1])
    model.forward([Chunk(0, TEXT[:20], 0), Chunk(1, TEXT[::-1][:2], 0)])
    for at in range(0, 36, 3):
        model.forward([Chunk(0, [7, 7, 7], 1), Chunk(1, [9], 1)])
        model.truncate(0, 20 + at)
        model.truncate(1, 2 + at // 3)
        chunks = [Chunk(0, TEXT[20 + at : 23 + at], 3), Chunk(1, [TEXT[::-1][2 + at // 3]], 1)]
        rows = model.forward(chunks)
        close(rows[0], want[20 + at : 23 + at])
        close(rows[1], other[2 + at // 3 : 3 + at // 3])
    assert capture.captured == 2
    assert capture.replayed == 2 * (12 - 1)


def test_texts_are_the_same_and_most_passes_are_replayed() -> None:
    _, model, capture = captured()
    plain = HfModel(tiny_hf.model(), TOKENIZER, ModelOptions(max_sequences=2), "tiny")
    prompts = [TEXT[:30], TEXT[5:9], TEXT[40:]]
    for drafter in (None, "lookup", "early-exit:2"):
        texts = []
        for target in (plain, model):
            with Engine(target, drafter, speculation=Speculation(draft_length=2)) as engine:
                texts.append([one.token_ids for one in engine.generate_many(prompts, GREEDY)])
        assert texts[0] == texts[1], drafter
    assert capture.replayed > 3 * capture.captured > 0


def test_another_shape_is_captured_anew() -> None:
    """Other sequences, tokens, logits, or a longer stretch of the cache; not another place."""
    users = tiny_hf.model(max_position_embeddings=512)
    model = HfModel(users, TOKENIZER, ModelOptions(max_sequences=2), "tiny")
    capture = Capture()
    model.use_graphs(capture)
    shapes = [
        ([Chunk(0, [1], 1)], 1),
        ([Chunk(0, [2], 1)], 1),
        ([Chunk(1, [2], 1)], 2),
        ([Chunk(0, [2], 0)], 3),
        ([Chunk(0, [2, 3], 1)], 4),
        ([Chunk(0, [2], 1), Chunk(1, [2], 1)], 5),
        ([Chunk(0, [1] * (WIDEST + 1), 1)], 5),  # a prompt
        ([Chunk(0, [1] * 100, 1)], 5),
        ([Chunk(0, [4] * 8, 1)], 6),
        ([Chunk(0, [5], 1)], 7),  # behind 128 entries
        ([Chunk(0, [6], 1)], 7),
        ([Chunk(1, [6], 1)], 7),
    ]
    for chunks, count in shapes:
        model.forward(chunks)
        assert capture.captured == count, chunks


def test_the_number_of_graphs_is_bounded() -> None:
    _, model, capture = captured(max_sequences=MOST + 5)
    for _ in range(2):
        for seq in range(MOST + 5):
            model.forward([Chunk(seq, [1], 1)])
    assert capture.captured == MOST


@pytest.mark.parametrize(
    ("capture", "reason"),
    [(fail, "operation not permitted when stream is capturing"), (bake, "a replayed pass is")],
)
def test_without_graphs_where_they_go_wrong(
    capture: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    users, model, _ = captured(capture=capture)
    want = tiny_hf.alone(users, TEXT)
    with caplog.at_level(logging.INFO, "draftproof"):
        for at in range(6):
            (row,) = model.forward([Chunk(0, [TEXT[at]], 1)])
            close(row, want[at : at + 1])
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.getMessage().startswith(f"CUDA graphs are not used: {reason}")


def test_graphs_belong_to_their_cache() -> None:
    users, model, capture = captured()
    want = tiny_hf.alone(users, TEXT)
    for at in range(8):
        with model.aside(8):
            for _ in range(3):
                model.forward([Chunk(0, [77], 1)])
        (row,) = model.forward([Chunk(0, [TEXT[at]], 1)])
        close(row, want[at : at + 1])
    assert (capture.captured, capture.replayed) == (1, 7)


def test_nothing_is_captured_on_a_cpu(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "cuda_capture", fail)
    monkeypatch.setattr(HfModel, "use_graphs", fail)
    for graphs in (True, False):
        options = ModelOptions(device="cpu", cuda_graphs=graphs)
        with Engine(f"hf:{tiny_checkpoint}", options=options) as engine:
            assert engine.generate([1, 2, 3], GREEDY).token_ids
    with pytest.raises(ParameterError, match="cuda_graphs must be a bool"):
        ModelOptions(cuda_graphs="yes")  # type: ignore[arg-type]
