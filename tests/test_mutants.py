"""The proof catches every mutant, and nothing else."""

from __future__ import annotations

import pytest

from mutants import MUTANTS, examine

# The first token of an answer stays exactly right, so that a test of first tokens sees nothing.
FIRST_TOKEN_RIGHT = {8, 9, 10, 11, 14}
SPEED_ALONE = {15, 16}


def test_the_code_as_it_is_passes() -> None:
    findings = examine()
    assert findings.caught == ()
    assert findings.joint == 0


@pytest.mark.parametrize("number", MUTANTS)
def test_mutant_is_caught(number: int) -> None:
    _, change = MUTANTS[number]
    findings = examine(change)
    assert findings.caught
    assert (findings.joint == 0) == (number in SPEED_ALONE)
    assert (findings.first == 0) == (number in FIRST_TOKEN_RIGHT | SPEED_ALONE)


def test_all_mutants_of_the_design_are_here() -> None:
    assert list(MUTANTS) == list(range(1, 19))
