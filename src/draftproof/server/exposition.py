"""The counts by the names Prometheus knows them by: our own, and vLLM's for the same numbers.

Dashboards made for vLLM, and ``vllm bench serve``, read those. vLLM's ``num_drafts`` are target
passes that had a draft, and ``per_pos`` how often the draft at a position was accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from draftproof.server.counts import Counts, Histogram
from draftproof.server.metrics import Metrics


class Exposition:
    """Collects when Prometheus asks.

    Args:
        metrics: the counts.
        model: the label ``model_name``.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._label = {"model_name": model}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Any]:
        """See ``prometheus_client.registry.Collector``."""
        with self._metrics.lock:
            families = [*self._counters(), *self._labelled(), *self._gauges(), *self._times()]
        yield from families

    def _counters(self) -> Iterator[Any]:
        for names, text, value in _counters(self._metrics.counts):
            for name in names:
                family = CounterMetricFamily(name, text, labels=list(self._label))
                family.add_metric(list(self._label.values()), value)
                yield family

    def _labelled(self) -> Iterator[Any]:
        counts = self._metrics.counts
        yield from self._by(
            *("position", counts.accepted_at, "Drafts that were emitted, by their place."),
            *("draftproof_accepted_at_position", "vllm:spec_decode_num_accepted_tokens_per_pos"),
        )
        yield from self._by(
            *("position", counts.evaluated_at, "Drafts that were judged, by their place."),
            "draftproof_evaluated_at_position",
        )
        yield from self._by(
            *("length", counts.draft_lengths, "Rounds, by the tokens that were drafted."),
            "draftproof_draft_length_rounds",
        )
        yield from self._by(
            *("finished_reason", counts.ends, "Answers that ended, by the reason."),
            *("draftproof_requests", "vllm:request_success"),
        )

    def _by(self, label: str, values: Mapping[Any, int], text: str, *names: str) -> Iterator[Any]:
        for name in names:
            family = CounterMetricFamily(name, text, labels=[*self._label, label])
            for key in sorted(values):
                if name != "vllm:request_success" or key in ("stop", "length"):
                    family.add_metric([*self._label.values(), str(key)], values[key])
            yield family

    def _gauges(self) -> Iterator[Any]:
        metrics = self._metrics
        for names, text, value in (
            (("draftproof_running", "vllm:num_requests_running"), "Running.", metrics.running),
            (("draftproof_waiting", "vllm:num_requests_waiting"), "Waiting.", metrics.waiting),
            (("draftproof_cache_tokens",), "Tokens in the target's cache.", metrics.held),
            (
                ("draftproof_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
                "The part of the cache that is filled, with what is kept for later prompts.",
                metrics.usage,
            ),
        ):
            for name in names:
                family = GaugeMetricFamily(name, text, labels=list(self._label))
                family.add_metric(list(self._label.values()), value)
                yield family

    def _times(self) -> Iterator[Any]:
        metrics = self._metrics
        yield from self._histogram(
            *(metrics.first_token, "Seconds from a request to its first token."),
            *("draftproof_ttft_seconds", "vllm:time_to_first_token_seconds"),
        )
        yield from self._histogram(
            *(metrics.per_token, "Seconds per token after the first round."),
            *("draftproof_tpot_seconds", "vllm:time_per_output_token_seconds"),
            "vllm:inter_token_latency_seconds",
        )
        yield from self._histogram(
            *(metrics.whole, "Seconds from a request to the end of its answer."),
            *("draftproof_answer_seconds", "vllm:e2e_request_latency_seconds"),
        )
        yield from self._histogram(
            *(metrics.queue, "Seconds from a request to its first round."),
            *("draftproof_queue_seconds", "vllm:request_queue_time_seconds"),
        )

    def _histogram(self, found: Histogram, text: str, *names: str) -> Iterator[Any]:
        for name in names:
            family = HistogramMetricFamily(name, text, labels=list(self._label))
            family.add_metric(list(self._label.values()), found.buckets(), found.sum)
            yield family


def _counters(counts: Counts) -> list[tuple[tuple[str, ...], str, float]]:
    """Names, what it is, and how many."""
    return [
        (
            ("draftproof_prompt_tokens", "vllm:prompt_tokens", "vllm:prefix_cache_queries"),
            "Tokens of prompts.",
            counts.prompt_tokens,
        ),
        (
            ("draftproof_cached_tokens", "vllm:prefix_cache_hits"),
            "Tokens of prompts that were in the cache.",
            counts.cached_tokens,
        ),
        (
            ("draftproof_completion_tokens", "vllm:generation_tokens"),
            "Tokens emitted.",
            counts.completion_tokens,
        ),
        (("draftproof_rounds",), "Target passes that emitted something.", counts.rounds),
        (
            ("draftproof_drafts", "vllm:spec_decode_num_drafts"),
            "Target passes that had a draft.",
            counts.drafts,
        ),
        (
            ("draftproof_drafted", "vllm:spec_decode_num_draft_tokens"),
            "Tokens a drafter proposed.",
            counts.drafted,
        ),
        (
            ("draftproof_accepted", "vllm:spec_decode_num_accepted_tokens"),
            "Drafts that were emitted.",
            counts.accepted,
        ),
        (("draftproof_evaluated",), "Drafts that were judged.", counts.evaluated),
        (("draftproof_forced",), "Tokens a grammar forced.", counts.forced),
        (("draftproof_predicted",), "Tokens of predicted texts, emitted.", counts.predicted),
        (
            ("draftproof_prediction_rejected",),
            "Tokens of predicted texts, proposed and not emitted.",
            counts.prediction_rejected,
        ),
        (("draftproof_draft_seconds",), "Seconds in the drafter.", counts.draft_seconds),
        (("draftproof_verify_seconds",), "Seconds in the target.", counts.verify_seconds),
        (("draftproof_other_seconds",), "Seconds of rounds in neither.", counts.other_seconds),
    ]
