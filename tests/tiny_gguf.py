"""Writes GGUF files of a few kilobytes with random weights, to load in milliseconds.

The numbers mean nothing, but every architecture, cache and tokenizer here is llama.cpp's own.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, HIDDEN, CONTEXT = 64, 2, 2, 64, 512
SPECIAL = ("<|bos|>", "<|eos|>", "<|eot|>")
MERGES = ("h e", "l l", "he ll", "hell o")


def byte_letters() -> list[str]:
    """How byte-level BPE writes the 256 bytes (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def vocabulary(padding: int = 0) -> tuple[list[str], list[int]]:
    """Token texts and their types: specials, 256 bytes, four merges, unused ones."""
    texts = [*SPECIAL, *byte_letters(), *(m.replace(" ", "") for m in MERGES)]
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL)
    kinds += [gguf.TokenType.NORMAL] * (len(texts) - len(SPECIAL))
    texts += [f"[PAD{i}]" for i in range(padding)]
    kinds += [gguf.TokenType.UNUSED] * padding
    return texts, [int(kind) for kind in kinds]


class Writer:
    """One file: hyperparameters, a tokenizer, then tensors by name."""

    def __init__(self, path: Path, arch: str, seed: int, kv_heads: int | list[int] = HEADS) -> None:
        self.out = gguf.GGUFWriter(str(path), arch)
        self.random = np.random.default_rng(seed)
        self.out.add_block_count(LAYERS)
        self.out.add_context_length(CONTEXT)
        self.out.add_embedding_length(WIDTH)
        self.out.add_feed_forward_length(HIDDEN)
        self.out.add_head_count(HEADS)
        self.out.add_head_count_kv(kv_heads)
        self.out.add_layer_norm_rms_eps(1e-5)

    def bpe(self, padding: int = 0, merges: tuple[str, ...] = MERGES) -> int:
        texts, kinds = vocabulary(padding)
        self.out.add_tokenizer_model("gpt2")
        self.out.add_tokenizer_pre("gpt-2")
        self.out.add_token_list(texts)
        self.out.add_token_types(kinds)
        self.out.add_token_merges(list(merges))
        self.out.add_bos_token_id(0)
        self.out.add_eos_token_id(1)
        self.out.add_eot_token_id(2)
        self.out.add_add_bos_token(True)
        return len(texts)

    def sentencepiece(self, letters: str = "▁ab") -> int:
        texts = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters]
        kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
        kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(letters)
        self.out.add_tokenizer_model("llama")
        self.out.add_token_list(texts)
        self.out.add_token_scores([0.0] * len(texts))
        self.out.add_token_types([int(kind) for kind in kinds])
        return len(texts)

    def spaceless(self) -> int:
        """Without a token for the space, each one takes the three bytes of U+2581."""
        return self.sentencepiece("")

    def no_tokenizer(self) -> int:
        self.out.add_tokenizer_model("no_vocab")
        self.out.add_vocab_size(300)
        return 300

    def tensor(self, name: str, *shape: int) -> None:
        """Random, in NumPy's order of axes (the reverse of ggml's); norms are ones."""
        norm = "norm" in name
        data = np.ones(shape) if norm else self.random.normal(0, shape[-1] ** -0.5, shape)
        self.out.add_tensor(name, data.astype(np.float32))

    def close(self) -> None:
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def llama(
    path: Path,
    *,
    arch: str = "llama",
    seed: int = 1,
    padding: int = 0,
    tokenizer: str = "bpe",
    template: str | None = None,
    pooling: bool = False,
) -> Path:
    """A two-layer llama; ``arch`` may name another architecture with the same tensors."""
    writer = Writer(path, arch, seed)
    size = writer.bpe(padding) if tokenizer == "bpe" else getattr(writer, tokenizer)()
    if template:
        writer.out.add_chat_template(template)
    if arch == "qwen2vl":  # positions of several parts
        writer.out.add_rope_dimension_sections([4, 6, 6, 0])
    if pooling:
        writer.out.add_pooling_type(gguf.PoolingType.LAST)
    writer.tensor("token_embd.weight", size, WIDTH)
    writer.tensor("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}.")
    writer.close()
    return path


