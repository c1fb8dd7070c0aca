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

from draftproof.errors import ClosedError, ModelLoadError
from draftproof.models import Chunk, load_model
from draftproof.models.gguf import GgufModel, load
from draftproof.models.llama import ERROR, default_threads, interrupts, lib, problems, reason
from draftproof.types import ModelOptions

Open = Callable[..., GgufModel]
Tiny = dict[str, Path]
TEXT = [3 + i * 7 % 250 for i in range(60)]


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
