"""The real model: whatever drafts, the text is plain decoding's, up to measured near ties."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from draftproof import (
    Drafter,
    Engine,
    Model,
    ModelOptions,
    Origin,
    SamplingParams,
    Speculation,
    load_drafter,
    load_model,
)
from draftproof.text import encode_prompt
from ties import Judge, Tie, first_difference

pytestmark = pytest.mark.model

PROMPTS = (
    "Write a Python function that tells whether a word is a palindrome.",
    "What is 17 times 6? Show each step.",
    "List five fruits that grow on trees.",
    "Translate into French: The train leaves at noon.",
    "Tell a short story about a lighthouse keeper and a whale.",
    "Why is the sky blue?",
    "Rewrite politely: Give me the report now.",
    "Extract the names: Anna met Boris and Carla at the station in Ghent.",
    "Summarise in one sentence: The river rose for three days, and then the bridge was closed.",
    "Write a SQL query that counts the orders of each customer.",
    "A farmer has 12 sheep and buys 9 more. Then 4 run away. How many are left?",
    "Write a haiku about the first snow.",
    "Repeat this exactly, three times: red green blue red green yellow",
    "Correct the spelling: Ths sentense has sevral erors in it.",
    "Which is heavier, a kilogram of iron or a kilogram of feathers?",
    "Write a JSON object with the keys name, age and city.",
    "Give me a recipe for pancakes.",
    "Explain recursion to a ten-year-old.",
    "What are the days of the week, in order?",
    "Write an email to a landlord about a broken heater.",
    "Continue: 1, 1, 2, 3, 5, 8, 13,",
    "Classify as positive or negative: The film was dull and far too long.",
    "Convert this list to a table: tea 2, coffee 3, milk 1.",
    "Who wrote Romeo and Juliet, and what is it about?",
)
DRAFTERS = ("q8", "q40", "lookup")
PAIRS = list(product(DRAFTERS, range(1, 9)))  # as many as there are prompts

GREEDY = SamplingParams(max_tokens=64, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=64, temperature=0.8, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def target(f16_path: str) -> Iterator[Model]:
    model = load_model(f16_path, ModelOptions(context_length=512, max_sequences=8))
    yield model
    model.close()


@pytest.fixture(scope="module")
def drafters(target: Model, q8_path: str, q40_path: str) -> Iterator[dict[str, Drafter]]:
    specs = {"q8": q8_path, "q40": q40_path, "lookup": "lookup"}
    loaded = {name: load_drafter(spec, target) for name, spec in specs.items()}
    yield loaded
    for drafter in loaded.values():
        drafter.close()


@pytest.fixture(scope="module")
def ties(request: pytest.FixtureRequest) -> Iterator[list[Tie]]:
    """The near ties that were met; told at the end."""
    met: list[Tie] = []
    yield met
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(
            f"\n{len(met)} texts part from plain decoding's, each at a near tie", *met, sep="\n  "
        )


def chat(number: int, target: Model) -> list[int]:
    messages = [{"role": "user", "content": PROMPTS[number]}]
    return encode_prompt(target.tokenizer, messages, target.capabilities.vocabulary)


def check(
    target: Model,
    drafters: dict[str, Drafter],
    number: int,
    params: SamplingParams,
    pairs: list[tuple[str, int]],
) -> list[Tie]:
    """Plain decoding of a prompt against some drafters; where they part it must be a near tie."""
    prompt = chat(number, target)
    plain = Engine(target).generate(prompt, params)
    ties = []
    for name, length in pairs:
        fast = Engine(target, drafters[name]).generate(
            prompt, params, Speculation(draft_length=length)
        )
        tie = first_difference(
            target, prompt, plain.token_ids, fast.token_ids, params, width=length + 1
        )
        if tie is None:
            assert (fast.text, fast.finish_reason) == (plain.text, plain.finish_reason)
        else:
            assert tie.gap <= tie.bound, f"{name}, draft length {length}: {tie}"
            ties.append(tie)
    return ties


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_trap_12_greedy_text_is_plain_decodings(
    target: Model, drafters: dict[str, Drafter], ties: list[Tie], number: int
) -> None:
    pairs = [PAIRS[number], PAIRS[(number + 11) % len(PAIRS)]]
    """Trap 12: what is waved away elsewhere as a near tie is shown to be one."""
    ties += check(target, drafters, number, GREEDY, pairs)


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_seeded_text_is_plain_decodings(
    target: Model, drafters: dict[str, Drafter], ties: list[Tie], number: int
) -> None:
    ties += check(target, drafters, number, SAMPLED, [PAIRS[(number + 5) % len(PAIRS)]])


REQUESTS = [
    (SamplingParams(max_tokens=40), 4),
    (SamplingParams(max_tokens=64, temperature=0.8, top_p=0.95, seed=1), 2),
    (SamplingParams(max_tokens=12, ignore_eos=True), 8),
    (SamplingParams(max_tokens=64, stop=("\n", ". ")), 3),
    (SamplingParams(max_tokens=30, temperature=1.0, top_k=40, seed=2), 0),
    (SamplingParams(max_tokens=50, temperature=0.6, min_p=0.1, seed=3, stop=("the",)), 5),
    (SamplingParams(max_tokens=1), 6),
    (SamplingParams(max_tokens=64), 1),
]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_batch_of_eight_equals_the_eight_alone(
    target: Model, drafters: dict[str, Drafter], ties: list[Tie], name: str
) -> None:
    prompts = [chat(3 * number, target) for number in range(8)]
    alone = [
        Engine(target).generate(prompt, params)
        for prompt, (params, _) in zip(prompts, REQUESTS, strict=True)
    ]
    engine = Engine(target, drafters[name], prefill_chunk=64)
    requests = []
    for prompt, (params, length) in zip(prompts, REQUESTS, strict=True):
        requests.append(engine.submit(prompt, params, Speculation(draft_length=length)))
        engine.step()
    while engine.step():
        pass
    for request, prompt, one, (params, _) in zip(requests, prompts, alone, REQUESTS, strict=True):
        done = engine.completion(request)
        tie = first_difference(target, prompt, one.token_ids, done.token_ids, params, width=32)
        if tie is None:
            assert (done.text, done.finish_reason) == (one.text, one.finish_reason)
        else:
            assert tie.gap <= tie.bound, str(tie)
            ties.append(tie)


@pytest.mark.parametrize("kind", ["f16", "q8"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "seeded"])
def test_the_target_as_its_own_draft_accepts_everything(
    f16_path: str,
    q8_path: str,
    ties: list[Tie],
    kind: str,
    params: SamplingParams,
) -> None:
    """Where wide passes give the same bits, as Q8_0 here, the bound of a near tie is 0."""
    path = {"f16": f16_path, "q8": q8_path}[kind]
    with Engine(path, path, options=ModelOptions(context_length=512)) as loaded:
        model = loaded.target
        for number in (0, 4):
            prompt = chat(number, model)
            text, refused = list(prompt), []
            engine = Engine(model, loaded.drafter, speculation=Speculation(draft_length=5))
            for step in engine.stream(prompt, params):
                text += step.tokens
                if Origin.CORRECTION in step.origins:
                    refused.append((len(text) - 1 - len(prompt), step.drafted[step.accepted]))
            judge = Judge(model, text, len(prompt), params, width=6)
            assert judge.noise or not refused
            for place, drafted in refused:
                tie = judge.tie(place, text[len(prompt) + place], drafted)
                assert tie.gap <= tie.bound, str(tie)
                ties.append(tie)
