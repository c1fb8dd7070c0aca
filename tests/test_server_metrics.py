"""Counts: in Prometheus, for the page, in the log; and that they agree."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftproof import Chunk, Engine, Step
from draftproof.server.counts import Counts, Histogram, Progress
from draftproof.server.metrics import Metrics
from draftproof.types import Origin, Seconds
from served import Served, Slow, markov, serving

LABEL = 'model_name="letters"'
PAIRS = {
    "draftproof_prompt_tokens_total": "vllm:prompt_tokens_total",
    "draftproof_completion_tokens_total": "vllm:generation_tokens_total",
    "draftproof_cached_tokens_total": "vllm:prefix_cache_hits_total",
    "draftproof_drafts_total": "vllm:spec_decode_num_drafts_total",
    "draftproof_drafted_total": "vllm:spec_decode_num_draft_tokens_total",
    "draftproof_accepted_total": "vllm:spec_decode_num_accepted_tokens_total",
    "draftproof_running": "vllm:num_requests_running",
    "draftproof_waiting": "vllm:num_requests_waiting",
    "draftproof_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "draftproof_ttft_seconds_count": "vllm:time_to_first_token_seconds_count",
    "draftproof_tpot_seconds_sum": "vllm:time_per_output_token_seconds_sum",
    "draftproof_tpot_seconds_count": "vllm:inter_token_latency_seconds_count",
    "draftproof_answer_seconds_count": "vllm:e2e_request_latency_seconds_count",
    "draftproof_queue_seconds_count": "vllm:request_queue_time_seconds_count",
}


def asked(server: Served) -> list[dict[str, Any]]:
    bodies: list[dict[str, Any]] = [
        {"seed": seed, "num_draft_tokens": seed, "max_tokens": 40} for seed in range(6)
    ]
    bodies += [{"temperature": 0, "num_draft_tokens": 5, "stop": "bc"}]  # a stop in mid-block
    bodies += [{"temperature": 0, "prediction": {"type": "content", "content": "cabc" * 4}}]
    return [server.complete(**body).json() for body in bodies]


def test_the_counts_are_those_of_the_answers() -> None:
    with serving(markov()) as server:
        answers = asked(server)
        assert server.settled()
        found, stats = server.metrics(), server.client.get("/stats").json()
    told = {
        name: sum(answer["usage"][name] for answer in answers)
        for name in ("prompt_tokens", "completion_tokens")
    }
    for name, value in told.items():
        assert found[f"draftproof_{name}_total{{{LABEL}}}"] == value
    drafts = [a["metrics"]["speculative_decoding"] for a in answers if "metrics" in a]
    assert len(drafts) >= 5
    for name, field in (
        ("vllm:spec_decode_num_drafts_total", "num_spec_steps"),
        ("vllm:spec_decode_num_draft_tokens_total", "num_draft_tokens"),
        ("vllm:spec_decode_num_accepted_tokens_total", "num_accepted_draft_tokens"),
    ):
        assert found[f"{name}{{{LABEL}}}"] == sum(draft[field] for draft in drafts) > 0
    for own, theirs in PAIRS.items():
        assert found[f"{own}{{{LABEL}}}"] == found[f"{theirs}{{{LABEL}}}"], own
    details = [answer["usage"]["completion_tokens_details"] for answer in answers]
    predicted = sum(each["accepted_prediction_tokens"] for each in details)
    assert found[f"draftproof_predicted_total{{{LABEL}}}"] == predicted > 0
    per_position = [
        value for name, value in found.items() if "num_accepted_tokens_per_pos_total" in name
    ]
    assert per_position == stats["accepted_at_position"][: len(per_position)]
    assert per_position == sorted(per_position, reverse=True)
    assert sum(per_position) == stats["accepted"] == sum(stats["accepted_at_position"])
    assert sum(stats["draft_lengths"].values()) == stats["rounds"]
    assert sum(int(k) * n for k, n in stats["draft_lengths"].items()) == stats["drafted"]
    assert (stats["model"], stats["drafter"]) == ("letters", "table:markov-draft")
    assert stats["completion_tokens"] == told["completion_tokens"]
    assert stats["tokens_per_second"].keys() == {"speculative", "plain"}
    assert all(rate > 0 for rate in stats["tokens_per_second"].values())
    assert 0 < stats["cache_tokens"] < 4 * 256
    assert stats["uptime"] > 0
    assert stats.keys() == {
        *("model", "drafter", "rounds", "completion_tokens", "drafted", "accepted"),
        *("evaluated_at_position", "accepted_at_position", "draft_lengths", "running", "waiting"),
        *("tokens_per_second", "cache_tokens", "uptime"),
    }
    ends = [found[f"vllm:request_success_total{{finished_reason=\"{reason}\",{LABEL}}}"]
            for reason in ("length", "stop")]  # fmt: skip
    assert sum(ends) == len(answers)


def test_a_server_without_a_drafter_has_no_drafts() -> None:
    with serving(markov(drafter=None)) as server:
        server.complete()
        assert server.client.get("/stats").json()["drafter"] is None
        assert server.metrics()[f"vllm:spec_decode_num_drafts_total{{{LABEL}}}"] == 0
        refused = server.complete(num_draft_tokens=2)
        assert "no drafter" in refused.json()["error"]["message"]
        assert server.complete(speculation=True).status_code == 400
        assert server.complete(draft="none").status_code == 200


def step(number: int, tokens: int, drafted: int = 0, accepted: int = 0) -> Step:
    return Step(
        0,
        number,
        drafted=(1,) * drafted,
        accepted=accepted,
        evaluated=min(drafted, accepted + 1),
        tokens=(1,) * tokens,
        origins=(Origin.PLAIN,) * tokens,
        seconds=Seconds(0.1, 0.2, 0.3),
    )


def test_a_token_s_time_is_its_share_of_its_round() -> None:
    metrics = Metrics(slots=2, capacity=100, interval=1e9)
    progress = Progress(arrival=10.0, prompt_tokens=3, speculated=True)
    metrics.count(step(1, 2), progress, 12.0)
    metrics.count(step(2, 4, 4, 3), progress, 14.0)
    assert metrics.first_token.sum == 2.0
    assert metrics.queue.sum == pytest.approx(1.4)
    assert metrics.per_token.sum == 2.0
    assert metrics.per_token.buckets()[-1] == ("+Inf", 4)
    assert metrics.per_token.buckets()[-4:-1] == [("1", 4), ("2", 4), ("5", 4)]
    assert metrics.speeds[True].rate == 2.0
    assert metrics.counts.verify_seconds == pytest.approx(0.4)
    metrics.count(step(2, 1), Progress(9.0, 1, False), 14.0)  # another one of the same round
    assert metrics.counts.verify_seconds == pytest.approx(0.4)


def test_a_prompt_counts_with_what_was_cached_once_it_has_been_read() -> None:
    metrics = Metrics(slots=2, capacity=100, interval=1e9)
    progress = Progress(arrival=10.0, prompt_tokens=9, speculated=True)
    metrics.count(replace(step(1, 0), prefilled=2), progress, 11.0)
    assert (metrics.counts.prompt_tokens, metrics.counts.cached_tokens) == (0, 0)
    metrics.count(replace(step(2, 1), prefilled=1), progress, 12.0)
    metrics.count(step(3, 1), progress, 13.0)
    assert (metrics.counts.prompt_tokens, metrics.counts.cached_tokens) == (9, 6)


def test_what_is_predicted_and_forced_counts_round_by_round() -> None:
    counts = Counts()
    origins = (Origin.PREDICTED, Origin.PREDICTED, Origin.FORCED, Origin.PLAIN)
    counts.add(replace(step(1, 4), origins=origins, predicted=5))
    assert (counts.predicted, counts.prediction_rejected, counts.forced) == (2, 3, 1)


def test_a_cancelled_answer_s_prompt_is_found_in_the_cache() -> None:
    with serving(Engine(Slow(0.01, sequences=1))) as server:
        for _ in range(2):
            asked = {"prompt": "ab" * 20, "max_tokens": 3000, "stream": True}
            with server.client.stream("POST", "/v1/completions", json=asked) as answer:
                lines = answer.iter_lines()
                next(lines)
            assert server.settled()
        found = server.metrics()
        assert found[f"vllm:prefix_cache_queries_total{{{LABEL}}}"] == 80
        assert found[f"vllm:prefix_cache_hits_total{{{LABEL}}}"] == 39


class Lost(Slow):
    """Its logits are no numbers, once."""

    def forward(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        found = super().forward(chunks)
        return [np.full_like(logits, np.nan) for logits in found] if self.passes == 1 else found


def test_an_answer_that_failed_has_no_latency() -> None:
    with serving(Engine(Lost())) as server:
        assert server.complete(max_tokens=3).status_code == 500
        assert server.complete(max_tokens=3).status_code == 200
        assert server.settled()
        found = server.metrics()
        assert found[f"vllm:e2e_request_latency_seconds_count{{{LABEL}}}"] == 1


def test_histograms_are_cumulative() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.observe(value)
    assert histogram.buckets() == [("1", 2), ("2", 3), ("+Inf", 4)]


def test_positions_are_counted_from_the_first() -> None:
    counts = Counts()
    counts.add(step(1, 3, drafted=4, accepted=2))
    counts.add(step(2, 1, drafted=1))
    assert dict(counts.accepted_at) == {0: 1, 1: 1}
    assert dict(counts.evaluated_at) == {0: 2, 1: 1, 2: 1}
    assert dict(counts.draft_lengths) == {4: 1, 1: 1}


def test_the_log_tells_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "draftproof.server")
    with serving(markov(), log_interval=0.0) as server:
        # Longer than a round: an answer that ends in its first one has never been seen to run.
        asked = {"num_draft_tokens": 3, "max_tokens": 20, "ignore_eos": True}
        assert server.complete(**asked).status_code == 200
    lines = [record.message for record in caplog.records if "acceptance length" in record.message]
    assert lines
    assert "1 running, 0 waiting" in lines[0]
    assert "accepted" in lines[0]
    assert "rejected" in lines[0]


def test_what_runs_and_waits_is_seen() -> None:
    with serving(Engine(Slow(0.01, sequences=1))) as server:
        asked = {"prompt": ["ab", "ba", "aa"], "max_tokens": 3000, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.iter_lines()  # kept: without it the client would go away
            next(lines)
            found = server.metrics()
            assert found[f"vllm:num_requests_running{{{LABEL}}}"] == 1
            assert found[f"vllm:num_requests_waiting{{{LABEL}}}"] == 2
            assert found[f"vllm:kv_cache_usage_perc{{{LABEL}}}"] > 0
        assert server.settled()
