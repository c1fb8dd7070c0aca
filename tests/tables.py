"""Small tables of whole weights to enumerate over: rows by the last tokens, as in TableModel."""

from __future__ import annotations

import random

from exact import Weights

# Order 2, so that a cache that is wrong one token back shows.
BINARY: Weights = {
    (): (1, 1),
    (0,): (1, 3),
    (1,): (2, 1),
    (0, 0): (3, 2),
    (0, 1): (1, 4),
    (1, 0): (4, 1),
}
BINARY_DRAFT: Weights = {
    (): (1, 1),
    (0,): (1, 1),
    (1,): (1, 2),
    (0, 0): (1, 3),
    (1, 1): (3, 1),
}
TERNARY: Weights = {
    (): (1, 2, 1),
    (0,): (1, 4, 3),
    (1,): (2, 1, 1),
    (2,): (5, 2, 1),
    (0, 1): (1, 1, 6),
    (1, 0): (3, 0, 1),
}
TERNARY_DRAFT: Weights = {
    (): (2, 1, 1),
    (0,): (2, 1, 1),
    (1,): (1, 1, 2),
    (2,): (1, 1, 1),
    (0, 1): (2, 3, 3),
    (1, 2): (1, 1, 14),  # block's residual and token's differ here
    (2, 2): (0, 1, 1),
}
QUATERNARY: Weights = {
    (): (1, 2, 4, 1),
    (0,): (6, 3, 5, 2),
    (1,): (1, 5, 0, 2),
    (2,): (2, 2, 3, 1),
    (0, 2): (1, 2, 1, 8),
}
QUATERNARY_DRAFT: Weights = {
    (): (1, 1, 1, 1),
    (0,): (3, 1, 2, 2),
    (1,): (2, 1, 1, 0),
    (2,): (1, 1, 1, 3),
}
# Never proposes what BINARY_RUN can say.
BINARY_RUN: Weights = {(): (1, 2, 0, 0), (0,): (3, 1, 0, 0)}
OUTSIDE_RUN: Weights = {(): (0, 0, 1, 2), (2,): (0, 0, 2, 1)}


def random_table(seed: int, size: int) -> Weights:
    """Order 1, weights 0 to 4, so that zeros and ties occur."""
    coin = random.Random(seed)

    def row() -> tuple[int, ...]:
        weights = tuple(coin.choice((0, 1, 1, 2, 4)) for _ in range(size))
        return weights if any(weights) else row()

    return {(): row()} | {(token,): row() for token in range(size)}
