"""Hugging Face checkpoints of a few kilobytes with random weights.

The numbers mean nothing, but every architecture, cache and tokenizer here is transformers' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tiny_gguf import MERGES, byte_letters

torch.set_num_threads(1)  # models this small gain nothing from more

CONTEXT, WINDOW = 64, 8
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,  # wide: random models with close logits prove nothing
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
GPT = {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 3, "n_head": 4}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma3Text": {"sliding_window": WINDOW, "layer_types": LAYERS, "query_pre_attn_scalar": 8},
    "GPT2": GPT,
    "Mistral": {"sliding_window": WINDOW},
    "Phi3": {},
    "Olmo2": {},
    "Gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "Mixtral": {"num_local_experts": 4},
}


def byte_level(end: bool = True, bos: bool = False, padding: int = 0) -> Any:
    """A byte-level BPE tokenizer that begins with a, b, c."""
    letters = sorted(byte_letters())
    letters = [*"abc", *(letter for letter in letters if letter not in "abc")]
    texts = [*letters, *(merge.replace(" ", "") for merge in MERGES)]
    vocabulary = {text: token for token, text in enumerate(texts)}
    backend = Tokenizer(models.BPE(vocabulary, [tuple(merge.split()) for merge in MERGES]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|begin|>"])
    if bos:
        begin = backend.token_to_id("<|begin|>")
        backend.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>" if end else None,
        bos_token="<|begin|>" if bos else None,
        chat_template="{{ messages[0]['content'] }}{{ eos_token }}",
    )


def model(architecture: str = "Llama", seed: int = 0, **settings: Any) -> Any:
    """A random model, ready to run."""
    kind = getattr(transformers, f"{architecture}Config")
    options = {"vocab_size": 262, **SMALL, **ARCHITECTURES.get(architecture, {}), **settings}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = transformers.AutoModelForCausalLM.from_config(kind(**options))
        for parameter in made.parameters():  # some architectures begin with zeros and ones
            parameter.data += torch.randn_like(parameter) * 0.05
    return made.eval()


def save(folder: Path, **settings: Any) -> Path:
    """A checkpoint's folder, with a tokenizer that has an end token."""
    tokenizer = byte_level()
    model(eos_token_id=tokenizer.eos_token_id, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def copy(original: Any, dtype: Any) -> Any:
    """The same weights in another type."""
    made = type(original)(original.config).to(dtype)
    made.load_state_dict(original.state_dict())
    return made.eval()


def alone(model: Any, tokens: list[int]) -> torch.Tensor:
    """The model's own logits for a text, [n, V], without a cache."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()
