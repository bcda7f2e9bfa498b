"""Weights and Jacobians of drawn rows against their exact expectations, over d_k, numbers of keys, scales and laws.

Whatever is wrong anywhere between a random word and a stored estimate shows here: samplers, scores, softmax,
merging, errors, or the closed forms, which are quadratures of their own.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy import stats

import sim

NAMES = (
    "weight_max",
    "weight_entropy",
    "weight_sum_squares",
    "jacobian_frobenius_sq",
    "jacobian_trace",
    "gradient_score",
)
SCALE = ["none", "sqrt_dk", "dk"]
QUERIES = 16

LAWS = ("gaussian", "rademacher")
# (d_k, n_keys, query, key): every d_k with every number of keys for both laws of the query, and some with means
CELLS = [(d, n, {"law": law}, {}) for d, n, law in product((4, 16, 64, 256, 1024), (2, 8, 64, 512, 4096), LAWS)]
CELLS += [
    (d, 96, {"law": law, "mean": mean}, {"mean": 3.0, "std": 0.5})
    for d, law, mean in product((4, 30, 300), LAWS, (0.5, -2.0))
]

# The whole family raises a false alarm in 1 of 1000 seeds, by Bonferroni: whatever depends on what.
ALARM = 0.001 / (len(CELLS) * len(SCALE) * len(NAMES))


def trials_of(d_k: int, n_keys: int) -> int:
    """Return how many trials a few tenths of a second allow, which makes 33 to 64 groups.

    Quantities that live on few rows (1 in 30 for two keys at d_k = 1024, without a scale rule) get thousands.
    """
    nanoseconds = n_keys * (1.5 * d_k + 6 * QUERIES)
    return int(np.clip(2e8 / nanoseconds, 66, 3000))


@cache
def off(d_k: int, n_keys: int, query: tuple, key: tuple) -> tuple[np.ndarray, int]:
    """Return how many standard errors each estimate is off, (names, scales), and the number of groups."""
    sides = {"query": dict(query), "key": dict(key)}
    families = ["weights", "jacobian", "gradients"]
    sweep = sim.Sweep(
        d_k=d_k,
        n_queries=QUERIES,
        n_keys=n_keys,
        trials=trials_of(d_k, n_keys),
        scale=SCALE,
        observables=families,
        **sides,
    )
    dataset = sim.run(sweep)
    values = [(dataset[name] - dataset[f"{name}_theory"]) / dataset[f"{name}_se"] for name in NAMES]
    return np.array(values), int(dataset["groups"])


def off_in(cell) -> tuple[np.ndarray, int]:
    d_k, n_keys, query, key = cell
    return off(d_k, n_keys, tuple(query.items()), tuple(key.items()))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_rows_agree_with_their_exact_expectations(cell):
    values, groups = off_in(cell)
    assert 33 <= groups <= 64
    limit = stats.t.ppf(1 - ALARM / 2, groups - 1)
    assert (abs(values) <= limit).all(), dict(zip(NAMES, values.round(1).tolist(), strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALE)
def test_their_deviations_are_those_of_chance(name, scale):
    """Each cell is a draw of its own: mean and mean square within four of their errors of 0 and of t's variance.

    A bias that no cell shows alone would shift the mean of all; wrong errors the mean square.
    """
    values = np.array([off_in(cell)[0][NAMES.index(name), SCALE.index(scale)] for cell in CELLS])
    count, variance = len(values), 40 / 38
    assert abs(values.mean()) < 4 * np.sqrt(variance / count)
    assert abs((values**2).mean() - variance) < 4 * variance * np.sqrt(2.2 / count)
