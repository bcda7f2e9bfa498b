"""How the components of one vector vary together: x = A z with independent z_i of variance 1, and tr AA' = width.

For each kind of :data:`sim.structure.WITHIN` its A, and the sums over A and S = AA' that moments of scores are made
of. These cost O(1) where components are alike, O(width) at the most; only :meth:`Covariance.matrix` is dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sim.blas import one_blas_thread
from sim.kinds import Choice

__all__ = [
    "DENSE",
    "Columns",
    "Covariance",
    "Spectra",
    "aligned",
    "componentwise",
    "covariance",
    "spectra",
    "trace_product",
]

Array = np.ndarray

DENSE = 2048  # the largest width of dense matrices
_SPECTRAL = 1024  # and of those whose eigenvectors are found


class Columns(NamedTuple):
    """Sums over each column of A, runs of equal columns together: how many, and sums of A_ij to the powers 1 to 4."""

    counts: Array
    sums: Array
    squares: Array
    cubes: Array
    fourths: Array


@dataclass(frozen=True)
class Covariance:
    """The covariance of one vector of `width` components, of a kind of :data:`sim.structure.WITHIN`."""

    within: Choice
    width: int

    @property
    def is_identity(self) -> bool:
        """Whether the components are alike and independent."""
        return self.runs is not None and bool((self.runs[1] == 1).all())

    @cached_property
    def runs(self) -> tuple[Array, Array] | None:
        """Of a diagonal A the counts of equal elements and the elements, in order; None where A is not diagonal."""
        form = _DIAGONAL.get(self.within.kind)
        return form(self.width, **dict(self.within.parameters)) if form else None

    @property
    def lags(self) -> Array:
        """Of stationary components S_{i, i+l} for l = 0 .. width - 1."""
        return _STATIONARY[self.within.kind].lags(self.width, **dict(self.within.parameters))

    @cached_property
    def columns(self) -> Columns:
        """Sums over the columns of A."""
        if self.runs:
            counts, scales = self.runs
            return Columns(counts, *(scales**r for r in (1, 2, 3, 4)))
        return _STATIONARY[self.within.kind].columns(self.width, **dict(self.within.parameters))

    @cached_property
    def total(self) -> float:
        """1'S1: the variance of the sum of the components."""
        counts, sums = self.columns.counts, self.columns.sums
        return float(counts @ sums**2)

    @property
    def matrix(self) -> Array:
        """A itself, (width, width)."""
        return _matrix(self)

    def over_columns(self, **powers: int) -> float:
        """Return the sum over columns of a product of powers of their sums: ``squares=2``, ``squares=1, sums=1``."""
        columns = self.columns
        return float(columns.counts @ math.prod(getattr(columns, name) ** power for name, power in powers.items()))


@lru_cache(1024)
def covariance(within: Choice, width: int) -> Covariance:
    """Return the covariance of vectors of a kind; a correlation or an exponent of 0 is none."""
    plain = within.kind in ("equicorrelated", "ar1") and (within.get("rho") == 0 or width == 1)
    return Covariance(Choice("none") if plain else within, width)


@lru_cache(8)
def _matrix(covariance: Covariance) -> Array:
    if covariance.runs:
        counts, scales = covariance.runs
        return np.diag(np.repeat(scales, counts))
    parameters = dict(covariance.within.parameters)
    return _STATIONARY[covariance.within.kind].matrix(covariance.width, **parameters)


def aligned(*runs: tuple[Array, Array]) -> tuple[Array, list[Array]]:
    """Return common counts and the elements of each sequence, of sequences of runs of equal elements."""
    ends = [np.cumsum(counts) for counts, _ in runs]
    common = ends[0] if all(np.array_equal(end, ends[0]) for end in ends) else np.unique(np.concatenate(ends))
    values = [elements[np.searchsorted(end, common)] for end, (_, elements) in zip(ends, runs, strict=True)]
    return np.diff(common, prepend=0), values


def trace_product(a: Covariance, b: Covariance) -> float:
    """Return tr S_a S_b."""
    if a.runs and b.runs:
        counts, (x, y) = aligned(a.runs, b.runs)
        return float(counts @ (x * y) ** 2)
    if a.runs or b.runs:  # the other has variances of 1
        return float(a.width)
    beside = np.arange(a.width, 0, -1) * a.lags * b.lags
    return float(2 * beside.sum() - beside[0])


def componentwise(a: Covariance, b: Covariance) -> float:
    """Return the sum over components of the products of their variances."""
    if a.runs and b.runs:
        return trace_product(a, b)
    return float(a.width)


class Spectra(NamedTuple):
    """Several covariances in the eigenvectors that they have in common, runs of equal eigenvalues together.

    Attributes
    ----------
    counts : array (runs,)
    eigenvalues : list of arrays (runs,)
        Of each covariance.
    ones : array (runs,)
        The components of (1, ..., 1), their root mean square in a run.
    """

    counts: Array
    eigenvalues: list[Array]
    ones: Array


