"""The target's first layers draft for it: the text stays, and no layer reads a token twice."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import draftproof.sequence
import tiny_hf
from draftproof import (
    Completion,
    Engine,
    ModelError,
    ModelOptions,
    PairError,
    ParameterError,
    SamplingParams,
    Speculation,
    load_drafter,
    load_model,
)
from draftproof.drafters import DraftRequest
from draftproof.drafters.early_exit import DRAFT, choose, measure
from draftproof.drafters.model import ModelDrafter
from draftproof.models import Chunk
from draftproof.models.hf import HfModel
from draftproof.models.hf_first import FirstLayers
from draftproof.noise import noise_for
from draftproof.sampling import distribution
from exact import Script, ScriptedNoise
from test_hf import assert_untouched, close, state

TOKENIZER = tiny_hf.byte_level()
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1], [8] * 20]
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.9, top_p=0.95, seed=5)
LAYERS = 3
NAMES = ("Llama", "Qwen2", "Gemma3Text", "GPT2")


def wrap(users: Any, sequences: int = 2, context: int | None = None) -> HfModel:
    options = ModelOptions(max_sequences=sequences, context_length=context)
    return HfModel(users, TOKENIZER, options, "tiny")


def blocks(users: Any) -> Any:
    """The model's layers, whatever it calls them."""
    return users.transformer.h if hasattr(users, "transformer") else users.model.layers


def silence(users: Any, first: int) -> Any:
    """Layers from ``first`` on add nothing: what goes in comes out."""
    for layer in blocks(users)[first:]:
        for name, module in layer.named_modules():
            if name.endswith(("o_proj", "down_proj", "c_proj")):
                for parameter in module.parameters():
                    parameter.data.zero_()
    return users


@pytest.fixture(scope="module")
def models() -> dict[str, HfModel]:
    """Fewer sequences than prompts: slots are taken over."""
    return {name: wrap(tiny_hf.model(name)) for name in NAMES}


def answers(
    target: HfModel,
    drafter: str | None,
    params: SamplingParams = GREEDY,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    k: int = 4,
    **options: Any,
) -> list[Completion]:
    with Engine(target, drafter, speculation=Speculation(draft_length=k), **options) as engine:
        return engine.generate_many(prompts, params)


def tokens(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


# The text is the target's


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_plain_decoding(
    models: dict[str, HfModel], name: str, params: SamplingParams
) -> None:
    """Ragged prompts, one of them read in pieces, for every depth and draft length."""
    target, drafted = models[name], 0
    plain = tokens(answers(target, None, params))
    for depth in range(1, LAYERS):
        for k in (1, 4):
            found = answers(target, f"early-exit:{depth}", params, k=k, prefill_chunk=7)
            assert tokens(found) == plain, (depth, k)
            drafted += sum(one.stats.accepted + one.stats.rejected for one in found)
    assert drafted > 50


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "params", [GREEDY, SEEDED, SamplingParams(max_tokens=16, ignore_eos=True, temperature=1)]
)
def test_all_is_accepted_where_the_other_layers_add_nothing(
    name: str, params: SamplingParams
) -> None:
    for one in answers(wrap(silence(tiny_hf.model(name), 2)), "early-exit:2", params):
        assert one.stats.accepted > one.stats.rejected == 0


@pytest.mark.parametrize("drafter", ["early-exit:2", "lookup,early-exit:2"])
def test_budgets_and_the_end_of_the_context(models: dict[str, HfModel], drafter: str) -> None:
    target, context = models["Llama"], tiny_hf.CONTEXT
    for left in range(1, 7):
        params = SamplingParams(max_tokens=left, ignore_eos=True)
        assert tokens(answers(target, drafter, params)) == tokens(answers(target, None, params))
        full = [[7 * i % 250 for i in range(context - left)]]
        rest = SamplingParams(max_tokens=None, ignore_eos=True)
        found = answers(target, drafter, rest, full)
        assert len(found[0].token_ids) == left
        assert tokens(found) == tokens(answers(target, None, rest, full))


def test_an_end_token_in_a_draft_ends_the_answer() -> None:
    users = silence(tiny_hf.model(), 2)
    third = answers(wrap(users), None)[0].token_ids[3]
    users.generation_config.eos_token_id = users.config.eos_token_id = third
    target, params = wrap(users), SamplingParams(max_tokens=16)
    plain, found = answers(target, None, params), answers(target, "early-exit:2", params)
    assert found[0].token_ids[-1] == third
    assert [(one.text, one.finish_reason, one.token_ids) for one in found] == [
        (one.text, one.finish_reason, one.token_ids) for one in plain
    ]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_second_turns_go_on_from_the_cache(
    models: dict[str, HfModel], params: SamplingParams
) -> None:
    target = models["Gemma3Text"]
    with Engine(target) as plain, Engine(target, "early-exit:2") as engine:
        prompts = PROMPTS
        for turn in range(3):
            wanted = tokens(plain.generate_many(prompts, params))
            engine.generate_many(prompts[:2], params)  # leaves entries behind for some
            found = engine.generate_many(prompts[:2], params)
            assert tokens(found) == wanted[:2]
            assert all(one.stats.cached_tokens for one in found)
            prompts = [[*p, *w[: 5 + turn]] for p, w in zip(prompts, wanted, strict=True)]


