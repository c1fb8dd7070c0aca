"""Open a GGUF file with llama.cpp, and refuse with a reason what cannot be generated with.

Not here: running it (``gguf.py``).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from draftproof.errors import ModelLoadError, ParameterError
from draftproof.models import Progress
from draftproof.models.llama import (
    default_threads,
    free_memory,
    interrupts,
    interrupts_held,
    lib,
    problems,
    raise_interrupts,
    reason,
)
from draftproof.types import ModelOptions

N_BATCH, N_UBATCH = 2048, 512  # most tokens of one llama_decode, and of one graph inside it
CACHE_ENTRY = 2  # bytes of a number in the cache, float16


def load_weights(file: Path, options: ModelOptions, progress: Progress | None) -> Any:
    """Pointer to the ``llama_model`` of a file; the caller frees it.

    Raises:
        ParameterError: more threads than the machine has, or a GPU that llama.cpp cannot use.
        ModelLoadError: the file is broken, of an unknown kind, or no model that can generate.
    """
    _require_hardware(options)

    @lib.llama_progress_callback  # type: ignore[untyped-decorator]
    def on_progress(done: float, _data: object) -> bool:
        try:
            if progress:
                progress(done)
        except BaseException as error:
            interrupts.append(error)
        return not interrupts

    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.gpu_layers
    params.progress_callback = on_progress
    problems.clear()
    with interrupts_held():
        weights = lib.llama_model_load_from_file(os.fsencode(file), params)
    try:
        raise_interrupts()
        if not weights:
            raise ModelLoadError(f"{file} cannot be loaded ({reason()}): get another file")
        _require_generator(file.name, weights)
    except BaseException:
        lib.llama_model_free(weights)
        raise
    return weights


def _require_hardware(options: ModelOptions) -> None:
    """Refuse what would end the process (threads) or be ignored (layers on a GPU)."""
    cores = os.cpu_count() or 1
    if (options.threads or 1) > cores:
        raise ParameterError(
            f"{options.threads} threads are too many, this machine has {cores} CPUs: "
            "ask for no more, or leave threads out"
        )
    if options.gpu_layers and not lib.llama_supports_gpu_offload():
        raise ParameterError(
            "this build of llama.cpp has no GPU support: leave gpu_layers at 0, or set "
            "LLAMA_CPP_LIB_PATH to a build that has"
        )


def _require_generator(name: str, weights: Any) -> None:
    if lib.llama_model_has_encoder(weights):
        decodes = lib.llama_model_has_decoder(weights)
        _refuse(name, "an encoder-decoder model" if decodes else "an encoder")
    if lib.llama_model_is_diffusion(weights):
        _refuse(name, "a diffusion model")
    vocab = lib.llama_model_get_vocab(weights)
    if lib.llama_vocab_type(vocab) == lib.LLAMA_VOCAB_TYPE_NONE:
        raise ModelLoadError(f"{name} has no tokenizer: convert the model again, with one")


def require_decoder(name: str, context: Any) -> None:
    """Refuse models that have no cache, look ahead, or pool their outputs.

    Raises:
        ModelLoadError: it is such a model.
    """
    if (
        not lib.llama_get_memory(context)
        or not lib.llama_get_causal_attn(context)
        or lib.llama_pooling_type(context) != lib.LLAMA_POOLING_TYPE_NONE
    ):
        _refuse(name, "an embedding or reranking model")


def _refuse(name: str, kind: str) -> None:
    raise ModelLoadError(f"{name} is {kind}: give a model that generates text token by token")


def context_length(weights: Any, options: ModelOptions) -> int:
    """Most tokens of one sequence: what was asked for, up to what the model was trained for."""
    trained = int(lib.llama_model_n_ctx_train(weights))
    return min(options.context_length or trained, trained)


def new_context(name: str, weights: Any, length: int, options: ModelOptions) -> Any:
    """Pointer to a new ``llama_context`` for ``max_sequences`` of ``length`` tokens each.

    Raises:
        ModelLoadError: it does not fit into memory, or llama.cpp cannot make it.
    """
    _require_memory(name, weights, length, options)
    params = lib.llama_context_default_params()
    params.n_ctx = length * options.max_sequences
    params.n_seq_max = options.max_sequences
    params.n_batch, params.n_ubatch = N_BATCH, N_UBATCH
    params.n_threads = params.n_threads_batch = options.threads or default_threads()
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    # In one cache neighbours change the order of a sequence's cells, and so of its sums.
    params.kv_unified = not options.bit_exact
    params.swa_full = True
    problems.clear()
    with interrupts_held():
        context = lib.llama_init_from_model(weights, params)
    try:
        raise_interrupts()
    except BaseException:
        lib.llama_free(context)
        raise
    if not context:
        raise ModelLoadError(
            f"{name} cannot be set up ({reason()}): try fewer sequences or a shorter context"
        )
    return context


def _require_memory(name: str, weights: Any, length: int, options: ModelOptions) -> None:
    """Refuse a cache that cannot fit: the system would kill us when it is touched."""
    need = length * options.max_sequences * _entry_bytes(weights)
    free = free_memory()
    if need > free and options.gpu_layers == 0:
        raise ModelLoadError(
            f"{name}: a cache for {options.max_sequences} x {length} tokens takes about "
            f"{need / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            "give a shorter context length, or fewer sequences"
        )


def _entry_bytes(weights: Any) -> int:
    """About what one token takes in the cache; too much where layers share or lack one."""
    heads = max(1, int(lib.llama_model_n_head(weights)))
    size = int(lib.llama_model_n_embd(weights)) // heads
    kind = _metadata(weights, "general.architecture")
    widths = [
        int(_metadata(weights, f"{kind}.attention.{part}_length") or size)
        for part in ("key", "value")
    ]
    layers = int(lib.llama_model_n_layer(weights)) * int(lib.llama_model_n_head_kv(weights))
    return layers * sum(widths) * CACHE_ENTRY


def _metadata(weights: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(128)
    lib.llama_model_meta_val_str(weights, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
