"""Randomness as a function of where it is used, never of what was used before.

A coin is keyed by seed, round, position and purpose, so no coin is ever shared between positions,
purposes or rounds, and nothing depends on the order of calls. The hash is SplitMix64 (Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) keyed by BLAKE2b; it is
written in wrapping 64-bit integers, so NumPy and torch give the same bits.

Two kinds: ``FreshNoise`` (no seed), and ``SeededNoise``, where target and drafter draw with the
same noise at a position, so that the drawn token depends on seed and position alone.
"""

from __future__ import annotations

import hashlib
import secrets
from bisect import bisect_left, bisect_right
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from array_api_compat import array_namespace

from draftproof.types import Array

_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
BLOCK = 256  # weights that are summed before a draw looks at each


class Purpose(IntEnum):
    """What a coin is for."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2


class At(NamedTuple):
    """Where a coin is used.

    Attributes:
        round: committed tokens when the round began; grows with every round.
        position: absolute position of the token in question.
        purpose: what the coin decides.
    """

    round: int
    position: int
    purpose: Purpose


class Noise(Protocol):
    """The coins of one request."""

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        """Whether u * denominator < numerator, for u uniform on [0, 1).

        True with probability numerator / denominator; never where the numerator is 0.
        """

    def draw(self, weights: Array, at: At) -> int:
        """Draw an index with probability proportional to ``weights`` [V], not all of them 0."""


def noise_for(seed: int | None) -> Noise:
    """The noise of a request: keyed by its seed, or fresh."""
    return FreshNoise() if seed is None else SeededNoise(seed)


def choice_seed(seed: int | None, choice: int) -> int | None:
    """The seed of one of several answers to a prompt; the first has the request's own."""
    return seed if seed is None or not choice else key(seed, choice)


class FreshNoise:
    """Independent coins from fresh entropy."""

    def __init__(self) -> None:
        self._seed = secrets.randbits(64)

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        """See ``Noise.below``."""
        return uniform(self._seed, *at) * denominator < numerator

    def draw(self, weights: Array, at: At) -> int:
        """Invert the cumulative sum: of blocks first, then inside one, which is eight times faster.

        In float64, and by its own total, so that no token is missed.
        """
        xp = array_namespace(weights)
        whole = weights.shape[0] // BLOCK * BLOCK
        blocks = xp.sum(xp.reshape(weights[:whole], (-1, BLOCK)), axis=1, dtype=xp.float64).tolist()
        blocks.append(sum(weights[whole:].tolist()))
        block, aim = _invert(blocks, uniform(self._seed, *at) * sum(blocks))
        start = block * BLOCK
        return start + _invert(weights[start : start + BLOCK].tolist(), aim)[0]


class SeededNoise:
    """The same token from the same distribution at the same position, for target and drafter.

    An exponential race: token y wins with the smallest E_y / w_y, where E_y = -log(u_y). As
    -log(E_y) is a Gumbel variable this is the Gumbel-max trick (DESIGN: log p + g), in one
    logarithm instead of three.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def below(self, numerator: float, denominator: float, at: At) -> bool:
        """Not used: with a seed, drafts are judged by match, which tosses no coin."""
        raise AssertionError("a seeded request tosses no acceptance coin")

    def draw(self, weights: Array, at: At) -> int:
        """Run the race over the support of ``weights`` [V]."""
        xp = array_namespace(weights)
        (ids,) = xp.nonzero(weights > 0)
        race = -xp.log(uniforms(self._seed, at.position, ids))
        race = race / xp.astype(xp.take(weights, ids, axis=0), xp.float64)
        return int(ids[int(xp.argmin(race))])


def _invert(weights: list[float], aim: float) -> tuple[int, float]:
    """The index where the cumulative sum of ``weights`` passes ``aim``, and what is left of it."""
    total = list(accumulate(weights))
    # To the right of equals: a weight of 0 is passed over, also for u = 0. The other bound is for
    # rounding, which must not run off the end.
    index = min(bisect_right(total, aim), bisect_left(total, total[-1]))
    return index, aim - total[index - 1] if index else aim


def key(*parts: int) -> int:
    """64 bits from whole numbers of any size and sign."""
    text = ",".join(map(str, map(int, parts))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def uniform(*parts: int) -> float:
    """A number on [0, 1), in steps of 2**-53, from its key."""
    return float((key(*parts) >> 11) * 2.0**-53)


def uniforms(seed: int, position: int, ids: Array) -> Array:
    """Numbers on (0, 1), float64 [n], one for each token id [n] at a position."""
    xp = array_namespace(ids)
    z = xp.astype(ids, xp.int64) * _signed(_GOLDEN) + _signed(key(seed, position))
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX2)
    z = _shift_right(z ^ _shift_right(z, 31), 12)  # with one bit more the last could round to 1
    return (xp.astype(z, xp.float64) + 0.5) * 2.0**-52


def _signed(value: int) -> int:
    """The same 64 bits read as a signed number."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift_right(z: Any, bits: int) -> Any:
    """Logical shift of signed numbers: the sign must not come along."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
