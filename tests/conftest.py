from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiny_gguf
from draftproof.models.demo import demo_path as find_demo
from draftproof.models.gguf import GgufModel, load
from draftproof.models.quantize import quantized_copy
from draftproof.types import ModelOptions, Speculation


@pytest.fixture(autouse=True)
def four_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four drafts a round where a test does not say how many.

    The default, auto, goes by the clock: a test of what drafts do would then depend on how busy
    the machine is, or see none. Tests of auto ask for it: ``Speculation(draft_length=None)``.
    """
    monkeypatch.setitem(Speculation.__init__.__kwdefaults__, "draft_length", 4)


@pytest.fixture(scope="session")
def demo_path() -> str:
    return find_demo()


@pytest.fixture(scope="session")
def f16_path(demo_path: str) -> str:
    """In the user's cache, as all the copies: a second run of the tests finds them there."""
    return quantized_copy(demo_path, "F16")


@pytest.fixture(scope="session")
def q8_path(demo_path: str) -> str:
    return quantized_copy(demo_path, "Q8_0")


@pytest.fixture(scope="session")
def q40_path(demo_path: str) -> str:
    return quantized_copy(demo_path, "Q4_0")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small random models by name."""
    folder = tmp_path_factory.mktemp("tiny")
    return {
        "llama": tiny_gguf.llama(folder / "llama.gguf", template="{{ messages }}"),
        "other": tiny_gguf.llama(folder / "other.gguf", seed=5),
        "padded": tiny_gguf.llama(folder / "padded.gguf", padding=9),
        "spm": tiny_gguf.llama(folder / "spm.gguf", tokenizer="sentencepiece"),
        "gemma2": tiny_gguf.gemma2(folder / "gemma2.gguf", window=8),
        "qwen2vl": tiny_gguf.llama(folder / "qwen2vl.gguf", arch="qwen2vl"),
        "lfm2": tiny_gguf.lfm2(folder / "lfm2.gguf"),
        "mamba": tiny_gguf.mamba(folder / "mamba.gguf"),
    }


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random Hugging Face checkpoint."""
    import tiny_hf

    return tiny_hf.save(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture
def open_gguf() -> Iterator[Callable[..., GgufModel]]:
    """Loads GGUF files, and closes them after the test.

    One thread, unless asked: two wait for each other by spinning, on a busy machine for long.
    """
    models: list[GgufModel] = []

    def open_one(path: object, **options: int) -> GgufModel:
        models.append(load(str(path), ModelOptions(**{"threads": 1, **options})))
        return models[-1]

    yield open_one
    for model in models:
        model.close()
