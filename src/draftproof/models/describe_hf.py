"""What a Hugging Face checkpoint is and takes, from its JSON files and the headers of its weights.

Neither torch nor transformers is imported, and no weight is read.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from draftproof.errors import ModelLoadError
from draftproof.models.describe import Description
from draftproof.types import ModelOptions

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
FLOATS = {"F64", "F32", "F16", "BF16"}
RECURRENT = ("linear_attention", "mamba", "recurrent", "conv", "ssm")  # what layers may be called
STATEFUL = ("state_size", "mamba_d_state", "conv_L_cache", "time_step_rank")


def describe_hf(spec: str, folder: Path, options: ModelOptions) -> Description:
    """Describe a checkpoint in a folder, loaded with a device and a dtype.

    Raises:
        ModelLoadError: no such folder, a file that is missing or broken, or no decoder.
    """
    if folder.is_file():
        raise ModelLoadError(f"{folder} is a file: give the folder of a checkpoint, or gguf:FILE")
    if not folder.is_dir():
        raise ModelLoadError(
            f"{folder} is no folder here: download it first, then give hf:FOLDER "
            f"(hf download {folder} --local-dir FOLDER)"
        )
    document = _json(folder / "config.json")
    of = _Config(folder, document)
    tensors = [tensor for file in _weight_files(folder) for tensor in _tensors(file)]
    types = Counter[str]()
    for kind, _, size in tensors:
        types[kind] += size
    tokenizer, tokens = _tokenizer(folder / "tokenizer.json")
    layers, heads = of("num_hidden_layers", "n_layer", "num_layers"), of.heads()
    kv_heads = _kv_heads(of, layers, heads)
    size = of("head_dim", default=0) or of.embedding() // heads
    entry = BYTES[_dtype(of, options)]
    parameters = sum(count for _, count, _ in tensors)
    return Description(
        spec=spec,
        path=str(folder),
        format="hf",
        architecture=str(of("model_type")),
        parameters=parameters,
        layers=layers,
        embedding=of.embedding(),
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=of("vocab_size"),
        tokenizer=tokenizer,
        types=dict(types.most_common()),
        context_length=_context_length(of),
        window=_window(of),
        # Quantised weights stay as they are.
        weight_bytes=parameters * entry if types.keys() <= FLOATS else types.total(),
        cache_bytes=sum(kv_heads) * 2 * size * entry,
        recurrent=_recurrent(of),
        refused=_refused(of),
        tokens=tokens,
    )


class _Config:
    """config.json; a model that sees and hears keeps the text model's part under its own name."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self._folder = folder
        self._values = document | document.get("text_config", {})

    def __call__(self, *names: str, default: Any = None) -> Any:
        """The first of these that is given.

        Raises:
            ModelLoadError: none of them is, and there is no default.
        """
        given = (self._values[name] for name in names if self._values.get(name) is not None)
        value = next(given, default)
        if value is None:
            raise ModelLoadError(f"{self._folder}/config.json has no {names[0]}: get another copy")
        return value

    def embedding(self) -> int:
        return int(self("hidden_size", "n_embd", "d_model"))

    def heads(self) -> int:
        return int(self("num_attention_heads", "n_head", default=1))


def _dtype(of: _Config, options: ModelOptions) -> str:
    """What it computes in: asked for, or its own, which a CPU may not be able to."""
    own = str(of("dtype", "torch_dtype", default="float32"))
    if own == "float16" and options.device == "cpu":
        own = "float32"
    return options.dtype or (own if own in BYTES else "float32")


def _kv_heads(of: _Config, layers: int, heads: int) -> tuple[int, ...]:
    """Key-value heads of each layer, 0 where it keeps a state instead."""
    kinds = of("layer_types", default=[""] * layers)
    own = int(of("num_key_value_heads", default=heads))
    return tuple(0 if any(word in kind for word in RECURRENT) else own for kind in kinds)


def _window(of: _Config) -> int | None:
    kinds = of("layer_types", default=[])
    if not of("use_sliding_window", default=True) or (kinds and "sliding_attention" not in kinds):
        return None
    return int(of("sliding_window", default=0)) or None


def _context_length(of: _Config) -> int:
    """Rotary embeddings that change with the text's length are kept below the change."""
    made = int(of("max_position_embeddings", "n_positions", "n_ctx"))
    rope = of("rope_parameters", "rope_scaling", default={})
    if rope.get("rope_type", rope.get("type")) in ("dynamic", "longrope"):
        own = of("original_max_position_embeddings", default=made)
        made = min(made, rope.get("original_max_position_embeddings") or own)
    return made


def _refused(of: _Config) -> str:
    if of("is_encoder_decoder", default=False):
        return "it is an encoder-decoder model"
    return "it has a recurrent state, which cannot be rolled back" if _recurrent(of) else ""


def _recurrent(of: _Config) -> bool:
    kinds = " ".join(of("layer_types", default=[]))
    return any(word in kinds for word in RECURRENT) or any(of(key, default=0) for key in STATEFUL)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return [folder / name for name in sorted(set(_json(index)["weight_map"].values()))]
    return [folder / "model.safetensors"]


def _tensors(file: Path) -> list[tuple[str, int, int]]:
    """Type, count of numbers and bytes of each tensor of a safetensors file."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError("it is cut off within its header")
            header = json.loads(stream.read(length))
    except FileNotFoundError:
        raise ModelLoadError(
            f"{file}: no such file: only safetensors can be inspected; get the rest of the model"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read ({error}): get another copy") from None
    header.pop("__metadata__", None)
    ends = [tensor["data_offsets"][1] for tensor in header.values()]
    if 8 + length + max(ends, default=0) > file.stat().st_size:
        raise ModelLoadError(f"{file} is cut off: get another copy")
    return [
        (t["dtype"], math.prod(t["shape"]), t["data_offsets"][1] - t["data_offsets"][0])
        for t in header.values()
    ]


def _tokenizer(file: Path) -> tuple[str, tuple[str, ...] | None]:
    """Its kind, and the texts of its tokens by id."""
    if not file.exists():
        return "unknown (no tokenizer.json)", None
    document = _json(file)
    model = document["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        texts = {token: text for text, token in vocabulary.items()}
    else:
        texts = dict(enumerate(text for text, _ in vocabulary))
    texts |= {added["id"]: added["content"] for added in document.get("added_tokens", [])}
    tokens = tuple(texts.get(token, "") for token in range(max(texts, default=-1) + 1))
    return _kind(document), tokens


def _kind(document: dict[str, Any]) -> str:
    model = document["model"]
    if model.get("type") == "BPE":
        return "SentencePiece" if model.get("byte_fallback") else "byte-level BPE"
    return str(model.get("type", "unknown")).lower()


def _json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelLoadError(
            f"{file}: no such file: give the folder of a Hugging Face checkpoint"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read ({error}): get another copy") from None
    if not isinstance(document, dict):
        raise ModelLoadError(f"{file} is no JSON object: get another copy")
    return document
