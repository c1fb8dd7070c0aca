"""The server with a real model: a chat with its template, a prefix that is reused."""

from __future__ import annotations

import pytest

from draftproof import Engine, ModelOptions, SamplingParams
from served import events, serving

MESSAGES = [
    {"role": "system", "content": "You repeat what you are told."},
    {"role": "user", "content": "Repeat: the cat sat on the mat, the cat sat on the mat."},
]


@pytest.mark.model
def test_a_real_model_is_served() -> None:
    options = ModelOptions(max_sequences=2, context_length=512, threads=1)
    with Engine("demo", options=ModelOptions(context_length=512, threads=1)) as alone:
        known = alone.generate(MESSAGES, SamplingParams(max_tokens=24)).text
    asked = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    with serving(Engine("demo", "lookup", options=options)) as server:
        whole = server.post("/v1/chat/completions", **asked).json()
        assert whole["choices"][0]["message"]["content"] == known
        streamed = server.post(
            "/v1/chat/completions", **asked, stream=True, logprobs=True, num_draft_tokens=4
        )
        choices = [chunk["choices"][0] for chunk in events(streamed.text)]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == known
        entries = [e for c in choices for e in (c["logprobs"] or {"content": []})["content"]]
        assert known == b"".join(bytes(entry["bytes"]) for entry in entries).decode()
        again = server.post("/v1/chat/completions", **asked).json()["usage"]
        assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
        schema = {"type": "object", "properties": {"cat": {"type": "boolean"}}}
        schema |= {"required": ["cat"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "cat", "schema": schema}}
        found = server.post("/v1/chat/completions", **asked, response_format=form).json()
        assert found["choices"][0]["message"]["content"] in (
            *('{"cat":true}', '{"cat": true}', '{"cat":false}', '{"cat": false}'),
        )
        count = server.post("/tokenize", messages=MESSAGES).json()["count"]
        assert count == whole["usage"]["prompt_tokens"]