@pytest.mark.parametrize("drafter", ["lookup,early-exit:2", "early-exit:1,early-exit:2"])
def test_chains(models: dict[str, HfModel], drafter: str) -> None:
    target = models["Qwen2"]
    prompts = [[5, 6, 7, 8] * 4, [1, 2, 3]]
    for params in (GREEDY, SEEDED):
        plain = answers(target, None, params, prompts)
        assert tokens(answers(target, drafter, params, prompts)) == tokens(plain)


def test_engines_take_turns_on_one_target(models: dict[str, HfModel]) -> None:
    target = models["Llama"]
    plain = tokens(answers(target, None))
    engines = [Engine(target, f"early-exit:{depth}") for depth in (1, 2)]
    streams = [e.stream(PROMPTS[n], GREEDY) for n, e in enumerate(engines)]
    found: list[list[int]] = [[], []]
    for _ in range(GREEDY.max_tokens or 0):
        for n, stream in enumerate(streams):
            step = next(stream, None)
            found[n] += step.tokens if step else ()
    assert [tuple(one) for one in found] == plain[:2]


# The law, and the rows


class FloatNoise(ScriptedNoise):
    """The script of ``exact.py`` for floating point: outcomes below a millionth are rounding."""

    def below(self, numerator: Any, denominator: Any, at: Any) -> bool:
        chance = min(1.0, float(numerator) / float(denominator))
        return super().below(Fraction(round(chance, 6)), 1, at)

    def draw(self, weights: Any, at: Any) -> int:
        row = weights.double().numpy()
        exact = [Fraction(round(float(x), 6)) for x in row / row.sum()]
        return super().draw(np.array(exact, dtype=object), at)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_of_the_text_is_the_targets(rule: Any) -> None:
    """Every coin of the engine falls every way; two tokens are possible at each place."""
    users = tiny_hf.model("Llama")
    target = wrap(users, 1)
    params = SamplingParams(max_tokens=3, temperature=3, top_k=2, ignore_eos=True)
    prompt = PROMPTS[0]
    script, law, rejected = Script(), Counter[tuple[int, ...]](), 0
    speculation = Speculation(draft_length=2, rule=rule)
    with (
        patch.object(draftproof.sequence, "noise_for", lambda seed: FloatNoise(script)),
        Engine(target, "early-exit:2", speculation=speculation) as engine,
    ):
        for _ in script.paths():
            done = engine.generate(prompt, params)
            law[done.token_ids] += script.probability  # type: ignore[assignment]
            rejected += done.stats.rejected
    assert rejected > 3
    wanted: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        wanted = {
            (*before, token): chance * float(row[token])
            for before, chance in wanted.items()
            for row in distribution(tiny_hf.alone(users, [*prompt, *before])[-1:], params)
            for token in row.nonzero().flatten().tolist()
        }
    assert law.keys() == wanted.keys()
    assert all(abs(law[one] - wanted[one]) < 1e-4 for one in wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_are_what_was_drawn_from(name: str) -> None:
    """They are the distributions of a model that has the first layers alone."""
    users = tiny_hf.model(name)
    shorter: dict[str, Any] = {"num_hidden_layers": 2}
    if name == "GPT2":
        shorter["n_layer"] = 2
    if name == "Gemma3Text":
        shorter["layer_types"] = tiny_hf.LAYERS[:2]
    first = tiny_hf.model(name, **shorter)
    first.load_state_dict(users.state_dict(), strict=False)
    target, params = wrap(users), SamplingParams(temperature=0.7, top_k=40, min_p=0.01)
    drafter = load_drafter("early-exit:2", target)
    assert drafter is not None
    target.forward([Chunk(0, PROMPTS[0][:-1], 0)])
    requests = [
        DraftRequest(seq, seq, PROMPTS[seq], k, params, noise_for(None), frozenset())
        for seq, k in ((0, 3), (1, 5))
    ]
    for request, draft in zip(requests, drafter.propose(requests), strict=True):
        assert draft.rows is not None
        assert len(draft.tokens) == len(draft.rows) == request.length
        text = [*request.tokens, *draft.tokens]
        logits = tiny_hf.alone(first, text)[len(request.tokens) - 1 : -1]
        close(torch.stack(list(draft.rows)), torch.stack(list(distribution(logits, params))))
        for token, row in zip(draft.tokens, draft.rows, strict=True):
            assert row[token] > 0


# Nothing is computed twice


@contextmanager
def counted(users: Any) -> Iterator[list[int]]:
    """Tokens that each layer's feed-forward part reads."""
    counts = [0] * LAYERS

    def count(layer: int) -> Callable[..., None]:
        def hook(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            counts[layer] += inputs[0].shape[-2]

        return hook

    hooks = [layer.mlp.register_forward_pre_hook(count(i)) for i, layer in enumerate(blocks(users))]
    yield counts
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_layer_reads_a_token_twice(name: str, depth: int) -> None:
    users = tiny_hf.model(name)
    target = wrap(users)
    with Engine(target, f"early-exit:{depth}", prefill_chunk=16) as engine:
        for prompt in PROMPTS:
            engine.submit(prompt, GREEDY)
        read, drafted = 0, 0
        with counted(users) as counts:
            while steps := engine.step():
                read += sum(step.prefilled or 1 for step in steps)
                drafted += sum(len(step.drafted) for step in steps)
    assert drafted > 50
    assert counts == [read + drafted] * LAYERS


def test_only_what_agrees_is_taken_over() -> None:
    users = tiny_hf.model()
    target = wrap(users)
    first = FirstLayers(target, 2)
    text = PROMPTS[0]
    target.forward([Chunk(0, text[:3], 0), Chunk(1, text[:1], 0)])
    first.forward([Chunk(0, [text[3], text[4], 77, 78], 1), Chunk(1, [99, 98], 0)])
    assert (first.length(0), target.length(0), first.length(1)) == (7, 3, 3)
    with counted(users) as counts:
        rows = target.forward([Chunk(0, text[3:], 5), Chunk(1, text[1:4], 3)])
    assert counts == [6, 6, 8]  # two of the eight were right
    close(rows[0], tiny_hf.alone(users, text)[3:])
    close(rows[1], tiny_hf.alone(users, text)[1:4])
    assert (first.length(0), target.length(0)) == (8, 8)


def test_what_was_read_ahead_can_be_forgotten() -> None:
    users = tiny_hf.model()
    target, text = wrap(users), PROMPTS[0]
    first, other = FirstLayers(target, 2), FirstLayers(target, 1)
    target.forward([Chunk(0, text[:2], 0)])
    first.forward([Chunk(0, text[2:6], 0)])
    first.truncate(0, 4)
    assert (first.length(0), other.length(0)) == (4, 2)
    with pytest.raises(ModelError, match="does not forget what the whole model has read"):
        first.truncate(0, 1)
    (rows,) = target.forward([Chunk(0, text[2:], 6)])
    close(rows, tiny_hf.alone(users, text)[2:])
    target.truncate(0, 2)
    first.forward([Chunk(0, text[2:6], 0)])
    target.truncate(0, 5)  # not the target's own entries
    assert (first.length(0), target.length(0)) == (5, 2)
    other.forward([Chunk(0, text[2:4], 0)])
    assert (first.length(0), other.length(0)) == (2, 4)
    (rows,) = target.forward([Chunk(0, text[2:], 6)])
    close(rows, tiny_hf.alone(users, text)[2:])
    with pytest.raises(ModelError, match="holds 64 tokens a sequence, and 68 were given"):
        first.forward([Chunk(0, [1] * 60, 1)])


# The user's model


def modules(users: Any) -> list[int]:
    return [id(module) for module in users.modules()]


@pytest.mark.parametrize("layer", [0, 2], ids=["while drafting", "while completing"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_an_exception_in_a_pass_leaves_everything_as_it_was(
    error: BaseException, layer: int
) -> None:
    users = tiny_hf.model("Gemma3Text").train()
    target = wrap(users)
    plain = answers(target, None)[0].token_ids
    before = state(users), modules(users)
    calls = Counter[int]()

    def fail(*_: object) -> None:
        calls[layer] += 1
        if calls[layer] == 3:
            raise error

    with Engine(target, "early-exit:2") as engine:
        request = engine.submit(PROMPTS[0], GREEDY)
        hook = blocks(users)[layer].mlp.register_forward_hook(fail)
        failed = 0
        for _ in range(40):
            try:
                engine.step()
            except (KeyboardInterrupt, ModelError):
                failed += 1
                hooked = hook
                hooked.remove()
                assert modules(users) == before[1]
                hook = blocks(users)[layer].mlp.register_forward_hook(fail)
        hook.remove()
        assert engine.completion(request).token_ids == plain
    # A draft that fails is left out; only a failing pass of the target is told.
    assert failed == int(layer == 2 or isinstance(error, KeyboardInterrupt))
    assert modules(users) == before[1]
    assert_untouched(users, before[0])


def test_hooks_of_the_users_act_as_ever() -> None:
    """They run once for each token, and not on what stands in for a layer."""
    users = tiny_hf.model()

    def steer(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 1.3 + 0.1

    for layer in blocks(users):
        layer.register_forward_hook(steer)
        layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.9, *inputs[1:]))
    target = wrap(users)
    for depth in (1, 2):
        assert tokens(answers(target, f"early-exit:{depth}")) == tokens(answers(target, None))


# How many layers


def test_the_number_of_layers_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    target = wrap(silence(tiny_hf.model(), 2))
    target.forward([Chunk(0, PROMPTS[0], 0)])
    with caplog.at_level(logging.INFO, "draftproof"):
        assert choose(target) == 2
    assert "early-exit:2 of 3 layers drafts: 100 % of a short text as the target" in caplog.text
    assert target.length(0) == 8  # what is cached stays
    (row,) = target.forward([Chunk(0, [5], 1)])
    close(row, tiny_hf.alone(target.runner.model, [*PROMPTS[0], 5])[-1:])
    with Engine(target, "early-exit") as engine:
        assert engine.drafter is not None
        assert engine.drafter.name == "early-exit:2"


def test_what_is_measured() -> None:
    """The clock counts layers: a draft's pass takes its own, and completing it takes the rest."""
    users = silence(tiny_hf.model(), 2)
    target, ran = wrap(users), [0.0]
    for layer in blocks(users):
        layer.mlp.register_forward_hook(lambda *_: ran.append(ran.pop() + 1))
    one, two = measure(target, lambda: ran[0])
    assert (one.depth, two.depth) == (1, 2)
    assert (one.draft, two.draft) == pytest.approx((1 / 3, 2 / 3))
    assert one.verify == two.verify == 1  # the last draft is read in all layers
    assert one.acceptance < 0.5
    assert two.acceptance == 1
    assert two.speedup == pytest.approx((1 + DRAFT) / (1 + DRAFT * 2 / 3))


@pytest.mark.parametrize("context", [2, 3, 20])
def test_a_short_context_is_enough_to_measure(context: int) -> None:
    assert choose(wrap(tiny_hf.model(), context=context)) in (1, 2)


# Refusals


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("early-exit:0", PairError, "tiny has 3 layers: give early-exit:1 to early-exit:2"),
        ("early-exit:3", PairError, "tiny has 3 layers: give early-exit:1 to early-exit:2"),
        ("early-exit:two", ParameterError, "write early-exit:N, not 'early-exit:two'"),
        ("early-exit:-1", ParameterError, "write early-exit:N, not 'early-exit:-1'"),
    ],
)
def test_numbers_that_cannot_be(
    models: dict[str, HfModel], spec: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Engine(models["Llama"], spec)


def test_targets_that_cannot_exit_early() -> None:
    with pytest.raises(PairError, match="loaded as hf:FOLDER; table:markov is not one"):
        load_drafter("early-exit:1", load_model("table:markov"))
    with pytest.raises(PairError, match="tiny has one layer, and early-exit needs two"):
        load_drafter("early-exit", wrap(tiny_hf.model(num_hidden_layers=1)))


def test_bit_exact_mode_is_another_thing(tiny_checkpoint: Path) -> None:
    options = ModelOptions(bit_exact=True, context_length=32)
    with pytest.raises(PairError, match="early-exit is not bit-exact: leave one of the two out"):
        Engine(f"hf:{tiny_checkpoint}", "early-exit:1", options=options)


def test_layers_that_are_not_found() -> None:
    users = tiny_hf.model()
    target = wrap(users)
    users.model.more = torch.nn.ModuleList(users.model.layers)
    with pytest.raises(PairError, match=r"first layers \(its layers are not found\): take another"):
        Engine(target, "early-exit:1")


def test_layers_that_hand_on_more_than_their_output() -> None:
    """A late layer that depends on an early one having run in the same call."""
    users = tiny_hf.model()
    ran: list[bool] = []
    early, late = users.model.layers[0].mlp, users.model.layers[2].mlp
    users.register_forward_pre_hook(lambda *_: ran.clear())
    early.register_forward_hook(lambda *_: ran.append(True))
    late.register_forward_hook(lambda _, inputs, output: output * (1 + len(ran)))
    target = wrap(users)
    with pytest.raises(PairError, match="its layers give other logits in two parts"):
        Engine(target, "early-exit:1")


def test_a_part_of_the_target_is_no_draft_model_by_itself() -> None:
    """Its cache is the target's: whoever uses it as another model is told."""
    target = wrap(silence(tiny_hf.model(), 2))
    with (
        Engine(target, ModelDrafter(FirstLayers(target, 2), target)) as engine,
        pytest.raises(ModelError, match="early-exit:2 does not forget what the whole model"),
    ):
        engine.generate_many(PROMPTS, GREEDY)
    assert tokens(answers(target, "early-exit:2")) == tokens(answers(target, None))
