"""llama.cpp's own functions (``lib``), its log, and what its log gives as the reason of a failure.

Not here: models (``gguf.py``). Importing this loads the shared library. llama.cpp writes nothing
to the terminal: its log goes to ``logging.getLogger("draftproof.llama")`` at level DEBUG.

``LLAMA_CPP_LIB_PATH`` names a folder with another build of llama.cpp; it must be of the version
that the installed llama-cpp-python was made for.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftproof.errors import MissingExtraError, ModelLoadError

try:
    import psutil
    from llama_cpp import llama_cpp
except ImportError as error:
    raise MissingExtraError("running GGUF files", "gguf") from error
except Exception as error:  # the binding raises what the loader of shared libraries raises
    raise ModelLoadError(
        f"llama.cpp's shared library cannot be loaded ({' '.join(str(error).split())}): set "
        "LLAMA_CPP_LIB_PATH to the folder that holds libllama, or unset it to use the installed one"
    ) from error

lib: Any = llama_cpp
"""The binding's low-level functions: those of llama.h, by their names."""

logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ctypes.cast(lib.llama_get_logits, ctypes.c_void_p).value or 0
)
"""``llama_get_logits``, returning the address as an int: cheaper than a pointer object."""

WARNING, ERROR = 3, 4  # ggml_log_level

problems: deque[tuple[int, str]] = deque(maxlen=16)
"""Warnings and errors llama.cpp logged; clear it before a call whose failure is to be explained."""

interrupts: list[BaseException] = []
"""Exceptions (Ctrl-C) that came up inside a callback: C code cannot pass them on."""

_logger = logging.getLogger("draftproof.llama")


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _data: object) -> None:
    try:
        line = " ".join(text.decode("utf-8", "replace").split())
        if level in (WARNING, ERROR):
            problems.append((level, line))
        _logger.debug("%s", line)
    except BaseException as error:
        interrupts.append(error)


lib.llama_log_set(_on_log, None)
lib.llama_backend_init()
# Finalizers run in reverse order: the models made later are freed first, and still log to us.
weakref.finalize(lib, lib.llama_log_set, lib.llama_log_callback(), None)


def reason() -> str:
    """What llama.cpp logged as the cause of the failure just now: its first error, on one line."""
    told = [(level, line) for level, line in problems if line.strip("=")]  # "=====" is a rule
    lines = [line for level, line in told if level == ERROR] or [line for _, line in told]
    line = lines[0] if lines else "llama.cpp gives no reason"
    return re.sub(r"^\w+: (error loading model: )?", "", line)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Within it a Ctrl-C only goes to ``interrupts``: ``raise_interrupts`` is to follow.

    For calls of llama.cpp that call back. Python runs the handler of a signal at the start of a
    callback too, before any ``try`` in it, and what it raises there is lost.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(KeyboardInterrupt()))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_interrupts() -> None:
    """Raise what a callback had to hold back."""
    while interrupts:
        error = interrupts[0]
        interrupts.clear()
        raise error


def default_threads() -> int:
    """Physical cores this process may use, less one where there are more than two.

    llama.cpp's threads spin while they wait: one that shares its core with another busy process
    holds up all the others.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = min(psutil.cpu_count(logical=False) or 1, allowed or 1)
    return cores - 1 if cores > 2 else cores


def free_memory() -> int:
    """Bytes of main memory that are free or can be freed."""
    return int(psutil.virtual_memory().available)
