"""What is refused, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from draftproof.server.schema import ChatBody, CompletionBody
from served import Served, markov, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(markov(), draft="table:markov-draft") as served:
        yield served


REFUSED = [
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"best_of": 2}, "best_of"),
    ({"n": 0}, "n"),
    ({"n": 33}, "n"),
    ({"sparkle": 1}, "sparkle"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": -1}, None),
    ({"top_p": 0}, None),
    ({"seed": 1.5}, "seed"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, None),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 257}, "stop"),
    ({"stop": ""}, "stop"),
    ({"bad_words": ["a"] * 33}, "bad_words"),
    ({"bad_words": ["a" * 65]}, "bad_words.0"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, None),
    ({"logit_bias": {"9": 1}}, None),
    ({"max_tokens": 0}, None),
    ({"max_tokens": 5, "max_completion_tokens": 5}, None),
    ({"stream_options": {"include_usage": True}}, None),
    ({"include_rounds": True}, None),
    ({"include_rounds": True, "stream": True, "n": 2}, None),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"guided_regex": "a", "guided_grammar": 'start: "a"'}, None),
    ({"guided_regex": "(a"}, None),
    ({"guided_regex": "x"}, None),  # this vocabulary has no x
    ({"guided_json": {"type": "object"}}, None),
    ({"draft": "another"}, None),
    ({"speculation": True, "num_draft_tokens": 0}, None),
    ({"draft": "none", "num_draft_tokens": 3}, None),
    ({"draft": "none", "prediction": {"type": "content", "content": "a"}}, None),
    ({"num_draft_tokens": 65}, "num_draft_tokens"),
    ({"prediction": {"type": "content", "content": "x"}}, None),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": ""}]}, None),
    ({"messages": [{"role": "user", "content": "x"}]}, None),
    ({"messages": [{"role": "user", "content": "a" * 256}]}, None),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content",
    ),
    (
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
        "messages.0.tool_calls",
    ),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_done_is_refused_in_openai_s_form(
    server: Served, body: dict[str, Any], param: str | None
) -> None:
    messages = [{"role": "user", "content": "ab"}]
    answer = server.post("/v1/chat/completions", **{"messages": messages, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert error["message"]
    assert "\n" not in error["message"]


def test_bodies_that_are_no_requests_are_refused(server: Served) -> None:
    headers = {"content-type": "application/json"}
    deep = "[" * 100_000
    for body in ("{", "", "[]", "null", '{"prompt": "\\ud800"}', deep, '{"prompt": NaN}'):
        answer = server.client.post("/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400, (body[:20], answer.text)
        assert answer.json()["error"]["message"]
    plain = server.client.post("/v1/completions", content='{"prompt": "ab"}')
    assert plain.status_code == 400  # a form of another site can send this
    large = server.client.post("/v1/completions", content=b"a" * (2**21 + 1), headers=headers)
    chunks = (b"a" * 2**20 for _ in range(3))
    untold = server.client.post("/v1/completions", content=chunks, headers=headers)
    for answer in (large, untold):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    unknown = server.client.get("/v1/answers")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "invalid_request_error")
    assert server.client.get("/v1/completions").status_code == 405


LONG = 5000
HOSTILE: list[dict[str, Any]] = [
    {"messages": [{}] * LONG},
    {"messages": [{"role": "user", "content": ""}] * LONG},
    {"messages": [{"role": "user", "content": [{}] * LONG}]},
    {"prompt": [{}] * LONG},
    {"prompt": [[]] * LONG},
    {"prompt": ["a"] * LONG + [1]},
    {"prompt": "a", **{str(i): 1 for i in range(LONG)}},
    {"prompt": "a", "logit_bias": {str(i): "a" for i in range(LONG)}},
    {"prompt": "a", "metadata": {str(i): 1 for i in range(LONG)}},
    {"prompt": "a", "stop": [1] * LONG},
    {"prompt": "a", "stop_token_ids": ["a"] * LONG},
    {"prompt": "a", "stream_options": {str(i): 1 for i in range(LONG)}},
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: str(body)[:40])
def test_a_long_list_of_mistakes_is_not_read_to_its_end(body: dict[str, Any]) -> None:
    """Each mistake costs time in which nobody is answered."""
    with pytest.raises(ValidationError) as found:
        (ChatBody if "messages" in body else CompletionBody).model_validate(body)
    assert found.value.error_count() < 10


def test_another_model_is_not_found(server: Served) -> None:
    for answer in (server.chat(model="gpt"), server.client.get("/v1/models/gpt")):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_keys_are_asked_for() -> None:
    with serving(markov(), api_keys=("secret", "other")) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = server.client.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert server.post("/tokenize", prompt="a").status_code == 401
        assert server.complete().status_code == 401
        for key in ("secret", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        for path in ("/health", "/metrics", "/stats", "/version", "/"):
            assert server.client.get(path).status_code == 200