def spectra(*covariances: Covariance) -> Spectra | None:
    """Return covariances in common eigenvectors; None where they have none, or are too large.

    Diagonal ones have common eigenvectors, equicorrelated ones too, and any one has some in common with the identity.
    """
    if all(of.runs for of in covariances):
        counts, scales = aligned(*(of.runs for of in covariances if of.runs))
        return Spectra(counts, [scale**2 for scale in scales], np.ones(len(counts)))
    width, others = covariances[0].width, {of for of in covariances if not of.is_identity}
    if all(of.within.kind == "equicorrelated" for of in others):
        # (1, ..., 1) itself, and all across it
        correlations = [0.0 if of.is_identity else float(of.within.get("rho")) for of in covariances]
        eigenvalues = [np.array([1 + (width - 1) * rho, 1 - rho]) for rho in correlations]
        return Spectra(np.array([1, width - 1]), eigenvalues, np.array([math.sqrt(width), 0.0]))
    if len(others) > 1 or width > _SPECTRAL:
        return None
    own, ones = _eigen(next(iter(others)))
    return Spectra(np.ones(width, int), [np.ones(width) if of.is_identity else own for of in covariances], ones)


@lru_cache(64)
def _eigen(of: Covariance) -> tuple[Array, Array]:
    """Return the eigenvalues of S, and (1, ..., 1) in its eigenvectors."""
    with one_blas_thread():
        eigenvalues, vectors = np.linalg.eigh(of.matrix @ of.matrix.T)
    return eigenvalues, vectors.sum(axis=0)


# Diagonal A: counts and scales ---------------------------------------------------------------------


def _alike(width: int) -> tuple[Array, Array]:
    return np.array([width]), np.ones(1)


def _power_law(width: int, exponent: float) -> tuple[Array, Array]:
    eigenvalues = np.arange(1, width + 1) ** -float(exponent)
    return np.ones(width, int), np.sqrt(eigenvalues * (width / eigenvalues.sum()))


def _outliers(width: int, count: float, factor: float) -> tuple[Array, Array]:
    others = math.sqrt(width / (count * factor**2 + width - count))
    counts, scales = np.array([int(count), width - int(count)]), np.array([factor * others, others])
    return counts[counts > 0], scales[counts > 0]


_DIAGONAL: dict[str, Callable[..., tuple[Array, Array]]] = {
    "none": _alike,
    "power_law": _power_law,
    "outliers": _outliers,
}


# Stationary components: all variances are 1 --------------------------------------------------------


class _Stationary(NamedTuple):
    lags: Callable[..., Array]
    columns: Callable[..., Columns]
    matrix: Callable[..., Array]


def _equicorrelated_lags(width: int, rho: float) -> Array:
    return np.where(np.arange(width) == 0, 1.0, rho)


def _equicorrelated_root(width: int, rho: float) -> tuple[float, float]:
    """Return a and b of the symmetric root A = a I + b 11'."""
    a = math.sqrt(1 - rho)
    return a, (math.sqrt(1 + (width - 1) * rho) - a) / width


def _equicorrelated_columns(width: int, rho: float) -> Columns:
    a, b = _equicorrelated_root(width, rho)
    sums = (np.array([(a + b) ** r + (width - 1) * b**r]) for r in (1, 2, 3, 4))
    return Columns(np.array([width]), *sums)


def _equicorrelated_matrix(width: int, rho: float) -> Array:
    a, b = _equicorrelated_root(width, rho)
    return a * np.eye(width) + b


def _ar1_lags(width: int, rho: float) -> Array:
    return float(rho) ** np.arange(width)


def _ar1_columns(width: int, rho: float) -> Columns:
    """x_1 = z_1 and x_i = rho x_{i-1} + sqrt(1 - rho^2) z_i: column j is geometric from its diagonal on."""
    length = np.arange(width, 0, -1)
    first = np.where(length == width, 1.0, math.sqrt(1 - rho**2))
    sums = (first**r * (1 - (float(rho) ** r) ** length) / (1 - rho**r) for r in (1, 2, 3, 4))
    return Columns(np.ones(width, int), *sums)


def _ar1_matrix(width: int, rho: float) -> Array:
    index = np.arange(width)
    lag = index[:, None] - index
    first = np.where(index == 0, 1.0, math.sqrt(1 - rho**2))
    powers = float(rho) ** np.abs(lag)
    # denormal numbers are slow
    return np.where((lag >= 0) & (np.abs(powers) > 1e-60), powers, 0.0) * first


_STATIONARY: dict[str, _Stationary] = {
    "equicorrelated": _Stationary(_equicorrelated_lags, _equicorrelated_columns, _equicorrelated_matrix),
    "ar1": _Stationary(_ar1_lags, _ar1_columns, _ar1_matrix),
}
