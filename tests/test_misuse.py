from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftproof import (
    DraftproofError,
    Engine,
    ModelLoadError,
    ModelOptions,
    ParameterError,
    PromptError,
    SamplingParams,
    Speculation,
)
from toy_drafters import DRAFTERS, same
from toys import END, PLAIN, SEEDED, Toy, oracle

LONG = [1] * 64


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda e: e.generate(""), PromptError),
        (lambda e: e.generate([]), PromptError),
        (lambda e: e.generate("xyz"), PromptError),
        (lambda e: e.generate([1, 5]), PromptError),
        (lambda e: e.generate([-1]), PromptError),
        (lambda e: e.generate([1.0]), PromptError),
        (lambda e: e.generate([True]), PromptError),
        (lambda e: e.generate([1, "a"]), PromptError),
        (lambda e: e.generate([{"role": "user", "content": "a"}, 1]), PromptError),
        (lambda e: e.generate([{"role": "user", "content": "a"}]), PromptError),  # no template
        (lambda e: e.generate(None), PromptError),
        (lambda e: e.generate(3), PromptError),
        (lambda e: e.generate(b"\0\1"), PromptError),
        (lambda e: e.generate({"role": "user"}), PromptError),
        (lambda e: e.generate(LONG), PromptError),
        (lambda e: e.stream(LONG), PromptError),
        (lambda e: e.submit(LONG), PromptError),
        (lambda e: e.generate_many("ab"), PromptError),
        (lambda e: e.generate_many([1, 2]), PromptError),
        (lambda e: e.generate_many([[1], LONG]), PromptError),
        (lambda e: e.generate_many([[1], [2]], [PLAIN]), ParameterError),
        (lambda e: e.generate([1], {"temperature": 1}), ParameterError),
        (lambda e: e.generate([1], 0), ParameterError),
        (lambda e: e.generate([1], PLAIN, 4), ParameterError),
        (lambda e: e.generate([1], SEEDED, Speculation(rule="block")), ParameterError),
        (lambda e: Engine(e.target, speculation=4), ParameterError),
        (lambda e: Engine(e.target, prefill_chunk=0), ParameterError),
        (lambda e: Engine(e.target, prefill_chunk=1.5), ParameterError),
        (lambda e: Engine(e.target, prefill_chunk=True), ParameterError),
        (lambda e: Engine(e.target, ""), ParameterError),
        (lambda e: Engine(e.target, 5), ParameterError),
        (lambda e: Engine(None), ParameterError),
        (lambda e: Engine(e.target, options={"threads": 1}), ParameterError),
        (lambda e: Engine(e.target, e.target), DraftproofError),
        (lambda e: e.generate_many(None), PromptError),
        (lambda e: e.generate_many(iter([[1]])), PromptError),
        (lambda e: e.follow(99), ParameterError),
        (lambda e: SamplingParams(temperature=10**400), ParameterError),
        (lambda e: SamplingParams(temperature=True), ParameterError),
        (lambda e: SamplingParams(ignore_eos="no"), ParameterError),
        (lambda e: Engine("table:nowhere"), DraftproofError),
        (lambda e: Engine(""), ParameterError),
        (lambda e: e.completion(17), ParameterError),
        (lambda e: SamplingParams(temperature=-1), ParameterError),
        (lambda e: SamplingParams(temperature="1"), ParameterError),
        (lambda e: SamplingParams(temperature=float("nan")), ParameterError),
        (lambda e: SamplingParams(top_p=0), ParameterError),
        (lambda e: SamplingParams(top_k=1.5), ParameterError),
        (lambda e: SamplingParams(min_p=2), ParameterError),
        (lambda e: SamplingParams(max_tokens=0), ParameterError),
        (lambda e: SamplingParams(stop=("",)), ParameterError),
        (lambda e: SamplingParams(stop=5), ParameterError),
        (lambda e: SamplingParams(seed="x"), ParameterError),
        (lambda e: Speculation(draft_length=-1), ParameterError),
        (lambda e: Speculation(draft_length=True), ParameterError),
        (lambda e: Speculation(rule="lenient"), ParameterError),
        (lambda e: ModelOptions(max_sequences=0), ParameterError),
        (lambda e: ModelOptions(threads=0), ParameterError),
    ],
)
def test_misuse_gives_one_clear_line(use: object, error: type[Exception]) -> None:
    engine = Engine(Toy(1))
    with pytest.raises(error) as caught:
        use(engine)
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert engine.step() == []  # nothing was left queued


@pytest.mark.parametrize("name", [None, *DRAFTERS])
@pytest.mark.parametrize("length", [58, 60, 61, 62, 63])
def test_a_prompt_may_fill_the_context_but_for_one(name: str | None, length: int) -> None:
    target = Toy(1, context=64)
    engine = Engine(target, name and DRAFTERS[name](target))
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    done = engine.generate([1] * length, params, Speculation(draft_length=8))
    assert done.finish_reason == "length"
    assert done.token_ids == oracle(target, [1] * length, params)[0]
    assert len(done.token_ids) == 64 - length


def test_an_end_token_in_the_prompt_ends_nothing() -> None:
    target = Toy(1)
    engine = Engine(target, same(target))
    prompt = [1, END, END, 2]
    assert engine.generate(prompt, SEEDED).token_ids == oracle(target, prompt, SEEDED)[0]


class Clean:
    """A model that is neither hashable nor anything but a model."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        model = Toy()
        self.__dict__.update(
            {name: getattr(model, name) for name in ("name", "capabilities", "tokenizer")}
        )
        self.forward, self.length = model.forward, model.length
        self.truncate, self.close = model.truncate, model.close


def test_a_model_need_not_be_hashable() -> None:
    params = SamplingParams(max_tokens=8)
    assert (
        Engine(Clean()).generate([1], params).token_ids
        == Engine(Toy()).generate([1], params).token_ids
    )


def test_numpys_numbers_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.int64(1))
    plain = SamplingParams(temperature=0.5, top_k=3, seed=1)
    assert Engine(Toy()).generate([1], params).text == Engine(Toy()).generate([1], plain).text


def test_a_draft_model_is_as_good_as_a_drafter() -> None:
    done = Engine(Toy(1), Toy(1)).generate([1], PLAIN)
    assert done.stats.accepted == done.stats.evaluated > 0


def test_paths_need_not_be_text(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_text("nothing")
    with pytest.raises(ModelLoadError, match="is not a GGUF"):
        Engine(tmp_path / "broken.gguf")
    with pytest.raises(ModelLoadError, match="is not a GGUF"):
        Engine("table:markov", tmp_path / "broken.gguf")