def gemma2(path: Path, *, window: int, seed: int = 2) -> Path:
    """Gemma 2: every other layer looks at the last ``window`` tokens only."""
    writer = Writer(path, "gemma2", seed)
    size = writer.bpe()
    writer.out.add_sliding_window(window)
    writer.out.add_attn_logit_softcapping(50.0)
    writer.out.add_final_logit_softcapping(30.0)
    writer.tensor("token_embd.weight", size, WIDTH)
    writer.tensor("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        _layer(writer, f"blk.{layer}.")
        writer.tensor(f"blk.{layer}.post_attention_norm.weight", WIDTH)
        writer.tensor(f"blk.{layer}.post_ffw_norm.weight", WIDTH)
    writer.close()
    return path


def mamba(path: Path, *, seed: int = 3) -> Path:
    """Mamba: a recurrent state instead of a cache."""
    inner, states, rank, kernel = 2 * WIDTH, 16, 4, 4
    writer = Writer(path, "mamba", seed)
    size = writer.bpe()
    writer.out.add_ssm_conv_kernel(kernel)
    writer.out.add_ssm_inner_size(inner)
    writer.out.add_ssm_state_size(states)
    writer.out.add_ssm_time_step_rank(rank)
    writer.tensor("token_embd.weight", size, WIDTH)
    writer.tensor("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        writer.tensor(at + "attn_norm.weight", WIDTH)
        writer.tensor(at + "ssm_in.weight", 2 * inner, WIDTH)
        writer.tensor(at + "ssm_conv1d.weight", inner, kernel)
        writer.tensor(at + "ssm_conv1d.bias", inner)
        writer.tensor(at + "ssm_x.weight", rank + 2 * states, inner)
        writer.tensor(at + "ssm_dt.weight", inner, rank)
        writer.tensor(at + "ssm_dt.bias", inner)
        writer.out.add_tensor(at + "ssm_a", -np.ones((inner, states), np.float32))
        writer.tensor(at + "ssm_d", inner)
        writer.tensor(at + "ssm_out.weight", WIDTH, inner)
    writer.close()
    return path


def lfm2(path: Path, *, seed: int = 6) -> Path:
    """LFM2: a layer of short convolutions, then one of attention."""
    writer = Writer(path, "lfm2", seed, kv_heads=[0, HEADS])
    size = writer.bpe()
    writer.out.add_shortconv_l_cache(3)
    writer.tensor("token_embd.weight", size, WIDTH)
    writer.tensor("token_embd_norm.weight", WIDTH)
    writer.tensor("blk.0.shortconv.conv.weight", WIDTH, 3)
    writer.tensor("blk.0.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
    writer.tensor("blk.0.shortconv.out_proj.weight", WIDTH, WIDTH)
    _feed_forward(writer, "blk.0.")
    writer.tensor("blk.0.attn_norm.weight", WIDTH)
    _layer(writer, "blk.1.")
    for part in ("attn_q_norm", "attn_k_norm"):
        writer.tensor(f"blk.1.{part}.weight", WIDTH // HEADS)
    writer.close()
    return path


def t5_encoder(path: Path, *, seed: int = 4) -> Path:
    """An encoder without a decoder."""
    writer = Writer(path, "t5encoder", seed)
    size = writer.bpe()
    writer.out.add_layer_norm_eps(1e-5)
    writer.out.add_relative_attn_buckets_count(8)
    writer.tensor("token_embd.weight", size, WIDTH)
    writer.tensor("enc.output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        _layer(writer, f"enc.blk.{layer}.", output="attn_o")
        writer.tensor(f"enc.blk.{layer}.attn_rel_b.weight", 8, HEADS)
    writer.close()
    return path


def truncated(source: Path, path: Path) -> Path:
    """The first half of a file."""
    data = source.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def _layer(writer: Writer, at: str, output: str = "attn_output") -> None:
    """A whole layer: attention and what follows it."""
    writer.tensor(at + "attn_norm.weight", WIDTH)
    for part in ("attn_q", "attn_k", "attn_v", output):
        writer.tensor(f"{at}{part}.weight", WIDTH, WIDTH)
    _feed_forward(writer, at)


def _feed_forward(writer: Writer, at: str) -> None:
    writer.tensor(at + "ffn_norm.weight", WIDTH)
    for part in ("ffn_gate", "ffn_up"):
        writer.tensor(f"{at}{part}.weight", HIDDEN, WIDTH)
    writer.tensor(at + "ffn_down.weight", WIDTH, HIDDEN)
