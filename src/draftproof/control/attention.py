"""What looking back at cached entries adds to a pass.

Each token of a pass looks at all entries of its sequence, and some kernels read them once for all
tokens: seconds = (each * tokens + shared * sequences) * context. Both are fitted by least squares
to how passes of the same width differ where their contexts do, older ones fading. Contexts that
hardly differ are left to the noise: until more is known neither is thought to cost anything.

Not here: what passes take without a context (``latency.py``).
"""

from __future__ import annotations

FADE = 1 - 1 / 400
WIDTHS, CONTEXT = (1, 9) * 3, 256  # of the passes that a calibration is worth
DOUBT = 4 * 128.0**2  # as if so many passes with so many entries more had taken no longer


class Attention:
    """Of one model, at scale 1.

    Attributes:
        each: seconds for each token and entry.
        shared: seconds for each sequence and entry.
    """

    def __init__(self) -> None:
        self.each = self.shared = 0.0
        self._tt = self._ts = self._ss = self._tx = self._sx = 0.0

    def seconds(self, tokens: int, sequences: int, context: float) -> float:
        """What a pass takes longer than one without a context.

        Args:
            tokens: of the pass.
            sequences: whose they are.
            context: cached entries of each, on average.
        """
        return (self.each * tokens + self.shared * sequences) * context

    def adopt(self, each: float, shared: float) -> None:
        """Begin with what was measured before."""
        for width in WIDTHS if each or shared else ():
            self._count(width, 1, CONTEXT, (each * width + shared) * CONTEXT)
        self._fit()

    def add(self, tokens: int, sequences: int, context: float, seconds: float) -> None:
        """Count a pass: its context and seconds less those of others of the same width."""
        self._tt, self._ts, self._ss = FADE * self._tt, FADE * self._ts, FADE * self._ss
        self._tx, self._sx = FADE * self._tx, FADE * self._sx
        self._count(tokens, sequences, context, seconds)
        self._fit()

    def _count(self, tokens: int, sequences: int, context: float, seconds: float) -> None:
        t, s = tokens * context, sequences * context
        self._tt += t * t
        self._ts += t * s
        self._ss += s * s
        self._tx += t * seconds
        self._sx += s * seconds

    def _fit(self) -> None:
        """Ridge regression; neither is below 0."""
        tt, ss = self._tt + DOUBT, self._ss + DOUBT
        apart = tt * ss - self._ts**2
        self.each = (self._tx * ss - self._sx * self._ts) / apart
        self.shared = (self._sx * tt - self._tx * self._ts) / apart
        if self.each < 0:
            self.each, self.shared = 0.0, max(0.0, self._sx / ss)
        elif self.shared < 0:
            self.each, self.shared = max(0.0, self._tx / tt), 0.0
