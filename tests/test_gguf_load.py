"""GGUF models from the loading to the closing, and llama.cpp's library and log."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import tiny_gguf
from draftproof.errors import ClosedError, ModelLoadError, ParameterError
from draftproof.models import Chunk, gguf_load, load_model
from draftproof.models.gguf import GgufModel, load
from draftproof.models.llama import ERROR, default_threads, interrupts, lib, problems, reason
from draftproof.types import ModelOptions

Open = Callable[..., GgufModel]
Tiny = dict[str, Path]
TEXT = [3 + i * 7 % 250 for i in range(60)]


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


def test_the_context_is_not_longer_than_trained(
    tiny: Tiny, open_gguf: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether that is too short is for the engine to say: for a draft model it is not."""
    assert open_gguf(tiny["llama"], context_length=100).capabilities.context_length == 100
    assert open_gguf(tiny["llama"]).capabilities.context_length == 512
    assert open_gguf(tiny["llama"], context_length=600).capabilities.context_length == 512
    assert not caplog.records


def test_a_context_of_one_token(tiny: Tiny, open_gguf: Open) -> None:
    model = open_gguf(tiny["llama"], context_length=1)
    (logits,) = model.forward([Chunk(0, [5], 1)])
    want = open_gguf(tiny["llama"]).forward([Chunk(0, [5], 1)])[0]
    assert (logits == want).all()


