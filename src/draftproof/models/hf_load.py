"""Open a checkpoint with transformers, quietly, and say in one line why it cannot be done.

Not here: running it (``hf.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as their_logging

from draftproof.errors import ModelLoadError
from draftproof.types import ModelOptions


def open_checkpoint(path: str, options: ModelOptions) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and what to call it.

    Args:
        path: a folder, a GGUF file, or a name on a hub that can be reached.
        options: device, dtype and threads.

    Raises:
        ModelLoadError: it is missing, broken, of an unknown kind, or has no tokenizer.
    """
    device = _device(options.device or best_device())
    dtype = getattr(torch, options.dtype) if options.dtype else "auto"
    if options.threads:
        torch.set_num_threads(options.threads)
    source, extra, name = _source(path)
    with _quiet(), _explained(path):
        config = AutoConfig.from_pretrained(source, **extra)
        _require_decoder(name, config)
        tokenizer = _tokenizer(source, extra, name)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **extra)
        if options.dtype is None and device.type == "cpu" and model.dtype == torch.float16:
            model = model.float()  # CPUs do not compute in it
        return model.to(device).eval(), tokenizer, name


def best_device() -> str:
    """The fastest kind of device at hand."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _device(name: str) -> Any:
    try:
        return torch.empty(0, device=name).device
    except Exception as error:  # torch raises anything, an AssertionError too
        raise ModelLoadError(
            f"device {name} cannot be used ({line(error)}): give another one, or leave it out"
        ) from error


def context_length(name: str, config: Any, options: ModelOptions) -> int:
    """Most tokens of one sequence: what was asked for, up to what the model was made for."""
    made = _made_for(config)
    asked = options.context_length or made
    if asked is None:
        raise ModelLoadError(f"{name} names no longest text: give a context length")
    return asked if made is None else min(asked, made)


def _made_for(config: Any) -> int | None:
    """The longest text whose entries stay right as it grows.

    "longrope" embeds all positions otherwise as soon as one is beyond the original length, so that
    entries computed before become wrong: such models stay below it.
    """
    made: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for settings in [rope, *(part for part in rope.values() if isinstance(part, dict))]:
        if settings.get("rope_type") == "longrope" and made is not None:
            made = min(made, settings["original_max_position_embeddings"])
    return made


def free_memory(device: Any) -> int:
    """Bytes that are free on a device; Apple's GPUs use the main memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _source(path: str) -> tuple[str, dict[str, str], str]:
    """What ``from_pretrained`` takes: where to look, how, and a name for messages."""
    place = Path(path).expanduser()
    if place.is_dir():
        if not (place / "config.json").is_file():
            raise ModelLoadError(
                f"{path} holds no config.json: give the folder of a Hugging Face checkpoint"
            )
        return str(place), {}, place.resolve().name
    if place.is_file():
        if place.suffix != ".gguf":
            raise ModelLoadError(f"{path} is a file: give the folder it lies in")
        return str(place.parent), {"gguf_file": place.name}, place.name
    looks_like_path = place.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1
    if looks_like_path:
        raise ModelLoadError(f"{path}: no such folder: give the folder of a checkpoint")
    return path, {}, path


def _require_decoder(name: str, config: Any) -> None:
    if config.is_encoder_decoder:
        raise ModelLoadError(
            f"{name} is an encoder-decoder model: give a model that generates text token by token"
        )


def _tokenizer(source: str, extra: dict[str, str], name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(source, **extra)
    except Exception as error:
        raise ModelLoadError(
            f"{name} has no tokenizer that can be loaded ({line(error)}): save one beside the "
            "model with tokenizer.save_pretrained"
        ) from error


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn whatever transformers raises into one line."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:  # a checkpoint is anybody's file: anything may go wrong
        if isinstance(error, OSError) and not Path(path).expanduser().exists():
            raise ModelLoadError(
                f"{path} is no folder, and no hub has it or none can be reached: "
                "give the folder of a checkpoint"
            ) from error
        raise ModelLoadError(
            f"{path} cannot be loaded ({line(error)}): get another checkpoint"
        ) from error


def line(error: Exception) -> str:
    """What an exception says, on one line that is not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no log lines of transformers on the terminal."""
    level = their_logging.get_verbosity()
    their_logging.set_verbosity(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):  # not all bars can be turned off
            yield
    finally:
        their_logging.set_verbosity(level)
