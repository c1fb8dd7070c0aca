"""Quantised copies of a GGUF file, made once by llama.cpp's own quantiser and kept in the cache.

Not here: choosing a type. The cache is the user's cache folder, or ``DRAFTPROOF_CACHE``.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_dir

from draftproof.errors import ModelLoadError, ParameterError
from draftproof.models import gguf_file
from draftproof.models.llama import interrupts_held, lib, problems, raise_interrupts, reason

_logger = logging.getLogger("draftproof")
_PREFIX = "LLAMA_FTYPE_MOSTLY_"
_PART = ".draftproof.part"  # ends the name of a copy that is being written
_STALE = 24 * 3600  # seconds after its last change that such a file was left by a crash

TYPES: dict[str, int] = {"F32": lib.LLAMA_FTYPE_ALL_F32} | {
    name.removeprefix(_PREFIX): value
    for name, value in vars(lib).items()
    if name.startswith(_PREFIX)
}
"""The types by llama.cpp's names: Q4_0, Q8_0, Q4_K_M, F16, ..."""


def quantized_copy(path: str, type_name: str, cache_dir: str | None = None) -> str:
    """Path of a copy of a GGUF file in another type; made if it is not in the cache yet.

    llama.cpp cannot be stopped while it makes one: a Ctrl-C is raised when it is done, and the
    copy is dropped.

    Args:
        path: the file to copy; files that are quantised already are taken too.
        type_name: one of ``TYPES``, in upper or lower case.
        cache_dir: folder for the copy; None takes the user's cache.

    Raises:
        ParameterError: no such type.
        ModelLoadError: the file cannot be read or copied, or the cache cannot be written.
    """
    name = type_name.upper()
    if name not in TYPES:
        raise ParameterError(f"no type {type_name!r} to quantise to: use one of {', '.join(TYPES)}")
    source = gguf_file(path)
    folder = Path(cache_dir or os.environ.get("DRAFTPROOF_CACHE") or user_cache_dir("draftproof"))
    stem = os.fsencode(source.stem)[:100].decode("utf-8", "ignore")  # names end at 255 bytes
    target = folder / f"{stem}-{name}-{_digest(source)}.gguf"
    try:
        if not target.exists():
            _logger.info("making a %s copy of %s in %s", name, source.name, folder)
            _make(source, target, name)
    except OSError as error:
        raise ModelLoadError(
            f"the cache folder {folder} cannot be written ({error.strerror}): "
            "set DRAFTPROOF_CACHE to another folder"
        ) from None
    return str(target)


def _digest(source: Path) -> str:
    """Changes when the file at this path is another one."""
    stat = source.stat()
    key = f"{source.absolute()}\n{stat.st_size}\n{stat.st_mtime_ns}"
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _make(source: Path, target: Path, name: str) -> None:
    """Write beside the target, then rename: nobody sees half a file, and the last writer wins."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(target.parent)
    handle, path = tempfile.mkstemp(_PART, target.stem, target.parent)
    os.close(handle)
    part = Path(path)
    try:
        _quantize(source, part, name)
        os.replace(part, target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    for part in folder.glob(f"*{_PART}"):
        with suppress(OSError):  # another process removes it, or it is not ours
            if time.time() - part.stat().st_mtime > _STALE:
                part.unlink()


def _quantize(source: Path, part: Path, name: str) -> None:
    params = lib.llama_model_quantize_default_params()
    params.ftype = TYPES[name]
    params.allow_requantize = True
    problems.clear()
    with interrupts_held():
        failed = lib.llama_model_quantize(
            os.fsencode(source), os.fsencode(part), ctypes.byref(params)
        )
    raise_interrupts()
    if failed:
        cause = reason()
        if "iostream" in cause:  # all that C++ says of a write that failed
            cause += f"; is the disk of the cache folder {part.parent} full?"
        raise ModelLoadError(f"{source} cannot be quantised to {name}: {cause}")
