"""What is installed: the wheel, as the project's own build backend makes it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "draftproof"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        [*build, "--directory", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def packaged(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Every file of the source tree: code, data, the page; no tests, no benchmarks."""
    files = (file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix != ".pyc")
    assert packaged(wheel) == {f"draftproof/{file.relative_to(PACKAGE)}" for file in files}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("draftproof/py.typed", 1),
        ("draftproof/data/prompts.jsonl", 1),
        ("draftproof/data/profiles/*.json", 3),
        ("draftproof/server/page/index.html", 1),
        ("draftproof/server/page/*.js", 3),
        ("draftproof/server/page/*.css", 1),
        ("draftproof/server/page/*.svg", 1),
    ],
)
def test_what_is_read_while_running_is_in_the_wheel(
    wheel: zipfile.ZipFile, name: str, least: int
) -> None:
    found = [each for each in packaged(wheel) if Path(each).match(name)]
    assert len(found) >= least
    assert all(wheel.getinfo(each).file_size or each.endswith("py.typed") for each in found)


def test_the_wheel_names_its_command_and_its_licence(wheel: zipfile.ZipFile) -> None:
    about = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "LICENSE" in about
    assert b"draftproof = draftproof.__main__:main" in wheel.read(about["entry_points.txt"])
    assert b"License-Expression: Apache-2.0" in wheel.read(about["METADATA"])
