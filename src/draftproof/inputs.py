"""What people give: a prompt from a file or a pipe, and lines typed or piped into a chat."""

from __future__ import annotations

import sys
from typing import BinaryIO

from draftproof.errors import PromptError


def read_text(file: BinaryIO, name: str) -> str:
    """All of a file, without the line end behind it.

    Raises:
        PromptError: it cannot be read, or is not UTF-8.
    """
    try:
        return _decode(file.read(), name)
    except OSError as error:
        raise PromptError(f"{name} cannot be read ({error.strerror}): give another file") from None


def next_line() -> str | None:
    """The next line of standard input; None at its end.

    Raises:
        PromptError: it is not UTF-8.
    """
    data = sys.stdin.buffer.readline()
    return _decode(data, "a line of standard input") if data else None


def ask() -> str | None:
    """A line typed at a prompt; None where the person leaves.

    Ctrl-C drops what was typed; another one right after it leaves, as does Ctrl-D.
    """
    for after_interrupt in ("\nCtrl-C again or Ctrl-D leaves", ""):
        try:
            return input("> ")
        except KeyboardInterrupt:
            print(after_interrupt, file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            break
    return None


def _decode(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{name} is not UTF-8 text (byte {error.start}): convert it to UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
