"""Opening Hugging Face checkpoints, what is refused and why, and the options for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny_hf
from draftproof import ModelOptions, load_model
from draftproof.cli import main
from draftproof.errors import ModelLoadError
from draftproof.models import Chunk, hf
from draftproof.models.hf import HfModel

TOKENIZER = tiny_hf.byte_level()
OPTIONS = ModelOptions(max_sequences=2)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def wrap(model: Any, options: ModelOptions = OPTIONS) -> HfModel:
    return HfModel(model, TOKENIZER, options, "tiny")


# What is refused


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("Mamba", {}, "recurrent state"),
        ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "tiny cannot be run"),
        ("Bloom", {"n_layer": 2, "n_head": 4}, "no cache or no positions"),
        ("BioGpt", {}, "masks depend on more than positions"),
        ("XGLM", {"d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4}, "fails"),
        ("Gemma3Text", {"use_bidirectional_attention": True}, "tiny cannot be run"),
    ],
)
def test_what_cannot_be_right_is_refused(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelLoadError, match=says) as caught:
        wrap(tiny_hf.model(name, **settings))
    assert "\n" not in str(caught.value)


def test_encoder_decoders_are_refused() -> None:
    config = transformers.T5Config(
        d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2, vocab_size=262
    )
    with pytest.raises(ModelLoadError, match="encoder-decoder"):
        wrap(transformers.T5ForConditionalGeneration(config))


def test_a_model_that_computes_something_else_is_refused() -> None:
    """The probe is what stands between an architecture nobody tried and wrong text."""
    users = tiny_hf.model()
    attention = users.model.layers[1].self_attn

    def shifted(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs["cache"] is not None:
            kwargs["hidden_states"] = kwargs["hidden_states"] * 1.1
        return args, kwargs

    attention.register_forward_pre_hook(shifted, with_kwargs=True)
    with pytest.raises(ModelLoadError, match="other logits than its own"):
        wrap(users)


def test_an_attention_option_we_do_not_know_is_refused() -> None:
    users = tiny_hf.model()
    for layer in users.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {**kwargs, "tilt": 0.5}), with_kwargs=True
        )
    with pytest.raises(ModelLoadError, match="its attention needs 'tilt'"):
        wrap(users)


def test_a_cache_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf, "free_memory", lambda device: 1000)
    with pytest.raises(ModelLoadError, match="a cache for 2 x 64 tokens"):
        wrap(tiny_hf.model())


# Context lengths


def test_the_context_is_what_the_model_was_made_for() -> None:
    assert wrap(tiny_hf.model()).capabilities.context_length == tiny_hf.CONTEXT
    model = wrap(tiny_hf.model(), ModelOptions(context_length=100))
    assert model.capabilities.context_length == tiny_hf.CONTEXT


@pytest.mark.parametrize(
    ("name", "rope", "length"),
    [
        (
            "Phi3",
            {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
            32,
        ),
        ("Llama", {"rope_type": "dynamic", "factor": 2.0}, 64),
        ("Llama", {"rope_type": "yarn", "factor": 2.0}, 64),
    ],
)
def test_embeddings_that_change_with_the_length_are_used_below_the_change(
    name: str, rope: dict[str, Any], length: int
) -> None:
    rope = {**rope, "rope_theta": 1e4, "original_max_position_embeddings": 32}
    users = tiny_hf.model(name, rope_parameters=rope, original_max_position_embeddings=32)
    model = wrap(users)
    assert model.capabilities.context_length == length
    text = list(range(length))
    model.forward([Chunk(0, text[:20], 0)])
    (logits,) = model.forward([Chunk(0, text[20:], length - 20)])
    torch.testing.assert_close(logits, tiny_hf.alone(users, text)[20:], atol=1e-4, rtol=1e-4)


# Files


def test_loading_is_quiet_and_leaves_their_log_as_it_was(
    tiny_checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    level = transformers.utils.logging.get_verbosity()
    parts: list[float] = []
    model = load_model(f"hf:{tiny_checkpoint}", ModelOptions(device="cpu"), parts.append)
    assert capfd.readouterr() == ("", "")
    assert parts == [1.0]
    assert model.name == tiny_checkpoint.name
    assert transformers.utils.logging.get_verbosity() == level


@pytest.mark.parametrize(
    ("saved", "asked", "runs"),
    [
        ("float16", None, "float32"),
        ("bfloat16", None, "bfloat16"),
        ("float32", None, "float32"),
        ("float32", "bfloat16", "bfloat16"),
        ("float16", "float16", "float16"),
    ],
)
def test_dtypes(tmp_path: Path, saved: str, asked: str | None, runs: str) -> None:
    tiny_hf.model().to(getattr(torch, saved)).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    model = hf.load(str(tmp_path), ModelOptions(device="cpu", dtype=asked))
    assert model._model.dtype == getattr(torch, runs)


def test_a_gguf_file_gives_what_llama_cpp_gives(tiny: dict[str, Path], capfd: Any) -> None:
    model = load_model(f"hf:{tiny['llama']}", ModelOptions(dtype="float32", device="cpu"))
    assert capfd.readouterr() == ("", "")
    other = load_model(f"gguf:{tiny['llama']}", ModelOptions(threads=1))
    try:
        assert model.tokenizer.vocabulary() == other.tokenizer.vocabulary()
        tokens = model.tokenizer.encode("hello, 🎉")
        assert tokens == other.tokenizer.encode("hello, 🎉")
        (ours,) = model.forward([Chunk(0, tokens, len(tokens))])
        (theirs,) = other.forward([Chunk(0, tokens, len(tokens))])
        np.testing.assert_allclose(ours, theirs, atol=0.03)
    finally:
        other.close()


def broken(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")


def empty(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_tokenizer(folder: Path) -> None:
    for file in folder.glob("token*"):
        file.unlink()


def unknown(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "nonsense"}')


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (broken, "cannot be loaded"),
        (empty, "holds no config.json"),
        (no_tokenizer, "has no tokenizer"),
        (unknown, "cannot be loaded"),
    ],
)
def test_a_broken_folder_is_one_line(
    tiny_checkpoint: Path, tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))
    spoil(folder)
    with pytest.raises(ModelLoadError, match=says) as caught:
        hf.load(str(folder), OPTIONS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/no/such/folder", "./nothing", "nobody/no-model"])
def test_what_is_not_there_is_one_line(path: str) -> None:
    with pytest.raises(ModelLoadError, match=r"no such folder|no hub") as caught:
        hf.load(path, OPTIONS)
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_one_line(tiny_checkpoint: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(ModelLoadError, match="cuda"):
        hf.load(str(tiny_checkpoint), ModelOptions(device="cuda"))


# The command line


def test_the_command_line_runs_a_checkpoint(
    tiny_checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = f"hf:{tiny_checkpoint}"
    args = ["generate", "--target", spec, "--draft", spec, "--max-tokens", "5", "--raw", "hello"]
    assert main([*args, "--device", "cpu", "--dtype", "float32"]) == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--target", "table:markov", "--device", "cpu"], "--device is for hf: models"),
        (["--target", "table:markov", "--dtype", "float32"], "--dtype is for hf: models"),
        (["--target", "hf:x", "--gpu-layers", "1"], "--gpu-layers is for GGUF files"),
        (["--target", "hf:x", "--device", "toaster"], "device must be cpu"),
    ],
)
def test_idle_options_are_refused(
    capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    assert main(["generate", *args, "a"]) == 2
    assert says in capsys.readouterr().err
