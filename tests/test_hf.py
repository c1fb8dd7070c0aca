"""Running Hugging Face checkpoints; the user's own model stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tiny_hf
from draftproof import Engine, ModelError, ModelOptions, SamplingParams
from draftproof.errors import ClosedError
from draftproof.models import Chunk, hf_linear
from draftproof.models.hf import HfModel

TOKENIZER = tiny_hf.byte_level()
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
OPTIONS = ModelOptions(max_sequences=2)


def wrap(model: Any, options: ModelOptions = OPTIONS) -> HfModel:
    return HfModel(model, TOKENIZER, options, "tiny")


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


# The user's model


def state(model: Any) -> dict[str, Any]:
    """All there is to see of a model."""
    return {
        "weights": {k: v.clone() for k, v in model.state_dict().items()},
        "buffers": {k: v.clone() for k, v in model.named_buffers()},
        "config": copy.deepcopy(model.config.to_dict()),
        "attention": [
            m.config._attn_implementation for m in model.modules() if hasattr(m, "config")
        ],
        "generation": copy.deepcopy(model.generation_config.to_dict()),
        "training": [m.training for m in model.modules()],
        "gradients": [p.requires_grad for p in model.parameters()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
    }


def assert_untouched(model: Any, before: dict[str, Any]) -> None:
    after = state(model)
    for part in ("weights", "buffers"):
        old, new = before.pop(part), after.pop(part)
        assert old.keys() == new.keys()
        assert all(torch.equal(old[k], new[k]) for k in old)
    assert before == after


@pytest.fixture(params=[False, True], ids=["linear", "transposed"])
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_linear, "_is_faster", lambda layers, rows: request.param)


@pytest.fixture
def users() -> Any:
    """In training, with dropout, frozen in part, and run once: nothing is created lazily later."""
    model = tiny_hf.model("GPT2", attn_pdrop=0.5, resid_pdrop=0.5).train()
    model.transformer.h[1].eval()
    model.transformer.wte.weight.requires_grad = False
    return model


@pytest.mark.usefixtures("few_rows")
def test_the_users_model_is_left_as_it_was(users: Any) -> None:
    before = state(users)
    model = wrap(users)
    with Engine(model, "lookup") as engine:
        engine.generate(TEXT, SamplingParams(max_tokens=10, ignore_eos=True))
        assert_untouched(users, before)
    model.close()
    users(torch.tensor([TEXT]), labels=torch.tensor([TEXT])).loss.backward()


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_an_exception_in_a_pass_leaves_everything_as_it_was(error: BaseException) -> None:
    users = tiny_hf.model("Llama").train()
    model = wrap(users)
    model.forward([Chunk(0, TEXT, 0), Chunk(1, TEXT[:3], 0)])
    before = state(users)

    def fail(*_: object) -> None:
        raise error

    hook = users.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ModelError):
        model.forward([Chunk(0, [1, 2], 1), Chunk(1, [3], 1)])
    hook.remove()
    assert_untouched(users, before)
    assert (model.length(0), model.length(1)) == (8, 3)
    (logits,) = model.forward([Chunk(1, TEXT[3:], 5)])
    close(logits, tiny_hf.alone(users.eval(), TEXT)[3:])


def test_two_models_may_share_the_weights() -> None:
    users = tiny_hf.model()
    one, two = wrap(users), wrap(users)
    one.forward([Chunk(0, TEXT, 0)])
    (logits,) = two.forward([Chunk(0, TEXT[::-1], 8)])
    close(logits, tiny_hf.alone(users, TEXT[::-1]))


# Passes


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", ["Llama", "Qwen2"])  # without and with biases
def test_every_number_of_rows_gives_the_models_own_logits(name: str) -> None:
    users = tiny_hf.model(name)
    model = wrap(users)
    text = [7 * i % 250 for i in range(60)]
    want, at = tiny_hf.alone(users, text), 0
    for count in (1, 2, 3, 1, 4, 5, 8, 9, 12, 1):
        (logits,) = model.forward([Chunk(0, text[at : at + count], count)])
        close(logits, want[at : at + count])
        at += count


def test_windows_hold_after_a_rollback_far_behind_them() -> None:
    users = tiny_hf.model("Gemma3Text")
    model = wrap(users)
    text = [11 * i % 250 for i in range(50)]
    model.forward([Chunk(0, text[::-1], 0)])
    model.truncate(0, 0)
    model.forward([Chunk(0, text[:9], 0), Chunk(1, text[:30], 0)])
    model.forward([Chunk(0, text[9:30][::-1], 0)])
    model.truncate(0, 9)
    for at in range(9, 50, 5):
        (logits,) = model.forward([Chunk(0, text[at : at + 5], len(text[at : at + 5]))])
        close(logits, tiny_hf.alone(users, text)[at : at + 5])


@pytest.mark.parametrize("name", ["GptOss", "Gemma2"])
def test_sinks_and_soft_caps_are_kept(name: str) -> None:
    settings = {"num_local_experts": 4, "layer_types": tiny_hf.LAYERS, "sliding_window": 8}
    settings["attn_logit_softcapping"] = 2.0
    users = tiny_hf.model(
        name, **settings, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    model = wrap(users)
    text = [11 * i % 250 for i in range(40)]
    rows = [model.forward([Chunk(0, text[:20], 20)])[0]]
    for at in range(20, 40, 4):
        rows += model.forward([Chunk(0, text[at : at + 4], 4)])
    close(torch.cat(rows), tiny_hf.alone(users, text))


def test_logits_are_float32_whatever_the_weights_are() -> None:
    model = wrap(tiny_hf.model().to(torch.bfloat16))
    (logits,) = model.forward([Chunk(0, TEXT, 2)])
    assert logits.dtype == torch.float32


def test_tied_and_padded_heads_are_right() -> None:
    for tied in (True, False):
        users = tiny_hf.model(tie_word_embeddings=tied, vocab_size=300)
        model = wrap(users)
        assert model.capabilities.vocabulary == 300
        assert len(model.tokenizer.vocabulary()) == 300
        close(model.forward([Chunk(0, TEXT, 8)])[0], tiny_hf.alone(users, TEXT))


def test_closed_models_let_go_of_the_users_model() -> None:
    model = wrap(tiny_hf.model())
    model.close()
    with pytest.raises(ClosedError):
        model.forward([Chunk(0, TEXT, 1)])
