"""The clients people use: OpenAI's own, and ``llm``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from byte_tokens import ByteTokenizer
from draftproof import Engine, ModelOptions
from draftproof.models.table import TableModel
from served import NAME, Served, markov, serving

USER: Any = [{"role": "user", "content": "ab"}]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(markov(), api_keys=("key",)) as served:
        yield served


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0) as client:
        yield client


def test_openai_in_one_and_in_a_stream(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": USER, "seed": 3, "max_completion_tokens": 30}
    whole = client.chat.completions.create(**asked)
    text, usage = whole.choices[0].message.content, whole.usage
    assert text
    assert usage
    assert usage.total_tokens == 2 + usage.completion_tokens
    streamed, told = "", None
    for chunk in client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        told = chunk.usage or told
    assert (streamed, told and told.completion_tokens) == (text, usage.completion_tokens)
    with client.chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.content == text
    answered: Any = [*USER, whole.choices[0].message, {"role": "user", "content": "a"}]
    assert client.chat.completions.create(**asked | {"messages": answered}).choices


def test_openai_s_options(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": USER, "seed": 3, "max_tokens": 20}
    several = client.chat.completions.create(**asked, n=3, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    scores = several.choices[0].logprobs
    assert scores
    assert scores.content
    assert len(scores.content[0].top_logprobs) == 2
    stopped = client.chat.completions.create(**asked | {"stop": ["bc"], "temperature": 0})
    assert stopped.choices[0].message.content == "ca"
    assert stopped.choices[0].finish_reason == "stop"
    predicted = client.chat.completions.create(
        **asked | {"temperature": 0}, prediction={"type": "content", "content": "cab" * 7}
    )
    details = predicted.usage and predicted.usage.completion_tokens_details
    assert details
    assert details.accepted_prediction_tokens
    extra = client.chat.completions.create(**asked, extra_body={"top_k": 1, "speculation": False})
    assert extra.choices[0].message.content == ("cab" * 7)[:20]
    text = client.completions.create(model=NAME, prompt="ab", logprobs=1, echo=True, max_tokens=2)
    assert text.choices[0].text.startswith("ab")
    assert [model.id for model in client.models.list()] == [NAME]


def test_openai_s_errors(server: Served, client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": USER}
    with pytest.raises(openai.BadRequestError, match="tools are not supported") as refused:
        client.chat.completions.create(**asked, tools=[TOOL])
    assert refused.value.param == "tools"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.chat.completions.create(**asked | {"model": "gpt"})
    with pytest.raises(openai.BadRequestError, match="300 characters cannot fit: shorten"):
        client.completions.create(model=NAME, prompt="a" * 300)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


class Pet(BaseModel):
    """What an answer is parsed to."""

    name: str
    age: int


@pytest.fixture(scope="module")
def letters() -> Iterator[Served]:
    """A model that can write JSON, in bytes of its own."""
    pieces = [bytes([byte]) for byte in range(256)]
    size = len(pieces) + 1
    options = ModelOptions(max_sequences=2, context_length=512)
    model = TableModel({(): [1 / size] * size}, "bytes", size - 1, options)
    model.tokenizer = ByteTokenizer([*pieces, b"<end>"], end=size - 1)
    with serving(Engine(model)) as served:
        yield served


def test_openai_parses_structured_output(letters: Served) -> None:
    properties = {"name": {"type": "string", "maxLength": 5}, "age": {"enum": [1, 2]}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema}}
    with openai.OpenAI(base_url=f"{letters.url}/v1", api_key="none", max_retries=0) as client:
        for options in ({"response_format": form}, {"extra_body": {"guided_json": schema}}):
            found = client.chat.completions.create(
                model=NAME, messages=USER, max_tokens=200, seed=4, **options
            )
            text = found.choices[0].message.content
            assert Pet.model_validate_json(text or "").age in (1, 2)
        free = client.chat.completions.create(
            model=NAME,
            messages=USER,
            max_tokens=200,
            seed=1,
            response_format={"type": "json_object"},
            logit_bias={str(ord('"')): -20},
        )
        assert isinstance(json.loads(free.choices[0].message.content or ""), dict)


def test_bytes_of_a_character_are_told_one_by_one(letters: Served) -> None:
    choice = {"choice": ["zoë", "жук"]}
    found = letters.chat(logprobs=True, seed=2, structured_outputs=choice, stream=True)
    chunks = [json.loads(line[6:]) for line in found.text.split("\n\n")[:-2]]
    entries = [
        entry
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text in choice["choice"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text
    assert any(entry["token"].startswith("bytes:\\x") for entry in entries)


def test_llm(server: Served, tmp_path: Path) -> None:
    model = {"model_id": "local", "model_name": NAME, "api_base": f"{server.url}/v1"}
    model["api_key_name"] = "served"
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    (tmp_path / "keys.json").write_text(json.dumps({"served": "key"}))
    llm = str(Path(sys.executable).with_name("llm"))
    done = subprocess.run(
        [llm, "-m", "local", "-o", "temperature", "0", "-o", "max_tokens", "6", "ab"],
        env=os.environ | {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "cabcab\n"), done.stderr
