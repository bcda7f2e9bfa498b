"""The distributions of raw scores that are mixtures of normal ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from sim.cell import Cell
from sim.kinds import Choice
from sim.side import Side
from sim.theory.distributions import NormalMixture, score_distribution
from sim.theory.norm_laws import magnitude_law, norm_law
from tests import plain


@pytest.mark.parametrize("df", [1.0, 3.0, 10.0])
def test_two_random_magnitudes_mix_as_if_each_pair_were_listed(df: float) -> None:
    side = Side(dependent=Choice("magnitude", {"df": df}))
    made = score_distribution(Cell(seed=0, d_k=16, n_queries=2, n_keys=2, query=side, key=side))
    assert isinstance(made, NormalMixture)
    assert made.sigma.norms.size < 20_000  # or a histogram of it would not fit into memory
    length, magnitude = norm_law(Side(), 16), magnitude_law(df)
    assert length is not None
    for x in (-30.0, 0.3, 4.0, 1000.0):
        of_length = ndtr(x / np.multiply.outer(np.outer(magnitude.norms, magnitude.norms), length.norms))
        exact = magnitude.weights @ (of_length @ length.weights) @ magnitude.weights
        assert made(np.array([x]))[1][0] == pytest.approx(exact, abs=1e-9)


def both(**side: object) -> dict[str, object]:
    return {"query": side, "key": side}


AR1, POWER = {"kind": "ar1", "rho": 0.6}, {"kind": "power_law", "exponent": 1.0}
MAGNITUDE = {"kind": "magnitude", "df": 3}
DISTRIBUTED = {
    "unlike scales": {"query": {"within": AR1, "mean": 0.5}, "key": {"within": POWER, "tokens": {"rho": 0.3}}},
    "signs and scales": {"query": {"law": "rademacher", "within": POWER}, "key": {"within": POWER, "std": 2.0}},
    "magnitudes": both(dependent=MAGNITUDE),
    "a magnitude of signs": {"query": {"dependent": "signs"}, "key": {}},
    "spheres": both(normalize="rms"),
    "centered spheres": both(normalize="layer", mean=1.0),
    "one sphere": {"query": {"law": "laplace", "mean": 1.0, "normalize": "l2"}, "key": {"std": 3.0}},
    "any on a sphere": {"query": {"law": "exponential", "normalize": "l2"}, "key": {"normalize": "rms"}},
    "turned": both(rotation={"base": 10.0}),
    "cosine": {"score": "cosine"},
    "equal signs": both(law="rademacher", dependent=MAGNITUDE, normalize="rms"),
    "iid": {"score": "iid"},
}
COUNT, FAMILY = 20_000, 1e-3


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_drawn_scores_have_the_distribution(name: str) -> None:
    """By Kolmogorov's distance, of whose limits that of continuous laws is an upper one."""
    fields = DISTRIBUTED[name]
    cell = Cell(n_queries=1, n_keys=1, **({} if name == "iid" else {"d_k": 4}), **fields)
    made = score_distribution(cell)
    assert made is not None
    x = np.sort(plain.scores(np.random.default_rng(len(name)), cell, COUNT).ravel())
    below, up_to = made(x)
    place = np.arange(COUNT) / COUNT
    if name == "equal signs":  # steps: the count up to each value, and below it
        x = np.round(x)
        below, up_to = made(x)
        first, last = np.searchsorted(x, x, "left") / COUNT, np.searchsorted(x, x, "right") / COUNT
        distance = max(np.abs(below - first).max(), np.abs(up_to - last).max())
    else:
        distance = max((below - place).max(), (place + 1 / COUNT - up_to).max())
    assert distance < stats.kstwo.isf(FAMILY / len(DISTRIBUTED), COUNT)


UNKNOWN = [
    both(law="uniform"),
    both(mean=1.0),
    both(within=AR1, rotation={"base": 10.0}),
    {"key": {"dependent": MAGNITUDE, "tokens": {"rho": 0.5}}, "query": {"law": "laplace"}},
    {"pair": {"kind": "paired", "rho": 0.5}},
    {"projection": {"init": "he", "d_model": 4}},
    {"score": {"kind": "additive", "units": 2}},
    {"query": {"normalize": "layer"}, "key": {"law": "laplace", "normalize": "rms"}},
]


@pytest.mark.parametrize("fields", UNKNOWN, ids=str)
def test_other_distributions_are_not_known(fields: dict[str, object]) -> None:
    assert score_distribution(Cell(d_k=4, n_queries=2, n_keys=2, **fields)) is None
