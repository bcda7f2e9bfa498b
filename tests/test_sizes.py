"""The bins for sizes against a search among their edges."""

import numpy as np
import pytest

from sim.jit import inner
from sim.sizes import SIZE_BINS, size_bin, size_edges


@inner
def bins_of(values, out):
    for i in range(values.size):
        out[i] = size_bin(values[i])


def bins(values):
    out = np.empty(len(values), np.int64)
    bins_of(np.asarray(values, float), out)
    return out


def test_edges_grow_by_at_most_half_a_per_cent():
    edges = size_edges()
    assert edges.shape == (SIZE_BINS - 1,)
    assert edges[0] == 2.0**-32
    assert edges[-1] == 1
    ratios = edges[1:] / edges[:-1]
    assert ratios.min() > 1
    assert ratios.max() <= 1.005013  # e^0.005


def test_a_bin_is_what_a_search_among_the_edges_finds():
    edges, random = size_edges(), np.random.default_rng(0)
    values = np.concatenate([np.exp(random.uniform(-30, 3, 100_000)), random.uniform(0, 1.1, 100_000)])
    at_edges = np.concatenate([edges * (1 - 1e-14), edges * (1 + 1e-14)])
    ends = [0.0, 5e-324, 1e-300, 2.0**-33, 1.0, 1.5, 1e9, 1e300, np.inf]
    for given in (values, at_edges, np.array(ends)):
        np.testing.assert_array_equal(bins(given), np.searchsorted(edges, given, side="right"))


def test_bins_rise_with_the_values_and_the_ends_are_open():
    values = np.sort(np.exp(np.random.default_rng(1).uniform(-40, 5, 10_000)))
    assert (np.diff(bins(values)) >= 0).all()
    assert bins([0.0, 1e-20, 1.0, 7.0]).tolist() == [0, 0, SIZE_BINS - 1, SIZE_BINS - 1]


@pytest.mark.parametrize("power", [-32, -20, -1])
def test_every_factor_of_two_has_150_bins(power):
    low, high = bins([2.0**power, 2.0 ** (power + 1)])
    assert high - low == 150