def test_progress_goes_from_0_to_1(tiny: Tiny) -> None:
    seen: list[float] = []
    load(str(tiny["llama"]), ModelOptions(), seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_in_progress_ends_the_loading(tiny: Tiny, kind: type[BaseException]) -> None:
    calls: list[float] = []

    def fail(done: float) -> None:
        calls.append(done)
        raise kind

    with pytest.raises(kind):
        load(str(tiny["llama"]), ModelOptions(), fail)
    assert len(calls) == 1
    assert not interrupts
    load(str(tiny["llama"]), ModelOptions()).close()


@pytest.mark.parametrize("name", ["llama_model_load_from_file", "llama_init_from_model"])
def test_ctrl_c_never_raises_inside_llama_cpp(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Raised at the start of a callback, it would be printed and lost."""
    before, call = signal.getsignal(signal.SIGINT), getattr(lib, name)
    made: list[object] = []
    seen: list[float] = []

    def interrupted(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        made.append(call(*args))
        return made[-1]

    freed: list[object] = []
    free = lib.llama_free
    with monkeypatch.context() as patch:
        patch.setattr(lib, name, interrupted)
        patch.setattr(lib, "llama_free", lambda context: (freed.append(context), free(context)))
        with pytest.raises(KeyboardInterrupt):
            load(str(tiny["llama"]), ModelOptions(), seen.append)
    if name == "llama_model_load_from_file":
        assert made == [None]  # it stopped
        assert len(seen) == 1
    else:
        assert freed == made
        assert made[0]
    assert not interrupts
    assert signal.getsignal(signal.SIGINT) is before
    load(str(tiny["llama"]), ModelOptions()).close()


def test_loading_in_another_thread(tiny: Tiny) -> None:
    """Only the main thread may set the handler of a signal."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(load, str(tiny["llama"]), ModelOptions(threads=1)).result().close()


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


def test_rules_in_the_log_are_no_reason() -> None:
    problems.clear()
    problems.extend([(ERROR, "=" * 60), (ERROR, "llama_model_quantize: failed: a thing")])
    assert reason() == "failed: a thing"


def test_a_path_object_is_a_path(tiny: Tiny, tmp_path: Path) -> None:
    model = load_model(tiny["llama"], ModelOptions(threads=1))
    assert model.name == "llama.gguf"
    model.close()
    with pytest.raises(ModelLoadError, match=r"^demo: no such file"):
        load_model(Path("demo"))


def test_a_table_without_a_name() -> None:
    with pytest.raises(ModelLoadError, match="take one of markov, markov-draft"):
        load_model("table:")


def test_threads_leave_one_core_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for physical, allowed, threads in [
        (1, 1, 1),
        (2, 4, 2),
        (8, 16, 7),
        (8, 2, 2),
        (8, 4, 3),
        (None, 4, 1),
    ]:
        monkeypatch.setattr(psutil, "cpu_count", lambda logical, n=physical: n)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=allowed: set(range(n)), False)
        assert default_threads() == threads


def test_threads_are_those_asked_for(tiny: Tiny, open_gguf: Open) -> None:
    assert lib.llama_n_threads(open_gguf(tiny["llama"], threads=1)._context) == 1
    most = min(2, os.cpu_count() or 1)
    assert lib.llama_n_threads_batch(open_gguf(tiny["llama"], threads=most)._context) == most


def test_passes_that_become_slow_are_told_once(
    tiny: Tiny,
    open_gguf: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("draftproof.models.gguf.SLOW", 0.1)
    model = open_gguf(tiny["llama"])
    model.forward([Chunk(0, TEXT, 1)])
    assert not caplog.records
    decode = lib.llama_decode

    def held_up(context: object, batch: object) -> int:
        time.sleep(0.2)
        return decode(context, batch)

    monkeypatch.setattr(lib, "llama_decode", held_up)
    model.forward([Chunk(0, TEXT[:1], 1)])
    model.forward([Chunk(0, TEXT[:1], 1)])
    assert len(caplog.records) == 1
    assert "use fewer threads" in caplog.text


def test_closing_frees_once_and_for_all(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    for name in ("llama_free", "llama_model_free"):
        free = getattr(lib, name)
        monkeypatch.setattr(
            lib, name, lambda pointer, free=free, name=name: (freed.append(name), free(pointer))
        )
    model = load(str(tiny["llama"]), ModelOptions())
    (logits,) = model.forward([Chunk(0, TEXT[:3], 1)])
    del logits
    tokenizer = model.tokenizer
    model.close()
    model.close()
    assert freed == ["llama_free", "llama_model_free"]
    with pytest.raises(ClosedError, match="closed: load it again"):
        model.forward([Chunk(0, TEXT[:3], 1)])
    with pytest.raises(ClosedError):
        tokenizer.encode("a")
    load(str(tiny["llama"]), ModelOptions())
    gc.collect()
    assert len(freed) == 4


def test_llama_cpp_speaks_to_logging_only(
    tiny: Tiny, open_gguf: Open, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "draftproof.llama")
    open_gguf(tiny["llama"]).forward([Chunk(0, TEXT, 1)])
    lines = {" ".join(record.message.split()) for record in caplog.records}
    assert any(line.endswith("flash_attn = enabled") for line in lines)
    assert any(line.endswith("kv_unified = true") for line in lines)
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    assert capfd.readouterr() == ("", "")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )


LOAD = """
from draftproof.errors import UserError
from draftproof.models import Chunk, load_model
from draftproof.types import ModelOptions
try:
    model = load_model({path!r})
    model.forward([Chunk(0, [5, 6], 1)])
except UserError as error:
    print(type(error).__name__, error)
"""


def test_a_model_that_is_never_closed_ends_quietly(tiny: Tiny) -> None:
    result = python(LOAD.format(path=str(tiny["llama"])))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_wrong_library_path_is_told_in_one_line(tiny: Tiny, tmp_path: Path) -> None:
    code = LOAD.format(path=str(tiny["llama"]))
    result = python(code, LLAMA_CPP_LIB_PATH=str(tmp_path / "nowhere"))
    assert result.stdout.startswith("ModelLoadError llama.cpp's shared library cannot be loaded")
    assert "LLAMA_CPP_LIB_PATH" in result.stdout
    assert result.stdout.count("\n") == 1
    for name in ("libllama.so", "libllama.dylib", "llama.dll"):
        (tmp_path / name).write_text("not a library")
    result = python(code, LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert result.stdout.startswith("ModelLoadError llama.cpp's shared library cannot be loaded")
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("kind", ["", "gguf:"])
def test_a_missing_file_is_told_before_a_missing_library(tmp_path: Path, kind: str) -> None:
    block = "import sys; sys.modules['llama_cpp'] = None\n"
    result = python(block + LOAD.format(path=f"{kind}{tmp_path}/none.gguf"))
    assert result.stdout.startswith(f"ModelLoadError {tmp_path}/none.gguf: no such file")


@pytest.mark.parametrize("package", ["llama_cpp", "psutil"])
def test_a_missing_library_names_its_extra(tiny: Tiny, package: str) -> None:
    block = f"import sys; sys.modules[{package!r}] = None\n"
    result = python(block + LOAD.format(path=str(tiny["llama"])))
    assert result.stdout.startswith("MissingExtraError running GGUF files needs")
    assert "pip install 'draftproof[gguf]'" in result.stdout
