"""What a measurement was taken on: the machine, the versions, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("draftproof", "numpy", "llama-cpp-python", "torch", "transformers")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, GPUs and operating system, as far as they can be told."""
    return {
        "cpu": _cpu(),
        "cores": _physical_cores(),
        "logical_cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "gpus": _gpus(),
        "os": platform.platform(),
    }


def in_words(found: dict[str, Any]) -> str:
    """The machine in a few words."""
    cores = found.get("cores") or found.get("logical_cores") or "?"
    return ", ".join([f"{found.get('cpu') or 'unknown CPU'} ({cores} cores)", *found["gpus"]])


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _physical_cores() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    cores: int | None = psutil.cpu_count(logical=False)
    return cores


def _memory() -> int | None:
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _gpus() -> list[str]:
    """Those that torch sees, where something has loaded it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def versions() -> dict[str, str | None]:
    """Python's version and those of the packages that run models; None for what is missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of the checkout this runs from; None where it is installed from elsewhere."""
    folder = Path(__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--", ".")
    name = _git(folder, "rev-parse", "HEAD")
    return f"{name} with changes" if name and changed else name


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
