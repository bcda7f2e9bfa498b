"""Moments: merging against two passes in extended precision, and what scaling and pooling keep."""

import numpy as np
import pytest

from sim.moments import merge_moments, pool_rows, scale_moments
from tests import oracle


def off(found, x):
    """Return the largest relative error: of the mean against mean abs, of M_r against the sum of abs(d)^r."""
    exact = oracle.moments(x)
    away = abs(np.asarray(x, np.longdouble).ravel() - exact[1])
    mean = abs(found[1] - exact[1]) / abs(np.asarray(x)).mean()
    return max(mean, *(abs(found[r] - exact[r]) / (away**r).sum() for r in (2, 3, 4)))


def merged(parts):
    """Merge as the tree does: in aligned pairs."""
    while len(parts) > 1:
        for left, right in zip(parts[::2], parts[1::2], strict=False):
            merge_moments(left, right)
        parts = parts[::2]
    return parts[0]


def pieces(x, sizes):
    return [oracle.moments(part).astype(float) for part in np.split(x, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize(("offset", "tolerance"), [(0, 1e-12), (1, 1e-12), (1e3, 1e-12), (-1e3, 1e-12), (1e6, 1e-9)])
@pytest.mark.parametrize("law", ["normal", "exponential", "standard_cauchy"])
def test_merging_is_as_accurate_as_two_passes(law, offset, tolerance):
    random = np.random.default_rng(5)
    sizes = random.integers(1, 400, size=300)
    x = getattr(random, law)(size=sizes.sum())
    x = (x - x.mean()) / x.std() + offset
    found = merged(pieces(x, sizes))
    assert found[0] == x.size
    assert off(found, x) < tolerance


def test_groups_far_apart_merge_as_accurately():
    random = np.random.default_rng(6)
    x = np.concatenate([center + random.standard_normal(100) for center in 1e3 * random.standard_normal(64)])
    assert off(merged(pieces(x, [100] * 64)), x) < 1e-12


def test_merging_from_either_side_gives_the_same_moments():
    random = np.random.default_rng(7)
    a, b = (oracle.moments(random.exponential(size=n) + 3).astype(float) for n in (7, 900))
    first, second = a.copy(), b.copy()
    merge_moments(first, b)
    merge_moments(second, a)
    np.testing.assert_allclose(first, second, rtol=1e-14)


def test_nothing_merged_changes_no_bit():
    nothing, x = np.zeros(5), oracle.moments(np.random.default_rng(8).standard_normal(50)).astype(float)
    left, right = x.copy(), nothing.copy()
    merge_moments(left, nothing)
    merge_moments(right, x)
    assert (left == x).all()
    assert (right == x).all()


@pytest.mark.parametrize("factor", [0.125, -3.0, 0.0, 1e-3])
def test_scaled_moments_are_those_of_scaled_numbers(factor):
    x = np.random.default_rng(9).exponential(size=1000) - 0.3
    out = np.empty(5)
    scale_moments(oracle.moments(x).astype(float), factor, out)
    np.testing.assert_allclose(out, oracle.moments(factor * x).astype(float), rtol=1e-13)


@pytest.mark.parametrize("unit", [1.0, 2.0**-7, 2.0**5])
def test_pooled_rows_are_the_moments_of_all_their_numbers(unit):
    x = np.random.default_rng(10).exponential(size=(33, 60)) * 40 + 1e3
    center = np.float32(x.mean(axis=1)).astype(float)  # the mean as float32 has it
    d = unit * (x - center[:, None])
    sums = np.stack([center, *(np.sum(d**r, axis=1) for r in range(1, 5)), np.full(33, 60.0)])
    out = np.empty(5)
    pool_rows(sums, unit, out)
    assert off(out, x) < 1e-12
    np.testing.assert_allclose(sums[0], x.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(sums[1], 60 * x.var(axis=1), rtol=1e-11)


@pytest.mark.parametrize("unit", [1.0, 2.0**-7])
def test_pooled_rows_may_be_of_different_lengths_and_empty(unit):
    counts = np.array([1, 0, 60, 2, 0, 33])
    rows = [np.random.default_rng(11).exponential(size=n) * 40 + 1e3 for n in counts]
    center = [np.float64(np.float32(x.mean())) if x.size else 0.0 for x in rows]
    powers = [[((unit * (x - c)) ** r).sum() for x, c in zip(rows, center, strict=True)] for r in range(1, 5)]
    sums = np.array([center, *powers, counts], float)
    out = np.empty(5)
    pool_rows(sums, unit, out)
    assert out[0] == counts.sum()
    assert off(out, np.concatenate(rows)) < 1e-12
