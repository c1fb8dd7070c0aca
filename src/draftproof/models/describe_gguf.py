"""What a GGUF file is and takes, from its header; and what a quantised copy of it would."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftproof.errors import ModelLoadError, PairError, ParameterError
from draftproof.models.describe import Description
from draftproof.models.gguf_header import Header, Tensor, read_header, type_of

CACHE_ENTRY = 2  # bytes of a number in the cache, float16
STATE_ONLY = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")  # no attention at all
RECURRENT = ("ssm.", "shortconv.", "wkv.", "kda.")  # groups of keys that only such models have
TOKENIZERS = {"gpt2": "byte-level BPE", "llama": "SentencePiece", "t5": "unigram"}
# What the quantiser takes where a row is no whole number of blocks.
FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def describe_gguf(spec: str, file: Path) -> Description:
    """Describe a GGUF file.

    Raises:
        ModelLoadError: it is missing, broken, cut off, or lacks what every model has.
        MissingExtraError: the ``gguf`` package is not installed.
    """
    header = read_header(file)
    try:
        return _describe(spec, file, header)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelLoadError(f"{file} has a header we cannot use ({error}): get another") from None


def _describe(spec: str, file: Path, header: Header) -> Description:
    of = _Keys(header.metadata)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    kind = header.metadata.get("tokenizer.ggml.model", "none")
    types = Counter[str]()
    for tensor in header.tensors:
        types[tensor.type] += tensor.bytes
    return Description(
        spec=spec,
        path=str(file),
        format="gguf",
        architecture=of.architecture,
        parameters=sum(tensor.size for tensor in header.tensors),
        layers=of("block_count"),
        embedding=of("embedding_length"),
        heads=_heads(of),
        kv_heads=_kv_heads(of),
        vocabulary=len(tokens) if tokens else of("vocab_size", 0),
        tokenizer=TOKENIZERS.get(kind, kind),
        types=dict(types.most_common()),
        context_length=of("context_length"),
        window=of("attention.sliding_window", 0) or None,
        weight_bytes=types.total(),
        cache_bytes=_cache_bytes(of),
        recurrent=of.any(RECURRENT),
        refused=_refused(of, kind),
        tokens=tuple(tokens) if tokens else None,
    )


class _Keys:
    """Metadata of the architecture, by the part of the key behind its name."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = metadata["general.architecture"]

    def __call__(self, key: str, *default: Any) -> Any:
        full = f"{self.architecture}.{key}"
        return self._metadata.get(full, *default) if default else self._metadata[full]

    def any(self, groups: tuple[str, ...]) -> bool:
        starts = tuple(f"{self.architecture}.{group}" for group in groups)
        return any(key.startswith(starts) for key in self._metadata)

    def general(self, key: str) -> Any:
        return self._metadata.get(f"general.{key}")


def _heads(of: _Keys) -> int:
    heads = of("attention.head_count", 0)
    return int(max(heads) if isinstance(heads, list) else heads)  # by layer, in some


def _kv_heads(of: _Keys) -> tuple[int, ...]:
    """Key-value heads of each layer: 0 where it has no attention, or shares another's cache."""
    layers = of("block_count")
    heads = of("attention.head_count_kv", of("attention.head_count", 0))
    if of.architecture in STATE_ONLY:
        heads = 0
    by_layer = heads if isinstance(heads, list) else [heads] * layers
    every = of("full_attention_interval", 1)
    own = layers - of("attention.shared_kv_layers", 0)
    return tuple(
        count if layer < own and (layer + 1) % every == 0 else 0
        for layer, count in enumerate(by_layer)
    )


def _cache_bytes(of: _Keys) -> int:
    """Bytes a token: keys and values of all layers, windows included (``swa_full``)."""
    size = of("embedding_length") // max(1, _heads(of))
    pattern = of("attention.sliding_window_pattern", [])
    total = 0
    for layer, count in enumerate(_kv_heads(of)):
        windowed = isinstance(pattern, list) and layer < len(pattern) and pattern[layer]
        for part in ("key", "value"):
            width = of(f"attention.{part}_length", size)
            total += count * (of(f"attention.{part}_length_swa", width) if windowed else width)
    return total * CACHE_ENTRY


def _refused(of: _Keys, tokenizer: str) -> str:
    """Why it generates no text, as far as the header tells."""
    if of.architecture == "t5":
        return "it is an encoder-decoder model"
    if of.general("type") not in (None, "model"):
        return f"it is no model but of type {of.general('type')}"
    if of.architecture == "t5encoder" or not of("attention.causal", True):
        return "it is an encoder"
    if of("pooling_type", 0):
        return "it is an embedding or reranking model"
    return "it has no tokenizer" if tokenizer in ("none", "no_vocab") else ""


def describe_quantized(spec: str, target: Description, type_name: str) -> Description:
    """The quantised copy of a target; its size is an estimate.

    Raises:
        ParameterError: no such type.
        PairError: the target is no GGUF file.
    """
    if target.format != "gguf":
        raise PairError(f"quantize needs a target in a GGUF file; {target.spec} is not one")
    assert target.path is not None
    base = _base_type(type_name)
    types = Counter[str]()
    for tensor in read_header(Path(target.path)).tensors:
        kind, size = _quantized(tensor, base)
        types[kind] += size
    return replace(
        target,
        spec=spec,
        path=None,
        types=dict(types.most_common()),
        weight_bytes=types.total(),
        estimated=True,
    )


def _base_type(type_name: str) -> str:
    """The type most tensors of a copy have: Q4_K for Q4_K_M, IQ3_S for IQ3_M."""
    from gguf.constants import GGMLQuantizationType, LlamaFileType

    kinds = [kind for kind in LlamaFileType if kind is not LlamaFileType.GUESSED]
    known = [kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in kinds]
    name = type_name.upper()
    if name not in known:
        raise ParameterError(f"no type {type_name!r} to quantise to: use one of {', '.join(known)}")
    stem = name.rpartition("_")[0]
    types = GGMLQuantizationType.__members__
    return next(kind for kind in (name, stem, f"{stem}_S") if kind in types)


def _quantized(tensor: Tensor, kind: str) -> tuple[str, int]:
    """Type and bytes of a tensor in a copy that is mostly of one type.

    Vectors stay as they are, tokens and output get at least six bits; the mixtures (``_M``, ``_L``)
    give some tensors more bits than counted here.
    """
    if len(tensor.shape) < 2 or "norm" in tensor.name:
        return tensor.type, tensor.bytes
    ends = tensor.name in ("token_embd.weight", "output.weight")
    if ends and _bits(kind) < _bits("Q6_K"):
        kind = "Q6_K"
    _, block, _ = type_of(kind)
    if tensor.shape[0] % block:
        kind = FALLBACKS.get(kind, "Q4_0")
    return kind, math.ceil(tensor.size * _bits(kind) / 8)


def _bits(kind: str) -> float:
    _, block, size = type_of(kind)
    return 8 * size / block
