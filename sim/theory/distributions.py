"""Exact distributions of raw scores, where they have a closed form or are mixtures of few parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.cell import Cell
from sim.side import Side
from sim.theory.directions import direction, explicit, length_of, linear, probability_of_vector
from sim.theory.norm_laws import NormLaw, length_law, magnitude_law, norm_law, point

__all__ = ["Binomial", "Distribution", "NormalMixture", "SphereDot", "score_distribution"]

Array = np.ndarray
Distribution = Callable[[Array], tuple[Array, Array]]  # x -> (P(s < x), P(s <= x))


@dataclass(frozen=True)
class Binomial:
    """s = step (2 B - d), B binomial(d, 1/2): the sum of d signs."""

    d: int
    step: float

    def atoms(self) -> tuple[Array, Array]:
        """Return the values within 12 standard deviations and their probabilities."""
        from scipy.special import gammaln

        reach = math.ceil(6 * math.sqrt(self.d)) + 1
        b = np.arange(max(0, self.d // 2 - reach), min(self.d, self.d // 2 + reach) + 1)
        log_p = gammaln(self.d + 1) - gammaln(b + 1) - gammaln(self.d - b + 1) - self.d * math.log(2)
        return self.step * (2.0 * b - self.d), np.exp(log_p) / np.exp(log_p).sum()

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return P(s < x) and P(s <= x)."""
        from scipy.special import bdtr

        b = (np.asarray(x, float) / self.step + self.d) / 2
        # float noise in x / step must not move x off the lattice
        b = np.where(abs(b - np.round(b)) < 1e-6, np.round(b), b)

        def up_to(count: Array) -> Array:  # P(B <= count) for any real number
            inside = bdtr(np.clip(count, 0, self.d), self.d, 0.5)
            return np.where(count < 0, 0.0, np.where(count >= self.d, 1.0, inside))

        return up_to(np.ceil(b) - 1), up_to(np.floor(b))


@dataclass(frozen=True)
class NormalMixture:
    """s is normal of mean 0 given its standard deviation, of which the law is known."""

    sigma: NormLaw

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return P(s < x) and P(s <= x), which differ at 0 if a standard deviation may be 0."""
        from scipy.special import ndtr

        x, norms, weights = np.asarray(x, float), self.sigma.norms, self.sigma.weights
        spread = norms > 0
        p = ndtr(x[..., None] / norms[spread]) @ weights[spread]
        at_0 = weights[~spread].sum()
        return p + at_0 * (x > 0), p + at_0 * (x >= 0)


@dataclass(frozen=True)
class SphereDot:
    """s = size u_1 of a uniform direction u in 2 dimensions or more: (u_1 + 1) / 2 has a beta law."""

    dimensions: int
    size: float

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return P(s < x) twice."""
        from scipy.special import betainc

        u = np.clip(np.asarray(x, float) / self.size, -1, 1)
        shape = (self.dimensions - 1) / 2
        p = betainc(shape, shape, (u + 1) / 2)
        return p, p


def score_distribution(cell: Cell) -> NormalMixture | Binomial | SphereDot | None:
    """Return the distribution of a cell's raw scores if all have the same, None where it is not known."""
    if not cell.has_vectors:
        kind = cell.score.get("law").kind
        if kind == "rademacher":
            return Binomial(1, 1.0)
        return NormalMixture(point(1.0)) if kind == "gaussian" else None
    cell = explicit(cell)
    paired = cell.pair.kind != "none" and cell.pair.get("rho")
    if cell.score.kind != "dot" or cell.projection or paired:
        return None
    query, key = linear(cell, cell.query), linear(cell, cell.key)
    turned = bool(cell.query.rotation or cell.key.rotation)
    if query and key and not turned and (steps := [_sign_step(side) for side in (query, key)]) and all(steps):
        return Binomial(cell.d_k, math.prod(step for step in steps if step))
    for side, other, made in ((cell.key, cell.query, query), (cell.query, cell.key, key)):
        if law := _sigma(cell, side, other, made, turned):
            return NormalMixture(law)
    if query is None and key is None and not turned:
        return _of_directions(cell)
    return None


def _sign_step(side: Side) -> float | None:
    """Return the size of elements that are signs, None where they are not, or not independent and alike."""
    plain = side.law.kind == "rademacher" and side.mean == 0 and side.dependent.kind != "magnitude"
    return side.std if plain and side.within.kind == "none" and not side.tokens else None


def _sigma(cell: Cell, side: Side, other: Side, made: Side | None, turned: bool) -> NormLaw | None:
    """Return the law of the scores' standard deviation given the other side; None unless `side` is normal."""
    dependent = side.dependent.kind
    normal = side.law.kind == "gaussian" and (dependent == "none" or (dependent == "magnitude" and not side.tokens))
    if not normal or side.mean or side.normalize.kind != "none" or side.std == 0:
        return None
    if turned and side.within.kind != "none":
        return None
    if made:
        law = norm_law(made, cell.d_k, side.within)
    else:
        law = length_law(cell, other) if side.within.kind == "none" else None
    if law and dependent == "magnitude":
        law = law.times(magnitude_law(float(side.dependent.get("df"))))
    return law.scaled(side.std) if law else None


def _of_directions(cell: Cell) -> SphereDot | None:
    """Return the distribution of scores of two normalized sides, the direction of one uniform on the other's sphere."""
    sides = (cell.query, cell.key)
    size = math.prod(length_of(side.normalize, cell.d_k) for side in sides)
    for side, other in (sides, sides[::-1]):
        u = direction(cell, side)
        fits = other.normalize.kind == "layer" or (u is not None and not u.is_centered)
        if u and u.is_uniform and u.dimensions > 1 and fits and probability_of_vector(cell, other) == 1:
            return SphereDot(u.dimensions, size)
    return None
