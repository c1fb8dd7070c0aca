"""What is estimated, in one place: the seconds of passes, and the chances of drafts.

Not here: deciding (``control.py``). All seconds given out are those of a machine at scale 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.control.acceptance import Acceptance, Shared
from draftproof.control.choice import Rate
from draftproof.control.hindsight import Hindsight, Places
from draftproof.control.latency import Latency, Scale
from draftproof.control.turn import Ask, Kind, Stream

READING = 64  # tokens of a draft model's pass from which on it counts as reading a prompt


class Estimates:
    """Of one target and its drafters.

    Args:
        kinds: what the drafters are, by place.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.scale = Scale()
        self.target = Latency(self.scale)
        self.passes = [Latency(self.scale) for _ in kinds]
        self._judging = {False: Rate(), True: Rate()}  # rows per second, greedy and drawn
        self._shared = {sampled: [Shared() for _ in kinds] for sampled in (False, True)}
        self.streams: dict[int, Stream] = {}

    def stream(self, ask: Ask) -> Stream:
        """What is known of a request; a new one begins with what the others taught."""
        stream = self.streams.get(ask.seq)
        if stream is None or stream.owner != ask.owner:
            chances = [Acceptance(shared) for shared in self._shared[ask.sampled]]
            hindsight = Hindsight([Places() for _ in chances])
            stream = Stream(ask.owner, chances, {}, hindsight)
            self.streams[ask.seq] = stream
        return stream

    def known(self, sequences: int) -> bool:
        """Whether anything is known of the target's passes, and the clock runs."""
        return self.target.seconds(sequences, sequences) > 0

    def verify(self, sequences: int, more: int, sampled: bool, context: float) -> list[float]:
        """Seconds of a target pass and of judging its rows, by drafted tokens.

        Where nothing is known a pass takes 1, whatever its tokens.

        Args:
            sequences: of the pass.
            more: most drafted tokens, of all of them together.
            sampled: whether the target draws.
            context: tokens of each sequence, on average.
        """
        row = self.target.row(sequences, sequences, more)
        if row[0] <= 0:
            return [1.0] * (more + 1)
        judging = self._judging[sampled]
        each = judging.seconds / judging.tokens if judging.tokens else 0.0
        attention = self.target.attention
        first = each * sequences + attention.seconds(sequences, sequences, context)
        each += attention.each * context
        return [seconds + first + each * extra for extra, seconds in enumerate(row)]

    def draft_pass(self, place: int, unread: int, sequences: int, context: float) -> float:
        """Seconds of a drafter's pass over so many tokens of so many sequences."""
        tokens = max(1, min(unread, READING))
        return self.passes[place].seconds(tokens, sequences, context) * max(1.0, unread / tokens)

    def observe_draft(
        self, place: int, unread: int, sequences: int, seconds: float, context: float
    ) -> None:
        """Count a drafter's pass, in seconds of the clock."""
        if unread <= READING:
            self.passes[place].observe(max(1, unread), sequences, seconds, context)

    def observe(
        self, rows: int, sequences: int, verify: float, other: float, drawn: bool, context: float
    ) -> None:
        """Count a target pass without any prompt, in seconds of the clock.

        Args:
            rows: tokens it read, all of them judged.
            sequences: whose they were.
            verify: seconds of the pass.
            other: seconds of judging.
            drawn: whether the target draws.
            context: tokens of each sequence, on average.
        """
        self.target.observe(rows, sequences, verify, context)
        self._judging[drawn].add(rows, other / self.scale.value)
