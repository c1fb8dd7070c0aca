"""What passes take: medians, steps, and one scale for a machine that slows down."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from draftproof.control.latency import Latency, Scale, Table
from machines import Q8_0, STEPS, cost


def learned(table: dict[int, float], widths: range, noise: float = 0.0, sequences: int = 1):
    coin, scale = random.Random(3), Scale()
    latency, seconds = Latency(scale), cost(table)
    for _ in range(30):
        for width in widths:
            factor = 1 + noise * (2 * coin.random() - 1)
            outlier = 10 if coin.random() < noise / 5 else 1
            latency.observe(width, sequences, seconds(width) * factor * outlier)
    return latency, seconds, scale


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("sequences", [1, 8])
def test_steps_are_learned_through_noise_and_outliers(noise: float, sequences: int) -> None:
    latency, seconds, scale = learned(STEPS, range(sequences, 20), noise, sequences)
    for width in range(sequences, 20):
        found = latency.seconds(width, sequences) * scale.value
        assert found == pytest.approx(seconds(width), rel=noise + 1e-9)


def test_never_falling() -> None:
    """Q8_0 takes less for six tokens than for five, by the noise of its measurement."""
    row = learned(Q8_0, range(1, 17))[0].row(1, 1, 40)
    assert row == sorted(row)
    assert row[4:6] == pytest.approx([0.0293, 0.0293])


def test_what_lies_between_was_not_measured() -> None:
    latency = Latency(Scale())
    latency.adopt(Table({1: 1.0, 9: 2.0}))
    row = latency.row(1, 1, 16)
    assert row[0] == 1.0
    assert row[8] == 2.0
    assert all(a < b for a, b in pairwise(row))


def test_several_sequences_follow_the_shape_of_one() -> None:
    latency = Latency(Scale())
    latency.adopt(Table({n: cost(STEPS)(n) for n in range(1, 40)}))
    assert latency.row(8, 8, 16) == latency.row(8, 1, 16)
    for _ in range(4):
        latency.observe(8, 8, 2 * cost(STEPS)(8))
    assert latency.row(8, 8, 16) == pytest.approx([2 * s for s in latency.row(8, 1, 16)])


def test_nothing_is_known_before_the_first_pass_and_the_cold_one() -> None:
    latency = Latency(Scale())
    assert not latency.known(1)
    assert latency.seconds(3, 1) == 0
    latency.observe(1, 1, 99.0)
    assert not latency.known(1)
    latency.observe(1, 1, 1.0)
    assert latency.known(1)
    assert latency.seconds(1, 1) == 1.0


def test_a_slow_machine_changes_the_scale_and_not_the_table() -> None:
    latency, seconds, scale = learned(STEPS, range(1, 10))
    for _ in range(8):
        for width in (1, 4, 7):
            latency.observe(width, 1, 3 * seconds(width))
    assert scale.value == pytest.approx(3, rel=0.02)
    assert latency.seconds(9, 1) == pytest.approx(seconds(9), rel=0.05)
    assert latency.seconds(1, 1) == pytest.approx(seconds(1), rel=0.05)


def test_one_width_that_is_slower_changes_the_table_and_not_the_scale() -> None:
    latency, seconds, scale = learned(STEPS, range(1, 10))
    for _ in range(30):
        for width in range(1, 10):
            latency.observe(width, 1, seconds(width) * (2 if width > 6 else 1))
    assert scale.value == pytest.approx(1, rel=0.02)
    assert latency.seconds(7, 1) == pytest.approx(2 * seconds(7), rel=0.05)


def test_of_many_widths_seen_once_none_looks_cheap_by_chance() -> None:
    """With eight sequences there are many widths; the luckiest must not be believed at once."""
    latency, seconds, coin = Latency(Scale()), cost(Q8_0), random.Random(7)
    latency.adopt(Table({n: seconds(n) for n in (*range(1, 10), 13, 17, 40)}))
    for _ in range(30):
        latency.observe(8, 8, seconds(8) * coin.lognormvariate(0, 0.15))
    for width in range(9, 40):
        latency.observe(width, 8, seconds(width) * coin.lognormvariate(0, 0.15))
    row = latency.row(8, 8, 30)
    found = [row[n - 8] / row[0] / (seconds(n) / seconds(8)) for n in range(9, 39)]
    assert min(found) > 0.8
    assert max(found) < 1.2


def test_eight_sequences_tell_about_seven() -> None:
    latency = Latency(Scale())
    latency.adopt(Table({n: cost(STEPS)(n) for n in range(1, 40)}))
    for _ in range(20):
        for width in range(8, 30):
            latency.observe(width, 8, 3 * cost(STEPS)(width))
    assert latency.row(7, 7, 20) == pytest.approx([3 * s for s in latency.row(7, 1, 20)])
    assert latency.row(2, 2, 20) == latency.row(2, 1, 20)  # eight are too many to tell about two


def test_an_adopted_table_tells_the_scale_from_the_first_pass_on() -> None:
    scale = Scale()
    latency = Latency(scale)
    latency.adopt(Table(table := {1: 1.0, 4: 2.0, 9: 3.0}))
    for width in (1, 4, 9) * 5:
        latency.observe(width, 1, 2 * table[width])
    assert scale.value == pytest.approx(2.0)
    row = latency.row(1, 1, 8)
    assert [row[3] / row[0], row[8] / row[0]] == pytest.approx([2.0, 3.0], rel=0.05)
