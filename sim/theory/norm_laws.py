"""Laws of lengths: of ||x|| for one vector of a side, or of (x'Sx)^(1/2) where the other side's covariance S sees it.

A row of normal keys is normal given the query, with a standard deviation that is such a length; so are the units of an
additive score. Each law is a quadrature, for averages of functions that are smooth in the logarithm of the length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.blas import one_blas_thread
from sim.cell import Cell
from sim.kinds import Choice
from sim.side import Side
from sim.theory.covariances import Covariance, aligned, covariance, spectra
from sim.theory.directions import length_of, linear, probability_of_vector
from sim.theory.quadratic_forms import quadratic_form

__all__ = ["NormLaw", "length_law", "magnitude_law", "norm_law", "point"]

Array = np.ndarray

_SPECTRAL = 1024  # the largest width of which eigenvalues are found
_MANY = 4096  # points of a product from which on it is gathered
_LOG_STEP = 1 / 32  # of a gathered law


@dataclass(frozen=True)
class NormLaw:
    """A law of a length as a quadrature: points and weights that sum to 1."""

    norms: Array
    weights: Array

    def scaled(self, factor: float) -> NormLaw:
        """Return the law of a multiple."""
        return NormLaw(self.norms * factor, self.weights)

    def times(self, other: NormLaw) -> NormLaw:
        """Return the law of the product with an independent length."""
        made = NormLaw(np.outer(self.norms, other.norms).ravel(), np.outer(self.weights, other.weights).ravel())
        return made if made.norms.size <= _MANY else _gathered(made)


def _gathered(law: NormLaw) -> NormLaw:
    """Return a law on evenly spaced logarithms, each weight shared out by Lagrange's interpolation of degree 7.

    Averages of functions that are smooth in the logarithm change by 1e-9 or less. Some weights are slightly negative.
    """
    counts = law.weights > 1e-18
    place = np.log(law.norms[counts]) / _LOG_STEP
    below = np.floor(place)
    offsets = np.arange(-3, 5)
    first = int(below.min()) + offsets[0]
    part, cell = place - below, below.astype(int) - first
    total = np.zeros(cell.max() + offsets[-1] + 1)
    for i in offsets:
        shares = law.weights[counts]
        for other in offsets[offsets != i]:
            shares *= (part - other) / (i - other)
        total += np.bincount(cell + i, shares, len(total))
    return NormLaw(np.exp(_LOG_STEP * (first + np.arange(len(total)))), total / total.sum())


def point(norm: float) -> NormLaw:
    """Return the law of a constant."""
    return NormLaw(np.array([norm]), np.ones(1))


def norm_law(side: Side, d: int, seen_by: Choice | None = None) -> NormLaw | None:
    """Return the law of a vector's length before any normalizing, None where it is not known in closed form.

    Parameters
    ----------
    side : Side
    d : int
        Number of components.
    seen_by : Choice, optional
        A kind of :data:`sim.structure.WITHIN`, whose covariance is S; without it S is the identity.
    """
    metric = covariance(seen_by or Choice("none"), d)
    if abs(side.mean) >= 1e8 * side.std:  # a relative spread below 1e-8, or none
        return point(abs(side.mean) * math.sqrt(metric.total))
    shift = side.mean / side.std
    own = covariance(side.within, d)
    kind, dependent = side.law.kind, side.dependent.kind
    correlated = side.tokens is not None and side.tokens.rho > 0
    law = None
    if kind == "gaussian" and dependent != "signs":
        if dependent == "none" or (shift == 0 and not correlated):
            law = _normal_norm(own, metric, shift)
    elif not correlated and shift == 0 and own.runs and metric.runs:
        counts, (a, b) = aligned(own.runs, metric.runs)
        if kind == "rademacher":
            law = point(math.sqrt(counts @ (a * b) ** 2))
        elif kind == "gaussian":  # signs, and a normal magnitude
            law = _normal_norm(covariance(Choice("none"), 1), covariance(Choice("none"), 1), 0.0)
            law = law.scaled(math.sqrt(counts @ (a * b) ** 2)) if law else None
    elif (
        kind == "rademacher" and not correlated and dependent != "magnitude" and own.is_identity and metric.is_identity
    ):
        law = _sign_norm(d, shift)
    if law and dependent == "magnitude":
        law = law.times(magnitude_law(float(side.dependent.get("df"))))
    return law.scaled(side.std) if law else None


def length_law(cell: Cell, side: Side) -> NormLaw | None:
    """Return the law of a vector's length as the score sees it, normalized or not; None where it is not known."""
    made = linear(cell, side)
    if made is not None:
        return norm_law(made, cell.d_k)
    found, size = probability_of_vector(cell, side), length_of(side.normalize, cell.d_k)
    if found is None:
        return None
    return point(size) if found == 1 else NormLaw(np.array([0.0, size]), np.array([1 - found, found]))


@lru_cache(256)
def magnitude_law(df: float) -> NormLaw:
    """Return the law of r: r^2 = (df - 2) / chi^2_df, or df / chi^2_df to df = 2."""
    squares = quadratic_form(np.ones(1), np.array([df]), np.zeros(1))
    return NormLaw(np.sqrt((df - 2 if df > 2 else df) / squares.points), squares.weights)


@lru_cache(1024)
def _normal_norm(own: Covariance, metric: Covariance, shift: float) -> NormLaw | None:
    """(x'Sx)^(1/2) of x = A z + shift, z standard normal: in the eigenvectors of A'SA a sum of squares."""
    with one_blas_thread():
        spectrum = _spectrum(own, metric, shift)
    if spectrum is None:
        return None
    squares = quadratic_form(*spectrum)
    return NormLaw(np.sqrt(squares.points), squares.weights)


def _spectrum(own: Covariance, metric: Covariance, shift: float) -> tuple[Array, Array, Array] | None:
    """Return eigenvalues, how many there are of each, and their sums of squared shifts."""
    if common := spectra(own, metric):
        of_own, of_metric = common.eigenvalues
        return of_own * of_metric, common.counts, common.counts * (shift * common.ones) ** 2 / of_own
    if own.width > _SPECTRAL:
        return None
    seen = metric.matrix.T @ own.matrix
    form = seen.T @ seen
    if shift == 0:
        return np.linalg.eigvalsh(form), np.ones(own.width), np.zeros(own.width)
    eigenvalues, vectors = np.linalg.eigh(form)
    linear = vectors.T @ (seen.T @ metric.matrix.sum(axis=0)) * shift
    return eigenvalues, np.ones(own.width), (linear / eigenvalues) ** 2


@lru_cache(4096)
def _sign_norm(d: int, shift: float) -> NormLaw:
    """||r + shift|| for d signs r: ||.||^2 = d (1 + shift^2) + 2 shift (2 B - d), B binomial(d, 1/2)."""
    from scipy.special import gammaln

    # a stride of half a standard deviation changes no average of a smooth function (Poisson's summation)
    stride = max(1, int(math.sqrt(d) / 4))
    reach = min(d // 2, int(5 * math.sqrt(d))) // stride * stride
    b = np.arange(d // 2 - reach, min(d, d // 2 + reach + stride) + 1, stride)
    log_weight = -gammaln(b + 1) - gammaln(d - b + 1)
    weights = np.exp(log_weight - log_weight.max())
    norms = np.sqrt(b * (1 + shift) ** 2 + (d - b) * (1 - shift) ** 2)
    return NormLaw(norms, weights / weights.sum())
