"""Logits to distributions: against the definitions, written as slow loops over plain floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftproof.errors import ModelError
from draftproof.sampling import distribution, greedy
from draftproof.types import SamplingParams

# Eighths are exact in float32; few values give ties.
LOGITS = st.lists(
    st.one_of(st.sampled_from([-math.inf, 0.0, 1.0]), st.integers(-80, 80).map(lambda n: n / 8)),
    min_size=1,
    max_size=30,
).filter(lambda row: max(row) > -math.inf)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.25, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 32),
    top_p=st.sampled_from([0.001, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
quick = settings(deadline=None, max_examples=150)


def by_definition(logits: list[float], params: SamplingParams) -> list[float]:
    """Gives up on inputs where a cut falls so close that rounding decides."""
    if params.greedy:
        return [float(i == logits.index(max(logits))) for i in range(len(logits))]
    peak = max(logits)
    weights = [math.exp((x - peak) / params.temperature) for x in logits]
    if params.top_k:
        least = sorted(weights, reverse=True)[: params.top_k][-1]
        weights = [w if w >= least else 0.0 for w in weights]
    total = math.fsum(weights)
    kept = []
    for w in weights:
        above = math.fsum(v for v in weights if v > w)
        if params.top_p < 1:
            assume(abs(above - params.top_p * total) > 1e-5 * total)
        assume(w in (0, 1) or abs(w - params.min_p) > 1e-5)
        stays = (above < params.top_p * total or params.top_p == 1) and w >= params.min_p
        kept.append(w if stays else 0.0)
    return [w / math.fsum(kept) for w in kept]


def run(logits: list[float], params: SamplingParams, array: str = "float64") -> np.ndarray:
    """One row through the real function, in the library and precision that ``array`` names."""
    library, _, dtype = array.rpartition(" ")
    rows = np.asarray([logits], dtype=dtype)
    result = distribution(torch.asarray(rows) if library else rows, params)
    return np.asarray(result[0])


ARRAYS = {"float64": 1e-12, "float32": 2e-6, "torch float64": 1e-12, "torch float32": 2e-6}


@pytest.mark.parametrize("array", ARRAYS)
@given(logits=LOGITS, params=PARAMS)
@quick
def test_follows_the_definitions(array: str, logits: list[float], params: SamplingParams) -> None:
    expected = by_definition(logits, params)
    result = run(logits, params, array)
    assert result.dtype == array.split()[-1]
    assert np.abs(result - expected).max() < ARRAYS[array]
    assert abs(result.sum(dtype=np.float64) - 1) < ARRAYS[array]
    tiny = np.asarray(expected) < 1e-30  # where float32 ends
    assert ((result > 0) == (np.asarray(expected) > 0))[~tiny].all()


@given(logits=LOGITS, params=PARAMS, order=st.randoms(use_true_random=False))
@quick
def test_renaming_tokens_renames_the_result(
    logits: list[float], params: SamplingParams, order: Any
) -> None:
    assume(not params.greedy)
    by_definition(logits, params)
    names = order.sample(range(len(logits)), len(logits))
    renamed = run([logits[i] for i in names], params)
    result = run(logits, params)[names]
    assert ((renamed > 0) == (result > 0)).all()
    assert np.allclose(renamed, result, rtol=1e-12, atol=0)


@given(logits=LOGITS, params=PARAMS)
@quick
def test_options_only_ever_remove_tokens(logits: list[float], params: SamplingParams) -> None:
    """What is left keeps its proportions, and the most probable token is always left."""
    result = run(logits, params)
    whole = run(logits, SamplingParams(temperature=params.temperature))
    assert not result[whole == 0].any()
    assert result[int(np.argmax(logits))] > 0
    left = result > 0
    assert np.allclose(result[left] / result.max(), whole[left] / whole.max(), rtol=1e-9)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [0, 1, 3]),  # a tie stays together
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 6}, [0, 1, 2, 3, 4]),  # more than there are
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 0.52}, [0, 1, 3]),
        ({"top_k": 3, "top_p": 0.51}, [1]),  # its share rises to .516 once top-k has cut the rest
        ({"min_p": 0.4}, [0, 1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"temperature": 0.0}, [1]),
        ({"temperature": 1e-4}, [1]),
    ],
    ids=str,
)
def test_which_tokens_stay(array: str, params: dict[str, Any], kept: list[int]) -> None:
    logits = np.log([0.234, 0.5, 0.031, 0.234, 0.001]).tolist()
    params = {"temperature": 1.0, **params}
    assert np.flatnonzero(run(logits, SamplingParams(**params), array)).tolist() == kept


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("params", [{"top_k": 5000}, {"top_p": 0.99999}, {"top_p": 0.5}], ids=str)
def test_flat_and_long_tails(array: str, params: dict[str, Any]) -> None:
    """Far below the most probable token, where looking at the head alone is not enough."""
    logits = np.linspace(0, -30, 20_000)
    logits[0] = 4.0
    result = run(logits.tolist(), SamplingParams(temperature=1.0, **params), array)
    weights = np.exp(logits - 4)
    order = weights.cumsum() / weights.sum()
    count = params.get("top_k") or int((order < params["top_p"]).sum()) + 1
    assert abs(int((result > 0).sum()) - count) <= (0 if "64" in array or "top_k" in params else 20)


@pytest.mark.parametrize("array", ARRAYS)
def test_greedy_takes_the_lowest_id_of_a_tie(array: str) -> None:
    params = SamplingParams(temperature=0)
    assert run([1.0, 3.0, 3.0, 2.0], params, array).tolist() == [0, 1, 0, 0]
    assert run([-math.inf, -math.inf, -5.0], params, array).tolist() == [0, 0, 1]
    assert greedy(np.asarray([[0.0, 0.0], [1.0, 2.0]])) == [0, 1]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "bad", [[0.0, math.nan, 1.0], [0.0, math.inf, 1.0], [-math.inf] * 3, [math.nan] * 3], ids=str
)
def test_logits_that_are_not_finite(array: str, temperature: float, bad: list[float]) -> None:
    """In any row; -inf beside a finite number is a token that cannot be drawn."""
    rows = np.asarray([[0.0, 1.0, -math.inf], bad], dtype=array.split()[-1])
    logits = torch.asarray(rows) if "torch" in array else rows
    params = SamplingParams(temperature=temperature)
    with pytest.raises(ModelError):
        distribution(logits, params)
    assert float(distribution(logits[:1], params)[0][2]) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_half_precision_is_widened(dtype: torch.dtype, temperature: float) -> None:
    (result,) = distribution(
        torch.tensor([[1.0, 2.0, 0.5]], dtype=dtype), SamplingParams(temperature=temperature)
    )
    assert result.dtype == torch.float32
    assert abs(float(result.sum()) - 1) < 1e-6


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_logits_are_left_as_they_were(temperature: float) -> None:
    """They belong to the model."""
    logits = np.asarray([[1.0, 2.0, 0.5]])
    distribution(logits, SamplingParams(temperature=temperature, top_k=2, top_p=0.9))
    assert logits.tolist() == [[1.0, 2.0, 0.5]]


def test_rows_do_not_mix() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 40)) * 3
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02)
    together = distribution(rows, params)
    for row, expected in zip(rows, together, strict=True):
        assert distribution(row[None], params)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("asarray", [np.asarray, torch.tensor])
@pytest.mark.parametrize("temperature", [1e-4, 0.5, 1.0, 1e6])
def test_masks_are_excluded(asarray: Callable[[Any], Any], temperature: float) -> None:
    """Both ways to mask a token; neither may overflow into a warning."""
    lowest = float(np.finfo(np.float32).min)
    rows = np.asarray([[1.0, lowest, -np.inf, 0.9]], np.float32)
    (p,) = distribution(asarray(rows), SamplingParams(temperature=temperature))
    assert p[1:3].tolist() == [0, 0]
    assert float(p.sum()) == pytest.approx(1)
