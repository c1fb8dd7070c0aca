"""What a model is, and how one is found by name.

A model holds several sequences and their cached entries. The engine appends with ``forward`` and
forgets with ``truncate``; nothing else changes a cache. Backends are loaded when they are asked
for, so that importing this loads no library that runs models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NamedTuple, Protocol

from draftproof.errors import MissingExtraError, ModelLoadError, ParameterError
from draftproof.text import Tokenizer
from draftproof.types import Array, ModelOptions

Progress = Callable[[float], None]
"""Called with the part done, from 0 to 1."""


class Chunk(NamedTuple):
    """Tokens to append to one sequence.

    Attributes:
        seq: sequence number, from 0 to ``Capabilities.max_sequences - 1``.
        tokens: token ids, at least one; the first one's position is ``length(seq)``.
        logits: how many of the last positions need logits, from 0 to ``len(tokens)``.
    """

    seq: int
    tokens: Sequence[int]
    logits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a model can do, known when it is loaded.

    Attributes:
        context_length: most entries one sequence's cache can hold.
        vocabulary: width V of a row of logits.
        max_sequences: sequences held at once.
        rollback: whether ``truncate`` can remove part of a sequence. Where it cannot, truncating
            to the present length or to 0 still works, and speculation is refused.
        no_rollback_reason: why not, for the error message.
    """

    context_length: int
    vocabulary: int
    max_sequences: int = 1
    rollback: bool = True
    no_rollback_reason: str = ""


class Model(Protocol):
    """A model that runs. Not safe to call from two threads at once."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer and chat template."""

    def forward(self, chunks: Sequence[Chunk]) -> list[Array]:
        """Append every chunk in one pass; each sequence at most once.

        Returns:
            For each chunk its last ``chunk.logits`` rows, [chunk.logits, V], in the backend's own
            array library. They are valid until the next call of ``forward``.

        Raises:
            ModelError: the pass failed. The caches may then hold any part of the chunks.
            ClosedError: the model is closed.
        """

    def length(self, seq: int) -> int:
        """Entries cached for a sequence."""

    def truncate(self, seq: int, length: int) -> None:
        """Forget all entries from position ``length`` on; no-op where there are none. O(1).

        Raises:
            ModelError: this model cannot go back to that length.
        """

    def close(self) -> None:
        """Free everything. May be called twice."""


def gguf_file(path: str) -> Path:
    """The file a user named, once it is known to be a GGUF file. Needs no backend.

    Raises:
        ModelLoadError: it is missing, cannot be read, or is something else.
    """
    file = Path(path).expanduser()
    try:
        mode = file.stat().st_mode
        if S_ISDIR(mode):
            raise ModelLoadError(
                f"{path} is a folder: give the path of a GGUF file in it, or hf:{path} for a "
                "checkpoint"
            )
        if not S_ISREG(mode):  # opening a pipe would wait for its other end
            raise ModelLoadError(f"{path} is a pipe or a device: give the path of a GGUF file")
        with file.open("rb") as stream:
            magic = stream.read(4)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file: give the path of a GGUF file") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ModelLoadError(f"{path!r} cannot be read ({cause}): give a GGUF file") from None
    if magic != b"GGUF":
        raise ModelLoadError(f"{path} is not a GGUF file: convert the model to GGUF first")
    return file


def _table(name: str, options: ModelOptions, progress: Progress | None) -> Model:
    from draftproof.models.table import load

    return load(name, options)


def _gguf(path: str, options: ModelOptions, progress: Progress | None) -> Model:
    gguf_file(path)  # what is wrong with it is told even where the backend is not installed
    from draftproof.models.gguf import load

    return load(path, options, progress)


def _demo(name: str, options: ModelOptions, progress: Progress | None) -> Model:
    from draftproof.models.demo import demo_path

    return _gguf(demo_path(), options, progress)


def _hf(path: str, options: ModelOptions, progress: Progress | None) -> Model:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("running Hugging Face checkpoints", "hf") from error
    from draftproof.models.hf import load

    return load(path, options, progress)


LOADERS: dict[str, Callable[[str, ModelOptions, Progress | None], Model]] = {
    "table": _table,
    "gguf": _gguf,
    "demo": _demo,
    "hf": _hf,
}


def _bit_exact(model: Model, options: ModelOptions) -> Model:
    from draftproof.models.bit_exact import BitExactModel

    try:
        return BitExactModel(model, options.context_length)
    except BaseException:
        model.close()
        raise


def load_model(
    spec: str | os.PathLike[str],
    options: ModelOptions | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a model by its spec.

    Args:
        spec: ``demo``, ``table:NAME``, ``gguf:PATH``, ``hf:PATH`` (a checkpoint's folder), or a
            path of a GGUF file; a ``PathLike`` is always the last.
        options: how to load it.
        progress: called with the part loaded, from 0 to 1.

    Raises:
        ModelLoadError: the file is missing, broken, or of a kind that cannot be run, or not
            bit-exactly where that is asked for.
        ParameterError: an option that the backend or the machine does not have.
        MissingExtraError: the backend's library is not installed.
    """
    if isinstance(spec, os.PathLike):
        spec = f"gguf:{os.fspath(spec)}"
    kind, rest = split_spec(spec)
    options = options or ModelOptions()
    model = LOADERS[kind](rest, options, progress)
    return _bit_exact(model, options) if options.bit_exact else model


def split_spec(spec: str) -> tuple[str, str]:
    """The kind of a model, one of ``LOADERS``, and what follows it in its spec.

    Raises:
        ParameterError: the spec is empty, or says more than ``demo``.
    """
    if not spec:
        raise ParameterError("the model is empty: give a GGUF file, hf:FOLDER, demo, or table:NAME")
    kind, _, rest = spec.partition(":")
    if kind == "demo" and rest:
        raise ParameterError(f"demo takes no argument: write demo, not {spec!r}")
    if kind not in LOADERS or (kind in ("gguf", "hf") and not rest):
        return "gguf", spec
    return kind, rest
