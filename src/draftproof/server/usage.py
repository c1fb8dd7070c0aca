"""What an answer took, in the fields of OpenAI and of vLLM, and round by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from draftproof.server.prepare import Job
from draftproof.stats import Stats
from draftproof.text import Tokenizer
from draftproof.types import Step


def usage(jobs: Sequence[Job], stats: Sequence[Stats], answers: int) -> dict[str, Any]:
    """OpenAI's counts. A prompt counts once, however many answers it has.

    Args:
        jobs: what was asked.
        stats: of each job.
        answers: to each prompt.
    """
    prompt = sum(len(job.prompt) for job in jobs[::answers])
    completion = sum(one.completion_tokens for one in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(s.cached_tokens for s in stats[::answers])},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(one.predicted for one in stats),
            "rejected_prediction_tokens": sum(one.prediction_rejected for one in stats),
        },
    }


class Drafts:
    """The drafts of one answer, as vLLM tells them in ``metrics.speculative_decoding``."""

    def __init__(self) -> None:
        self._accepted: Counter[int] = Counter()  # how many rounds accepted so many
        self._drafted = self._longest = 0

    def add(self, step: Step) -> None:
        """Count a round, if it had a draft."""
        length = len(step.drafted)
        if length:
            self._accepted[step.accepted] += 1
            self._drafted += length
            self._longest = max(self._longest, length)

    def to_json(self, length: int | None) -> dict[str, Any] | None:
        """The fields vLLM has; None where nothing was drafted.

        Args:
            length: most tokens of a draft, or None where that follows the measurements.
        """
        steps = self._accepted.total()
        if not steps:
            return None
        accepted = sum(count * times for count, times in self._accepted.items())
        longest = max(length or 0, self._longest)
        return {
            "mean_acceptance_length": 1 + accepted / steps,
            "draft_acceptance_rate": accepted / self._drafted,
            "acceptance_histogram": [self._accepted[count] for count in range(longest + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": self._drafted,
            "num_spec_tokens": longest,
        }


def round_of(step: Step, tokenizer: Tokenizer) -> dict[str, Any]:
    """One round as ``include_rounds`` tells it."""
    rejected = step.drafted[step.accepted : step.evaluated]
    seconds = step.seconds
    return {
        "round": step.round,
        "pieces": [{"text": piece.text, "origin": piece.origin} for piece in step.pieces],
        "rejected": b"".join(map(tokenizer.piece, rejected)).decode("utf-8", "replace"),
        "drafted": len(step.drafted),
        "accepted": step.accepted,
        "evaluated": step.evaluated,
        "seconds": {"draft": seconds.draft, "verify": seconds.verify, "other": seconds.other},
    }
