"""What is refused when a GGUF file is loaded, each with one line that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_gguf
from draftproof.errors import ModelLoadError, ParameterError
from draftproof.models import gguf_load, load_model
from draftproof.models.gguf import load
from draftproof.models.llama import lib
from draftproof.types import ModelOptions

Tiny = dict[str, Path]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: os.mkfifo(p), "is a pipe or a device: give the path of a GGUF file"),
        (lambda p: None, "no such file: give the path of a GGUF file"),
        (lambda p: p.mkdir(), "is a folder: give the path of a GGUF file in it"),
        (lambda p: p.write_bytes(b""), "is not a GGUF file: convert the model"),
        (lambda p: p.write_bytes(b"PK\3\4" + bytes(99)), "is not a GGUF file: convert the model"),
        (lambda p: p.write_bytes(b"GGUF"), r"cannot be loaded \(.*\): get another file"),
        (
            lambda p: tiny_gguf.truncated(tiny_gguf.llama(p.with_suffix(".whole")), p),
            r"cannot be loaded \(.*corrupted or incomplete\): get another file",
        ),
        (lambda p: tiny_gguf.llama(p, arch="nonsense"), "unknown model architecture: 'nonsense'"),
        (lambda p: tiny_gguf.llama(p, arch="llada"), "is a diffusion model: give a model that"),
        (lambda p: tiny_gguf.llama(p, pooling=True), "is an embedding or reranking model: give"),
        (lambda p: tiny_gguf.llama(p, arch="eurobert"), "is an embedding or reranking model: give"),
        (lambda p: tiny_gguf.t5_encoder(p), "is an encoder: give a model that generates"),
        (lambda p: tiny_gguf.llama(p, tokenizer="no_tokenizer"), "has no tokenizer: convert"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    file = tmp_path / "model.gguf"
    write(file)
    with pytest.raises(ModelLoadError, match=message) as error:
        load(str(file), ModelOptions())
    assert "\n" not in str(error.value)
    assert "model.gguf" in str(error.value)


def test_a_path_with_a_nul(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="embedded null byte"):
        load("a\0b.gguf", ModelOptions())


def test_a_cache_larger_than_memory_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = 2 * tiny_gguf.LAYERS * tiny_gguf.WIDTH * 2
    monkeypatch.setattr(gguf_load, "free_memory", lambda: 512 * 3 * entry - 1)
    with pytest.raises(ModelLoadError, match=r"cache for 3 x 512 tokens takes .* shorter context"):
        load(str(tiny["llama"]), ModelOptions(max_sequences=3))
    load(str(tiny["llama"]), ModelOptions(max_sequences=2)).close()


def test_too_many_sequences(tiny: Tiny) -> None:
    with pytest.raises(ModelLoadError, match=r"n_seq_max must be <= 256.*fewer sequences"):
        load(str(tiny["llama"]), ModelOptions(max_sequences=257))


def test_more_threads_than_the_machine_has(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with pytest.raises(ParameterError, match="4 threads are too many, this machine has 3 CPUs"):
        load(str(tiny["llama"]), ModelOptions(threads=4))
    load(str(tiny["llama"]), ModelOptions(threads=3)).close()


@pytest.mark.parametrize("layers", [-1, 3])
def test_a_gpu_that_the_library_cannot_use(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: False)
    with pytest.raises(ParameterError, match="has no GPU support: leave gpu_layers at 0, or set"):
        load(str(tiny["llama"]), ModelOptions(gpu_layers=layers))
    monkeypatch.setattr(lib, "llama_supports_gpu_offload", lambda: True)
    load(str(tiny["llama"]), ModelOptions(gpu_layers=layers)).close()


@pytest.mark.parametrize("name", ["context_length", "max_sequences", "threads", "gpu_layers"])
def test_numbers_beyond_llama_cpps_integers(name: str) -> None:
    ModelOptions(**{name: 2**31 - 1})
    with pytest.raises(ParameterError, match=f"{name} must be .* to 2147483647, not 2147483648"):
        ModelOptions(**{name: 2**31})


def test_a_table_without_a_name() -> None:
    with pytest.raises(ModelLoadError, match="take one of markov, markov-draft"):
        load_model("table:")
