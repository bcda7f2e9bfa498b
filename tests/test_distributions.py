"""The distributions of raw scores that are mixtures of normal ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from sim.cell import Cell
from sim.distributions import NormalMixture, score_distribution
from sim.kinds import Choice
from sim.norm_laws import magnitude_law, norm_law
from sim.side import Side


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
