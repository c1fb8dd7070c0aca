"""What a model is and what it takes, known before it is loaded.

Not here: what a pair takes, and whether it can work (``inspect.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from draftproof.models import split_spec
from draftproof.types import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model, by its metadata.

    Attributes:
        spec: as it was named.
        path: the file (of a split one the first) or folder; None for a table.
        format: "gguf", "hf" or "table".
        architecture: the format's name for it.
        parameters: numbers in the weights.
        layers: blocks, with or without attention.
        embedding: width of the residual stream.
        heads: attention heads of a layer.
        kv_heads: key-value heads of each layer; 0 where it has no cache.
        vocabulary: width V of a row of logits.
        tokenizer: its kind.
        types: bytes of weights in the files, by the type they are stored in.
        context_length: tokens it was trained for.
        window: tokens a sliding-window layer looks back; None where there is none.
        weight_bytes: bytes of all weights once they are loaded.
        cache_bytes: bytes in the cache for a token.
        estimated: whether the bytes of the weights are an estimate.
        recurrent: whether it has a state that cannot be rolled back (not in ``cache_bytes``).
        refused: why it cannot generate text; empty where it can.
        tokens: the texts of its tokens; None where the files do not say.
    """

    spec: str
    path: str | None
    format: str
    architecture: str
    parameters: int
    layers: int
    embedding: int
    heads: int
    kv_heads: tuple[int, ...]
    vocabulary: int
    tokenizer: str
    types: dict[str, int]
    context_length: int
    weight_bytes: int
    cache_bytes: int
    window: int | None = None
    estimated: bool = False
    recurrent: bool = False
    refused: str = ""
    tokens: tuple[str, ...] | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """All of it but the tokens."""
        names = [one.name for one in fields(self) if one.name != "tokens"]
        return {name: getattr(self, name) for name in names}


def _gguf(spec: str, path: str, options: ModelOptions) -> Description:
    from draftproof.models.describe_gguf import describe_gguf

    return describe_gguf(spec, Path(path).expanduser())


def _demo(spec: str, _: str, options: ModelOptions) -> Description:
    from draftproof.models.demo import demo_path

    return _gguf(spec, demo_path(), options)


def _hf(spec: str, path: str, options: ModelOptions) -> Description:
    from draftproof.models.describe_hf import describe_hf

    return describe_hf(spec, Path(path).expanduser(), options)


def _table(spec: str, name: str, options: ModelOptions) -> Description:
    from draftproof.models.table import TABLES, load

    model = load(name, options)
    numbers = sum(map(len, TABLES[name].values()))
    return Description(
        spec=spec,
        path=None,
        format="table",
        architecture="table",
        parameters=numbers,
        layers=0,
        embedding=0,
        heads=0,
        kv_heads=(),
        vocabulary=model.capabilities.vocabulary,
        tokenizer="letters",
        types={"F64": 8 * numbers},
        context_length=model.capabilities.context_length,
        weight_bytes=8 * numbers,
        cache_bytes=0,
        tokens=tuple(model.tokenizer.vocabulary()),
    )


DESCRIBERS: dict[str, Callable[[str, str, ModelOptions], Description]] = {
    "table": _table,
    "gguf": _gguf,
    "demo": _demo,
    "hf": _hf,
}


def describe(spec: str, options: ModelOptions | None = None) -> Description:
    """Describe a model.

    Args:
        spec: as ``load_model`` takes it.
        options: how it would be loaded; only ``dtype`` and ``device`` count.

    Raises:
        ModelLoadError: it is missing, broken, or of a kind that is not known.
        MissingExtraError: a library is not installed.
    """
    kind, rest = split_spec(spec)
    options = replace(options or ModelOptions(), context_length=None)
    return DESCRIBERS[kind](spec, rest, options)
