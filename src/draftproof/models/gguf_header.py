"""What a GGUF file says about itself, read without llama.cpp and without touching a weight.

Not here: what it means (``describe_gguf.py``). Only the header is mapped into memory and read, so
that it takes as long for 100 GB as for 100 MB. The format: ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.errors import MissingExtraError, ModelLoadError
from draftproof.models import gguf_file

SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""The letters of ``struct`` by GGUF's types."""
STRING, ARRAY = 8, 9
# What reading nonsense can raise.
BROKEN = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, struct.error)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file, its data left where they are."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensors of a model; of all files, if it is split."""

    metadata: dict[str, Any]
    tensors: list[Tensor] = field(default_factory=list)


def read_header(file: Path) -> Header:
    """The header of a GGUF file, or of all parts of a split one, given by its first.

    Raises:
        ModelLoadError: no such file, another kind of file, cut off, or a part is missing.
        MissingExtraError: the ``gguf`` package, which knows the types, is not installed.
    """
    header = _read(file)
    parts = header.metadata.get("split.count", 1)
    for number in range(1, parts):
        header.tensors.extend(_read(_part(file, number, parts)).tensors)
    return header


def _part(file: Path, number: int, parts: int) -> Path:
    """The file of a part, counted from 0, as llama.cpp names them."""
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", file.name)
    if not match or int(match[2]) != parts:
        raise ModelLoadError(
            f"{file} is one of {parts} parts: give the first, NAME-00001-of-{parts:05}.gguf"
        )
    return file.with_name(f"{match[1]}-{number + 1:05}-of-{match[2]}.gguf")


def _read(file: Path) -> Header:
    gguf_file(str(file))
    try:
        with (
            file.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Parser(data).header()
    except (OSError, *BROKEN) as error:
        raise ModelLoadError(
            f"{file} cannot be read ({getattr(error, 'strerror', None) or error}): get another file"
        ) from None


class _Parser:
    """Reads a file from its beginning.

    Raises:
        ValueError: it ends too early, or is of a version or has types that are not known.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def header(self) -> Header:
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"it has version {version} of the format")
        tensors, fields = self._number("Q"), self._number("Q")
        metadata = {self._string(): self._value(self._number("I")) for _ in range(fields)}
        found = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        begin = -(-self._at // alignment) * alignment
        for tensor, offset in found:
            if begin + offset + tensor.bytes > len(self._data):
                raise ValueError(f"it is cut off: {tensor.name} is not all there")
        return Header(metadata, [tensor for tensor, _ in found])

    def _tensor(self) -> tuple[Tensor, int]:
        """A tensor, and where its data begin."""
        name = self._string()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))
        kind, offset = self._number("I"), self._number("Q")
        type_name, block, size = type_of(kind)
        return Tensor(name, shape, type_name, math.prod(shape) // block * size), offset

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(SCALARS[kind])
        kind, count = self._number("I"), self._number("Q")
        if kind in (STRING, ARRAY):
            return [self._value(kind) for _ in range(count)]
        return list(self._take(f"<{count}{SCALARS[kind]}"))

    def _string(self) -> str:
        length = self._number("Q")
        begin, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("it is cut off within its header")
        return self._data[begin : self._at].decode("utf-8", "replace")

    def _number(self, letter: str) -> Any:
        return self._take("<" + letter)[0]

    def _take(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize(layout)
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError("it is cut off within its header")
        return struct.unpack_from(layout, self._data, begin)


def type_of(kind: int | str) -> tuple[str, int, int]:
    """A tensor type by its number or name: its name, numbers in a block, bytes of a block.

    Raises:
        KeyError, ValueError: no such type.
    """
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise MissingExtraError("inspecting GGUF files", "gguf") from error
    known = GGMLQuantizationType[kind] if isinstance(kind, str) else GGMLQuantizationType(kind)
    return (str(known.name), *GGML_QUANT_SIZES[known])
