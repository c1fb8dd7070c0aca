"""Every architecture, as target and as draft, against transformers' own ``generate()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tiny_hf
from draftproof import Engine, ModelOptions, Origin, SamplingParams, Speculation
from draftproof.drafters.model import ModelDrafter
from draftproof.models import Chunk
from draftproof.models.hf import HfModel

PROMPTS = [[5, 9, 200, 31, 7] * 4, [40, 41, 3], list(range(60, 71))]  # of different lengths
COUNT = 28
GREEDY = SamplingParams(max_tokens=COUNT, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=COUNT, ignore_eos=True, temperature=1.0, top_p=0.95, seed=3)
ROUNDING = 1e-3  # float32 logits of passes of different widths; they span about 10
TOKENIZER = tiny_hf.byte_level(end=False)


@pytest.fixture(scope="module", params=sorted(tiny_hf.ARCHITECTURES))
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A target of an architecture and a draft that often agrees with it."""
    target = tiny_hf.model(request.param)
    draft = tiny_hf.model(request.param)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in draft.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return target, draft


def wrap(model: Any, sequences: int = 3, context: int | None = None) -> HfModel:
    return HfModel(
        model, TOKENIZER, ModelOptions(max_sequences=sequences, context_length=context), "tiny"
    )


def generate(model: Any, prompt: Sequence[int], count: int = COUNT) -> list[int]:
    """What transformers makes of a prompt by itself."""
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    return out[0, len(prompt) :].tolist()


def same(
    model: Any, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int], bound: float
) -> None:
    """Equal; or, where the kernels of this machine round otherwise, parted at a near tie."""
    assert len(ours) == len(theirs)
    pairs = enumerate(zip(ours, theirs, strict=True))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is not None:
        row = tiny_hf.alone(model, [*prompt, *theirs[:place]])[-1]
        gap = abs(float(row[ours[place]] - row[theirs[place]]))
        assert gap <= bound, f"at {place}: {ours[place]} or {theirs[place]}, {gap} apart"


def run(engine: Engine, params: SamplingParams, lengths: Sequence[int]) -> list[list[int]]:
    """All prompts at once, each with its own draft length."""
    requests = [
        engine.submit(prompt, params, Speculation(draft_length=length))
        for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    while engine.step():
        pass
    return [engine.completion(request).token_ids for request in requests]


def test_greedy_text_is_transformers_own(pair: tuple[Any, Any]) -> None:
    target, draft = pair
    model = wrap(target)
    with Engine(model, ModelDrafter(wrap(draft), model)) as engine:
        for lengths in ((0, 0, 0), (4, 1, 3)):
            for prompt, ours in zip(PROMPTS, run(engine, GREEDY, lengths), strict=True):
                same(target, prompt, ours, generate(target, prompt), ROUNDING)


def test_seeded_text_is_plain_decodings_alone_and_together(pair: tuple[Any, Any]) -> None:
    target, draft = pair
    model = wrap(target)
    with Engine(model, ModelDrafter(wrap(draft), model)) as engine:
        together = run(engine, SEEDED, (5, 2, 3))
        alone = Engine(wrap(target, 1))
        assert together == [alone.generate(prompt, SEEDED).token_ids for prompt in PROMPTS]


def test_the_target_as_its_own_draft_accepts_everything(pair: tuple[Any, Any]) -> None:
    target, _ = pair
    model = wrap(target)
    engine = Engine(model, ModelDrafter(wrap(target), model), speculation=Speculation())
    for params in (GREEDY, SEEDED):
        steps = list(engine.stream(PROMPTS[0], params))
        assert Origin.CORRECTION not in {origin for step in steps for origin in step.origins}


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_the_position_table_can_be_used_to_its_end(pair: tuple[Any, Any], length: int) -> None:
    target, draft = pair
    prompt = PROMPTS[2]
    model = wrap(target)
    engine = Engine(model, ModelDrafter(wrap(draft), model))
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    done = engine.generate(prompt, params, Speculation(draft_length=length))
    assert done.finish_reason == "length"
    assert len(prompt) + len(done.token_ids) == tiny_hf.CONTEXT
    theirs = generate(target, prompt, tiny_hf.CONTEXT - len(prompt))
    same(target, prompt, done.token_ids, theirs, ROUNDING)


def test_a_second_turn_goes_on_from_the_kept_entries(pair: tuple[Any, Any]) -> None:
    target, draft = pair
    model = wrap(target)
    engine = Engine(model, ModelDrafter(wrap(draft), model))
    first = engine.generate(PROMPTS[2], SamplingParams(max_tokens=12, ignore_eos=True))
    prompt = [*PROMPTS[2], *first.token_ids[:9], 17, 18, 19]
    second = engine.generate(prompt, SamplingParams(max_tokens=20, ignore_eos=True))
    assert second.stats.cached_tokens == len(PROMPTS[2]) + 9
    same(target, prompt, second.token_ids, generate(target, prompt, 20), ROUNDING)


def test_a_draft_model_may_have_a_shorter_context(pair: tuple[Any, Any]) -> None:
    target, draft = pair
    model = wrap(target)
    engine = Engine(model, ModelDrafter(wrap(draft, context=24), model))
    ours = engine.generate(PROMPTS[2], GREEDY).token_ids
    same(target, PROMPTS[2], ours, generate(target, PROMPTS[2]), ROUNDING)


def test_bfloat16_parts_only_where_rounding_decides(pair: tuple[Any, Any]) -> None:
    """Rounding is what bfloat16 moves the model's own logits by; ours move no farther."""
    target, draft = (tiny_hf.copy(model, torch.bfloat16) for model in pair)
    model = wrap(target)
    engine = Engine(model, ModelDrafter(wrap(draft), model))
    for prompt in PROMPTS:
        theirs = generate(target, prompt)
        text, start = [*prompt, *theirs], len(prompt) - 1
        exact, rounded = (
            tiny_hf.alone(pair[0], text)[start:-1],
            tiny_hf.alone(target, text)[start:-1],
        )
        model.truncate(0, 0)
        model.forward([Chunk(0, text[:start], 0)])
        ours = torch.cat([model.forward([Chunk(0, [t], 1)])[0] for t in text[start:-1]])
        noise = float((rounded - exact).abs().max())
        assert float((ours - exact).abs().max()) < 2 * noise
        text = engine.generate(prompt, GREEDY).token_ids
        same(target, prompt, text, theirs, 4 * noise)
