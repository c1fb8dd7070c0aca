"""Draft models of another tokenizer, on real tokenizers and a real model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from draftproof import Completion, Engine, ModelOptions, SamplingParams, Speculation, load_drafter
from draftproof.drafters.cross import CrossVocabularyDrafter
from draftproof.drafters.cross_bytes import Retelling, Vocabulary
from draftproof.models.gguf import GgufModel
from draftproof.text import encode_prompt
from draftproof.types import CROSS_VOCABULARY
from toys import ask

pytestmark = pytest.mark.model

Open = Callable[..., GgufModel]
PROMPT = "hello abba. Ä € — 你好\n\n  a b\thello"


@pytest.mark.parametrize("method", CROSS_VOCABULARY)
@pytest.mark.parametrize("pair", [("llama", "spm"), ("spm", "llama"), ("padded", "spm")])
@pytest.mark.parametrize("seed", [None, 5])
def test_tiny_models_of_two_tokenizers(
    tiny: dict[str, Path], open_gguf: Open, pair: tuple[str, str], method: str, seed: int | None
) -> None:
    target = open_gguf(tiny[pair[0]], context_length=256)
    drafter = CrossVocabularyDrafter(open_gguf(tiny[pair[1]], context_length=256), target, method)
    temperature = 0.0 if seed is None else 1.0
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=seed)
    plain = Engine(target).generate(PROMPT, params)
    fast = Engine(target, drafter).generate(PROMPT, params)
    assert fast.token_ids == plain.token_ids
    assert fast.stats.drafted > 0


@pytest.mark.parametrize("pair", [("llama", "spm"), ("spm", "llama")])
def test_the_text_is_read_as_it_comes(
    tiny: dict[str, Path], open_gguf: Open, pair: tuple[str, str]
) -> None:
    """Token by token the draft model's text is the one of the whole, but for a space in front."""
    target, draft = (Vocabulary(open_gguf(tiny[name])) for name in pair)
    tokens = target.tokenizer.encode(PROMPT * 4)
    retelling = Retelling(target, draft)
    for end in range(1, len(tokens) + 1):
        retelling.update(ask(tokens[:end]))
    begin = [] if draft.tokenizer.bos is None else [draft.tokenizer.bos]
    whole = draft.tokenizer.encode(target.join(tokens).decode())
    assert draft.join(retelling.tokens) == target.join(tokens)
    assert retelling.tokens[:1] == begin
    assert retelling.tokens[8:] == (begin + whole)[8 + len(whole) + 1 - len(retelling.tokens) :]


QUESTIONS = (
    "Write a Python function that tells whether a word is a palindrome.",
    "Schreibe einen Satz über Äpfel & Öl — mit 😀.",
)


LEAST = {"tokens": (0.97, 0.97), "text": (0.95, 0.5)}  # greedy, seeded


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "seeded"])
def test_the_demo_model_accepts_nearly_as_many_of_its_own_drafts(
    q8_path: str, seeded: bool
) -> None:
    """As without the detour; a seeded draft in text lacks the target's noise."""
    options = ModelOptions(context_length=512)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    if seeded:
        params = replace(params, temperature=0.7, seed=3)
    lengths = {}
    with Engine(q8_path, options=options) as loaded:
        for method in (None, *LEAST):
            drafter = load_drafter(q8_path, loaded.target, options, cross_vocabulary=method)
            done = [_ask(Engine(loaded.target, drafter), q, params) for q in QUESTIONS]
            lengths[method] = fmean(one.stats.acceptance_length for one in done)
            drafter.close()
    for method, least in LEAST.items():
        assert lengths[method] >= least[seeded] * lengths[None]


def _ask(engine: Engine, question: str, params: SamplingParams) -> Completion:
    model = engine.target
    messages = [{"role": "user", "content": question}]
    prompt = encode_prompt(model.tokenizer, messages, model.capabilities.vocabulary)
    return engine.generate(prompt, params, Speculation(draft_length=4))
