"""Coins: never shared, never biased, the same bits everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from draftproof import noise as noise_module
from draftproof.noise import (
    BLOCK,
    At,
    FreshNoise,
    Noise,
    Purpose,
    SeededNoise,
    key,
    noise_for,
    uniform,
    uniforms,
)

AT = At(5, 7, Purpose.TARGET)
SEEDS = [0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 2**64 + 1, 10**30]
BACKENDS: list[Callable[..., Any]] = [np.asarray, torch.asarray]
libraries = pytest.mark.parametrize("asarray", BACKENDS, ids=["numpy", "torch"])


def positions(count: int) -> list[At]:
    return [At(0, position, Purpose.TARGET) for position in range(count)]


# SplitMix64 as published: a state that grows by a constant, and a mixing of it.


def splitmix64(state: int) -> int:
    mask = 2**64 - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_splitmix64_gives_the_published_numbers() -> None:
    """The first outputs for the state 1234567, as listed with the reference implementation."""
    golden = 0x9E3779B97F4A7C15
    outputs = [splitmix64(1234567 + golden * i) for i in range(1, 6)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@libraries
@pytest.mark.parametrize("seed", SEEDS)
def test_uniforms_are_splitmix64(asarray: Callable[..., Any], seed: int) -> None:
    ids = [0, 1, 2, 1000, 151_000, 2**31]
    golden = 0x9E3779B97F4A7C15
    bits = [splitmix64(key(seed, 9) + golden * i) >> 12 for i in ids]
    expected = [(b + 0.5) * 2.0**-52 for b in bits]
    assert uniforms(seed, 9, asarray(ids)).tolist() == expected


@pytest.mark.parametrize(
    ("number", "signed"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]
)
def test_signed_reading_of_64_bits(number: int, signed: int) -> None:
    assert noise_module._signed(number) == signed
    for bits in (11, 27, 30, 31):
        assert noise_module._shift_right(np.asarray([signed]), bits).tolist() == [number >> bits]


def test_keys_differ_in_every_part() -> None:
    parts = itertools.product(SEEDS, range(-2, 12), range(12), range(3))
    keys = [key(*part) for part in parts]
    assert len(set(keys)) == len(keys)
    assert len({key(1, 23), key(12, 3), key(123), key(1, 2, 3)}) == 4


def test_a_coin_depends_on_its_place_alone() -> None:
    coins = FreshNoise()
    forth = [coins.draw(np.full(1000, 0.001), at) for at in positions(50)]
    back = [coins.draw(np.full(1000, 0.001), at) for at in reversed(positions(50))]
    assert forth == back[::-1]
    assert len(set(forth)) > 30


def test_fresh_noise_is_fresh() -> None:
    weights = np.full(1000, 0.001)
    one, other = (
        [coins.draw(weights, at) for at in positions(20)]
        for coins in (noise_for(None), FreshNoise())
    )
    assert one != other


def test_seeded_noise_is_the_same_for_every_purpose_and_round() -> None:
    """That is what makes the text independent of who draws, and of how rounds fall."""
    weights = np.full(1000, 0.001)
    draws = {
        noise_for(3).draw(weights, At(round_, 7, purpose))
        for round_ in (1, 5, 7)
        for purpose in Purpose
    }
    assert len(draws) == 1
    assert isinstance(noise_for(0), SeededNoise), "0 is a seed like others"


def test_seeded_noise_tosses_no_coin() -> None:
    with pytest.raises(AssertionError):
        SeededNoise(1).below(0.5, 1.0, AT)


# Both draws against their weights. A total variation of d makes chi-square grow by 4 d^2 per draw
# or more, so 20 000 draws find d = .04 in 64 cells, .03 in ten, with power .98 at error 1e-6.

WEIGHTS = {
    "even": [1.0] * 8,
    "falling": [0.5**i for i in range(10)],
    "with zeros": [0.0, 3.0, 0.0, 1.0, 2.0, 0.0],
    "64 cells": [1.0 + i % 5 for i in range(64)],
    "several blocks": [1.0 * (i % 25 == 3) + (i == BLOCK) for i in range(2 * BLOCK + 100)],
}
DRAWS = 20_000


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
@pytest.mark.parametrize("make", [FreshNoise, lambda: SeededNoise(11)], ids=["fresh", "seeded"])
def test_draws_follow_their_weights(make: Callable[[], Noise], weights: list[float]) -> None:
    """Finds a bias of .04 in total variation; fresh noise fails once in a million runs."""
    coins, array = make(), np.asarray(weights)
    drawn = [coins.draw(array, at) for at in positions(DRAWS)]
    counts = np.bincount(drawn, minlength=len(weights))
    assert not counts[array == 0].any()
    expected = array[array > 0] / array.sum() * DRAWS
    assert stats.chisquare(counts[array > 0], expected).pvalue > 1e-6


@pytest.mark.parametrize(("numerator", "denominator"), [(0.3, 1.0), (0.2, 0.5), (3e-30, 4e-30)])
def test_coins_follow_their_chance(numerator: float, denominator: float) -> None:
    """Five standard deviations are .018."""
    coins = FreshNoise()
    heads = sum(coins.below(numerator, denominator, at) for at in positions(DRAWS))
    assert stats.binomtest(heads, DRAWS, numerator / denominator).pvalue > 1e-6


@pytest.mark.parametrize("step", [1, 2, 64])
def test_neighbouring_uniforms_are_uncorrelated(step: int) -> None:
    """Ids, positions and seeds a step apart; 1e6 pairs bound a correlation of .005 at 5 sigma."""
    ids, count = np.arange(1000), 1000
    grid = np.stack([uniforms(7, position, ids) for position in range(count)])
    seeds = np.stack([uniforms(seed, 7, ids) for seed in range(count)])
    pairs = [
        (grid[:, :-step], grid[:, step:]),
        (grid[:-step], grid[step:]),
        (seeds[:-step], seeds[step:]),
    ]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.005
    assert stats.kstest(grid.ravel(), "uniform").pvalue > 1e-6


def test_neighbouring_coins_are_uncorrelated() -> None:
    numbers = np.asarray(
        [[uniform(3, 1, position, purpose) for purpose in Purpose] for position in range(40_000)]
    )
    numbers = np.hstack([numbers[:-1], numbers[1:]])
    correlation = np.corrcoef(numbers.T) - np.eye(6)
    assert np.abs(correlation).max() < 0.025  # 5 sigma
    assert stats.kstest(numbers[:, :3].ravel(), "uniform").pvalue > 1e-6


# Traps.


@pytest.fixture
def uniform_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda number: monkeypatch.setattr(noise_module, "uniform", lambda *parts: number)


LARGEST = 1 - 2.0**-53


@libraries
@pytest.mark.parametrize("number", [0.0, 2.0**-53, 0.5, LARGEST])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "weights",
    [
        [0.0, 0.0, 1.0, 0.0],
        [1.0, 0.0],
        [0.0, 0.0, 0.0, 0.3],
        [0.0, 1e-38, 0.0, 1e-38, 0.0],
        [0.0, *[0.1] * 10, 0.0],
        [0.0, *[1 / 3] * 3, 0.0],
        [*[0.0] * BLOCK, 0.5, *[0.0] * BLOCK, 0.5, *[0.0] * BLOCK],
        [*[0.0] * (BLOCK - 1), 0.1, *[0.0] * BLOCK],
        [0.1] * BLOCK,
        [*[0.0] * (2 * BLOCK), *[0.1] * 10],
    ],
    ids=lambda weights: f"{len(weights)} weights",
)
def test_weights_of_zero_are_never_drawn(
    asarray: Callable[..., Any],
    uniform_is: Callable[[float], None],
    number: float,
    dtype: str,
    weights: list[float],
) -> None:
    uniform_is(number)
    array = asarray(np.asarray(weights, dtype=dtype))
    assert weights[FreshNoise().draw(array, AT)] > 0
    assert weights[SeededNoise(0).draw(array, AT)] > 0


@libraries
@pytest.mark.parametrize("number", [0.0, 0.1, 0.37, 0.5, 0.9, LARGEST])
def test_a_large_vocabulary_is_summed_precisely(
    asarray: Callable[..., Any], uniform_is: Callable[[float], None], number: float
) -> None:
    """A plain float32 sum of 200 000 equal chances drifts by many of them."""
    weights = np.full(200_000, 1 / 200_000, dtype=np.float32)
    uniform_is(number)
    assert abs(FreshNoise().draw(asarray(weights), AT) - number * 200_000) <= 1


def test_a_chance_of_zero_never_succeeds(uniform_is: Callable[[float], None]) -> None:
    uniform_is(0.0)
    assert not FreshNoise().below(0.0, 1.0, AT)
    assert FreshNoise().below(5e-324, 1.0, AT)


def test_a_chance_of_one_always_succeeds(uniform_is: Callable[[float], None]) -> None:
    uniform_is(LARGEST)
    assert FreshNoise().below(1.0, 1.0, AT)
    assert FreshNoise().below(0.1, 0.1, AT)
    assert FreshNoise().below(7.0, 0.1, AT)


# NumPy and torch.


@given(
    seed=st.integers(-(2**70), 2**70),
    position=st.integers(0, 10**6),
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.01, 0.25, 1.0]), min_size=1, max_size=40),
)
def test_the_library_makes_no_difference(seed: int, position: int, weights: list[float]) -> None:
    array = np.asarray([*weights, 0.5], dtype=np.float32)
    at = At(1, position, Purpose.DRAFT)
    ids = np.arange(len(array))
    assert (
        uniforms(seed, position, ids).tolist()
        == uniforms(seed, position, torch.asarray(ids)).tolist()
    )
    draws = {
        SeededNoise(seed).draw(weights, at)
        for weights in (
            array,
            torch.asarray(array),
            array.astype(np.float64),
            torch.asarray(array).to(torch.float64),
        )
    }
    assert len(draws) == 1


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_the_seeded_draw_is_a_race(seed: int, size: int) -> None:
    """The smallest -log(u) / w wins: renaming ids that lose, or dropping them, changes nothing."""
    weights = np.linspace(0.1, 1, size)
    winner = SeededNoise(seed).draw(weights, AT)
    u = uniforms(seed, AT.position, np.arange(size))
    assert winner == min(range(size), key=lambda i: -math.log(u[i]) / weights[i])
    alone = weights * (np.arange(size) % 3 == winner % 3)
    assert SeededNoise(seed).draw(alone, AT) == winner
