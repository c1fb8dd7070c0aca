"""What is refused, and how."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from draftproof.server import guard
from draftproof.server.schema import ChatBody, CompletionBody
from served import Served, markov, serving

JSON = {"content-type": "application/json"}


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
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"seed": 1.5}, "seed"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 257}, "stop"),
    ({"stop": ""}, "stop"),
    ({"bad_words": ["a"] * 33}, "bad_words"),
    ({"bad_words": ["a" * 65]}, "bad_words.0"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"9": 1}}, None),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"include_rounds": True}, "include_rounds"),
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


PROMPT = "prompt: a prompt is text, or token ids from 0; there may be a list of prompts"
SENTENCES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": ["a"] * 33}, "prompt: at most 32 prompts"),
    *(("/v1/completions", {"prompt": prompt}, PROMPT) for prompt in ([-1], [], [0, "a"], {})),
    ("/v1/completions", {"prompt": "\ud800"}, "prompt: this text holds lone surrogates"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": None}]},
        "messages.0.content: Field required",
    ),
]


@pytest.mark.parametrize(("path", "body", "message"), SENTENCES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_told_in_one_sentence(
    server: Served, path: str, body: dict[str, Any], message: str
) -> None:
    answer = server.client.post(path, content=json.dumps(body), headers=JSON)
    assert answer.json()["error"]["message"] == message


def test_a_body_that_is_no_json_object_is_told_so(server: Served) -> None:
    for headers in ({}, {"content-type": "text/plain"}):
        answer = server.client.post("/v1/completions", content='{"prompt": "a"}', headers=headers)
        error = answer.json()["error"]
        assert error["message"] == "send the body as JSON, with Content-Type: application/json"
    for body in ("null", "[]", '"a"', "[" + "0, " * 30_000 + "0]"):
        answer = server.client.post("/v1/completions", content=body, headers=JSON)
        assert answer.json()["error"]["message"] == "the body must be a JSON object"


def test_what_a_client_wrote_is_not_echoed_at_length(server: Served) -> None:
    long = "x" * 100_000
    bodies: list[dict[str, Any]] = [{long: 1}, {"model": long}, {"top_k": -int("9" * 4000)}]
    for body in bodies:
        answer = server.complete(**body)
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 900


def test_openai_s_own_answers_can_be_sent_back(server: Served) -> None:
    said = {"role": "assistant", "content": "b", "refusal": None, "audio": None, "annotations": []}
    messages = [{"role": "user", "content": "a"}, said]
    answer = server.post("/v1/chat/completions", messages=messages, max_tokens=1)
    assert answer.status_code == 200, answer.text
    messages[1] = {**said, "annotations": [{"type": "url_citation"}]}
    assert server.post("/v1/chat/completions", messages=messages).status_code == 400


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
        unread = server.client.post("/v1/completions", content="{", headers=JSON)
        assert unread.status_code == 401
        url = server.client.base_url
        with socket.create_connection((url.host, url.port or 80), 10) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"
            client.sendall(head)
            assert client.recv(12) == b"HTTP/1.1 401"  # though the body never comes
        for key in ("secret", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        for path in ("/health", "/metrics", "/stats", "/version", "/"):
            assert server.client.get(path).status_code == 200


def test_a_large_body_is_read_beside_the_others(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one after another: nobody takes all threads."""
    reading, go_on = threading.Semaphore(0), threading.Event()
    patient = guard._patient

    def held(body: bytes) -> Any:
        reading.release()
        assert go_on.wait(10)
        return patient(body)

    monkeypatch.setattr(guard, "_patient", held)
    body = json.dumps({"prompt": "ab", "max_tokens": 1}) + " " * guard.LARGE
    found: list[int] = []

    def ask() -> None:
        answer = server.client.post("/v1/completions", content=body, headers=JSON)
        found.append(answer.status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert reading.acquire(timeout=10)
    assert server.complete(max_tokens=1).status_code == 200
    assert not reading.acquire(timeout=0.1)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert found == [200, 200]


def test_reading_a_large_body_lets_others_run() -> None:
    body = b"[" + b'{"":{}},' * 50_000 + '[1.5,"\u00e9",null]]'.encode()
    ticks, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            time.sleep(0.0005)
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    found = guard._patient(body)
    turns = ticks - before
    stop.set()
    thread.join()
    assert turns >= 5  # the compiled reader gives one or two
    assert found == json.loads(body)
