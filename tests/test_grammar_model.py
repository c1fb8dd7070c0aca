"""Structured output of the real model: always valid, and the same with and without speculation.

DRAFTPROOF_GENERATIONS asks for more than two answers under each schema.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import jsonschema
import pytest

from constrained import SCHEMAS
from draftproof import Engine, Model, ModelOptions, SamplingParams, Speculation, load_model

pytestmark = pytest.mark.model

ANSWERS = int(os.environ.get("DRAFTPROOF_GENERATIONS", "2"))
PROMPT = [{"role": "user", "content": "Describe a person, a city and what they had for lunch."}]


@pytest.fixture(scope="module")
def target(demo_path: str) -> Iterator[Model]:
    model = load_model(demo_path, ModelOptions(context_length=1024))
    yield model
    model.close()


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_answers_are_valid_and_the_drafter_changes_nothing(
    target: Model, schema: dict[str, object]
) -> None:
    plain = Engine(target, speculation=Speculation(draft_length=0))
    drafting = Engine(target, "lookup", speculation=Speculation(draft_length=4))
    ended = 0
    for seed in range(ANSWERS):
        params = SamplingParams(
            temperature=0.8, top_k=40, seed=seed, json_schema=schema, max_tokens=160
        )
        wanted, found = plain.generate(PROMPT, params), drafting.generate(PROMPT, params)
        assert found.token_ids == wanted.token_ids
        if found.finish_reason == "stop":
            jsonschema.validate(json.loads(found.text), schema)
            ended += 1
    assert ended, "the model went on and on"
