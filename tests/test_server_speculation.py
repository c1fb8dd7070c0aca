"""What a server tells of drafts, and what can be asked about them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from served import Served, events, markov, serving

SEEDED = {"temperature": 1.0, "seed": 7}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(markov(), draft="table:markov-draft") as served:
        yield served


def test_drafts_are_told_in_the_fields_of_vllm(server: Served) -> None:
    asked = {"max_tokens": 40, "num_draft_tokens": 3, "ignore_eos": True, **SEEDED}
    whole = server.chat(**asked).json()
    found = whole["metrics"]["speculative_decoding"]
    assert found.keys() == {
        *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram"),
        *("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens"),
    }
    histogram = found["acceptance_histogram"]
    assert found["num_spec_tokens"] == 3 == len(histogram) - 1
    assert sum(histogram) == found["num_spec_steps"] > 0
    accepted = found["num_accepted_draft_tokens"]
    assert sum(i * count for i, count in enumerate(histogram)) == accepted > 0
    assert found["draft_acceptance_rate"] == accepted / found["num_draft_tokens"]
    assert found["mean_acceptance_length"] == 1 + accepted / found["num_spec_steps"]
    options = {"include_usage": True}
    *chunks, last = events(server.chat(**asked, stream=True, stream_options=options).text)
    assert last["metrics"]["speculative_decoding"] == found
    assert not any("metrics" in chunk for chunk in chunks)
    nothing = {"num_draft_tokens": None}
    for off in (
        {"speculation": False},
        {"draft": "none", **nothing},
        {"num_draft_tokens": 0},
        {"speculation": False, "prediction": {"type": "content", "content": "abc"}},
    ):
        plain = server.chat(**{**asked, **off}).json()
        assert plain["choices"] == whole["choices"]
        assert "metrics" not in plain


def test_a_predicted_text_is_counted_where_openai_counts_it(server: Served) -> None:
    asked = {"max_tokens": 30, "temperature": 0, "prediction": {"type": "content"}}
    right = server.chat(**asked | {"prediction": {"type": "content", "content": "cab" * 10}}).json()
    details = right["usage"]["completion_tokens_details"]
    assert right["choices"][0]["message"]["content"] == "cab" * 10
    assert details["accepted_prediction_tokens"] > 15
    parts = [{"type": "text", "text": "aaaa"}]
    wrong = server.chat(**asked | {"prediction": {"type": "content", "content": parts}}).json()
    assert wrong["choices"] == right["choices"]
    assert wrong["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] > 0


def test_rounds_are_told_on_request(server: Served) -> None:
    asked = {"max_tokens": 30, "num_draft_tokens": 4, **SEEDED}
    chunks = events(server.chat(**asked, stream=True, include_rounds=True).text)
    assert "draftproof" not in chunks[0]
    rounds = [chunk["draftproof"] for chunk in chunks[1:-1]]
    for found in rounds:
        assert found.keys() == {
            *("round", "pieces", "rejected", "drafted", "accepted", "evaluated", "seconds"),
        }
        assert found["seconds"].keys() == {"draft", "verify", "other"}
        # an end token has no text
        assert len(found["rejected"]) <= found["evaluated"] - found["accepted"]
    assert any(found["rejected"] for found in rounds)
    text = "".join(piece["text"] for found in rounds for piece in found["pieces"])
    assert text == server.chat(**asked).json()["choices"][0]["message"]["content"]
    assert {piece["origin"] for found in rounds for piece in found["pieces"]} >= {
        "accepted",
        "correction",
    }
    stats = chunks[-1]["draftproof"]["stats"]
    assert stats["accepted"] == sum(found["accepted"] for found in rounds) > 0
    usage = {"include_usage": True}
    *_, last = events(
        server.chat(**asked, stream=True, include_rounds=True, stream_options=usage).text
    )
    assert last["draftproof"]["stats"]["accepted"] == stats["accepted"]
    assert last["usage"]


def test_a_drafter_goes_by_its_name(server: Served) -> None:
    asked = {"max_tokens": 20, **SEEDED}
    plain = server.chat(**asked, draft="none").json()
    named = server.chat(**asked, draft="table:markov-draft", num_draft_tokens=2).json()
    assert named["choices"] == plain["choices"]
    assert named["metrics"]["speculative_decoding"]["num_spec_tokens"] == 2
    with serving(markov()) as unnamed:  # started without its spec
        assert "metrics" not in unnamed.chat(**asked, draft="none").json()
        assert unnamed.chat(**asked, draft="table:markov-draft").status_code == 200
