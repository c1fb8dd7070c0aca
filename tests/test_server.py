"""What is answered, in the shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from draftproof import Engine, SamplingParams
from served import NAME, Served, events, markov, serving

USAGE = {
    *("prompt_tokens", "completion_tokens", "total_tokens"),
    *("prompt_tokens_details", "completion_tokens_details"),
}
SEEDED = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(markov(), aliases=("other",), draft="table:markov-draft") as served:
        yield served


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with markov(sequences=1, drafter=None) as engine:
        yield engine


def test_a_chat_has_the_shape_of_openai(server: Served) -> None:
    found = server.chat(max_tokens=5, temperature=0, num_draft_tokens=4).json()
    assert found.keys() == {"id", "object", "created", "model", "choices", "usage", "metrics"}
    assert found["id"].startswith("chatcmpl-")
    assert (found["object"], found["model"]) == ("chat.completion", NAME)
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "cabca", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert found["usage"].keys() == USAGE
    assert found["usage"]["total_tokens"] == 7
    assert found["usage"]["prompt_tokens_details"].keys() == {"cached_tokens"}
    assert found["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


def test_a_completion_has_the_shape_of_openai(server: Served) -> None:
    found = server.complete(
        max_tokens=3, temperature=0, logprobs=2, echo=True, model="other"
    ).json()
    assert (found["object"], found["model"]) == ("text_completion", "other")
    (choice,) = found["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    assert choice["text"] == "abcab"
    scores = choice["logprobs"]
    assert scores["tokens"] == ["a", "b", "c", "a", "b"]
    assert scores["text_offset"] == [0, 1, 2, 3, 4]
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][1] == pytest.approx(-0.28768207)  # b behind a: .75
    assert scores["top_logprobs"][1].keys() == {"a", "b"}


def test_a_stream_has_the_shape_of_openai(server: Served) -> None:
    answer = server.chat(
        max_tokens=9, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, usage = events(answer.text)
    assert {chunk["object"] for chunk in (first, *middle, last)} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in (first, *middle, last, usage)}) == 1
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["choices"][0]["delta"].keys() == {"content"} for chunk in middle)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle) == "cabcabcab"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in (first, *middle))
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert all(chunk["usage"] is None for chunk in (first, *middle, last))
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 9)
    without = events(server.chat(max_tokens=9, temperature=0, stream=True).text)
    assert not any("usage" in chunk or "draftproof" in chunk for chunk in without)


@pytest.mark.parametrize("speculation", [{}, {"speculation": False}, {"num_draft_tokens": 6}])
def test_there_is_one_entry_per_token_though_a_chunk_holds_several(
    server: Served, speculation: dict[str, Any]
) -> None:
    asked = {"max_tokens": 40, "logprobs": True, "top_logprobs": 3, **SEEDED, **speculation}
    whole = server.chat(**asked).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    text = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    assert text == whole["choices"][0]["message"]["content"]
    streamed = [chunk["choices"][0] for chunk in events(server.chat(**asked, stream=True).text)]
    told = [entry for choice in streamed for entry in (choice["logprobs"] or {}).get("content", [])]
    assert [entry["token"] for entry in told] == [entry["token"] for entry in entries]
    if speculation.get("num_draft_tokens"):
        assert any(len((choice["logprobs"] or {}).get("content", [])) > 1 for choice in streamed)


def test_options_do_what_they_do_in_the_library(server: Served, alone: Engine) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (SEEDED, {}),
        ({"temperature": 0, "stop": "bca"}, {"temperature": 0.0, "seed": None, "stop": ("bca",)}),
        ({"temperature": 0, "stop": ["xx", "ab"]}, {"temperature": 0.0, "stop": ("ab",)}),
        ({**SEEDED, "top_k": 2, "top_p": 0.9}, {"top_k": 2, "top_p": 0.9}),
        ({**SEEDED, "min_p": 0.2}, {"min_p": 0.2}),
        ({**SEEDED, "top_k": -1, "typical_p": 0.8}, {"typical_p": 0.8}),
        ({**SEEDED, "repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({**SEEDED, "presence_penalty": 1, "frequency_penalty": 0.5},
         {"presence_penalty": 1.0, "frequency_penalty": 0.5}),
        ({**SEEDED, "logit_bias": {"0": -100, "1": 2}}, {"logit_bias": {0: -100.0, 1: 2.0}}),
        ({**SEEDED, "bad_words": ["ab"]}, {"bad_words": ("ab",)}),
        ({**SEEDED, "min_tokens": 12}, {"min_tokens": 12}),
        ({**SEEDED, "stop_token_ids": [1]}, {"stop_token_ids": (1,)}),
        ({**SEEDED, "ignore_eos": True}, {"ignore_eos": True}),
        ({**SEEDED, "guided_regex": "(ab)+c"}, {"regex": "(ab)+c"}),
        ({**SEEDED, "structured_outputs": {"regex": "(ba){2,}c"}}, {"regex": "(ba){2,}c"}),
        ({**SEEDED, "structured_outputs": {"choice": ["abba", "bab"]}}, {"regex": "abba|bab"}),
        ({**SEEDED, "guided_grammar": 'start: "ab" start | "c"'}, {"regex": "(ab)*c"}),
    ]  # fmt: skip
    for body, params in cases:
        asked = SamplingParams(**{"max_tokens": 30, "temperature": 1.0, "seed": 7, **params})
        known = alone.generate("ab", asked)
        for path in (server.chat, server.complete):
            found = path(max_tokens=30, **body).json()
            assert "error" not in found, found
            choice = found["choices"][0]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert (text, choice["finish_reason"]) == (known.text, known.finish_reason), body


def test_several_answers_are_each_as_alone(server: Served) -> None:
    found = server.complete(["ab", "ca"], n=3, max_tokens=20, **SEEDED).json()
    assert [choice["index"] for choice in found["choices"]] == list(range(6))
    texts = [choice["text"] for choice in found["choices"]]
    assert len(set(texts[:3])) > 1
    assert texts[0] == server.complete("ab", max_tokens=20, **SEEDED).json()["choices"][0]["text"]
    assert texts[3:] == [
        choice["text"]
        for choice in server.complete([2, 0], n=3, max_tokens=20, **SEEDED).json()["choices"]
    ]
    assert found["usage"]["prompt_tokens"] == 4
    assert "metrics" not in found
    chunks = events(server.complete(["ab", "ca"], n=3, max_tokens=20, stream=True, **SEEDED).text)
    streamed = [""] * 6
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_parts_of_a_content_are_its_text(server: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}]
    asked = server.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=3)
    assert asked.json()["choices"][0]["message"]["content"] == "cab"


def test_what_only_names_things_and_what_is_null_has_no_effect(server: Served) -> None:
    plain = server.chat(max_tokens=20, **SEEDED).json()["choices"]
    named = server.chat(
        max_tokens=20,
        user="me",
        metadata={"a": "b"},
        safety_identifier="x",
        prompt_cache_key="y",
        tools=None,
        tool_choice="none",
        best_of=1,
        store=False,
        service_tier="auto",
        modalities=["text"],
        stop=None,
        **SEEDED,
    )
    assert named.json()["choices"] == plain


def test_models_version_health_tokens(server: Served) -> None:
    models = server.client.get("/v1/models").json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == [NAME, "other"]
    assert models["data"][0]["max_model_len"] == 256
    assert server.client.get("/v1/models/other").json()["object"] == "model"
    assert server.client.get("/version").json().keys() == {"version"}
    assert server.client.get("/health").status_code == 200
    found = server.post("/tokenize", prompt="abca", return_token_strs=True).json()
    assert found == {
        "count": 4,
        "max_model_len": 256,
        "tokens": [0, 1, 2, 0],
        "token_strs": ["a", "b", "c", "a"],
    }
    assert server.post("/tokenize", prompt="").json()["tokens"] == []
    messages = [{"role": "user", "content": "ab"}]
    assert server.post("/tokenize", messages=messages).json()["token_strs"] is None
    assert server.post("/tokenize", prompt="ab", messages=messages).status_code == 400
    assert server.post("/detokenize", tokens=[0, 1, 3]).json() == {"prompt": "ab"}
    assert server.post("/detokenize", tokens=[4]).status_code == 400
    assert server.client.get("/openapi.json").json()["info"]["title"] == "Draftproof"
    assert server.client.get("/").status_code == 200


def test_a_prompt_that_is_cached_is_told(server: Served) -> None:
    first = server.complete("abcabcabcabcabca", max_tokens=1, temperature=0).json()
    again = server.complete("abcabcabcabcabca", max_tokens=1, temperature=0).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 15
    assert first["choices"] == again["choices"]


def test_an_infinite_log_probability_can_be_written(server: Served) -> None:
    found = server.chat(
        max_tokens=1, temperature=0, logprobs=True, top_logprobs=4, logit_bias={"0": -100}
    ).json()
    entries = found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert len(entries) == 4
    assert min(entry["logprob"] for entry in entries) >= -9999.0
