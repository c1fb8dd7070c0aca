"""Whether passes of ours give what the model gives by itself, tried on a short text."""

from __future__ import annotations

import math
from typing import Any

import torch

from draftproof.models import Chunk, Model
from draftproof.models.hf_cache import Tensor
from draftproof.models.hf_run import Runner


def text(count: int, vocabulary: int) -> list[int]:
    """Tokens to try with."""
    return [(7 * i + 3) % vocabulary for i in range(count)]


def distance_alone(model: Model, runner: Runner, count: int) -> float:
    """How far packed passes are off, over a text in pieces with a rollback in it.

    Args:
        model: what packs, with nothing in its first sequence.
        runner: what calls the same by itself.
        count: tokens of the text.
    """
    width = model.capabilities.vocabulary
    tokens = text(count, width)
    wrong = [(t + 1) % width for t in tokens]
    model.forward([Chunk(0, wrong, 0)])
    model.truncate(0, 0)
    (head,) = model.forward([Chunk(0, tokens[: count // 2], count // 2)])
    model.forward([Chunk(0, wrong[count // 2 :], 0)])
    model.truncate(0, count // 2)
    rows = [head]
    for at in range(count // 2, count, 3):
        part = tokens[at : at + 3]
        rows += model.forward([Chunk(0, part, len(part))])
    return distance(torch.cat(rows), runner.alone(tokens, head.device))


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference of two [n, V], in units of the spread of the second."""
    return float((ours - theirs).abs().max() / theirs.std().clamp(min=1e-6))


def tolerance(dtype: Any) -> float:
    """Rounding over all layers stays below this; a wrong mask or position is far above."""
    eps: float = torch.finfo(dtype).eps
    return 3 * math.sqrt(eps)
