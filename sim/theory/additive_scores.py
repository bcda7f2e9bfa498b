"""Moments of additive scores v.tanh(W_q q + W_k k), of weights drawn for each trial: v normal, W by Xavier's rule.

Given q and k the units' preactivations are independent and normal, of variance t = (|q|^2 + |k|^2) 2 / (d + units), so
that a score's moments are averages of those of tanh over the law of t: exact where the lengths' laws are known, else
limits by the mean and the variance of t. In a row, preactivations of two keys have the covariance
(|q|^2 + k.k') 2 / (d + units), in the limit by its mean, too.
"""

from __future__ import annotations

import math

import numpy as np

from sim.cell import Cell
from sim.theory.cumulants import Cumulants
from sim.theory.directions import direction, length_of, probability_of_vector
from sim.theory.mixtures import Block, block_of_kinds
from sim.theory.norm_laws import length_law
from sim.theory.projected_scores import powers, weights_of
from sim.theory.rotated_scores import coherence
from sim.theory.sources import Vector, dot_covariance, dot_mean
from sim.theory.tanh_moments import correlated_moment, even_moments
from sim.theory.token_pairs import TokenPairs, token_pairs

__all__ = ["additive_block", "additive_limit"]

Array = np.ndarray

_LEAST = 16  # components from which on the limits stand,
_SPREAD = 0.125  # and the largest relative variance of t at which they do
_MOST = 2**22  # points of a law of t


def additive_block(cell: Cell) -> Block:
    """Return the exact moments: mean and skewness 0, the others where t has a known law, not those within rows."""
    pairs = token_pairs(cell)
    count = len(pairs.keys)
    variance = fourth = math.nan
    if pairs.are_independent and not cell.projection:
        laws = [length_law(cell, side) for side in (cell.query, cell.key)]
        if laws[0] and laws[1] and laws[0].norms.size * laws[1].norms.size <= _MOST:
            t = np.add.outer(laws[0].norms ** 2, laws[1].norms ** 2).ravel() * _gain(cell)
            variance, fourth = _moments(cell, t, np.outer(laws[0].weights, laws[1].weights).ravel())
    kinds = Cumulants(*np.repeat([[0.0], [variance], [0.0], [fourth]], count, axis=1))
    return block_of_kinds(kinds, np.full((count, count), math.nan), pairs.rows)


def additive_limit(cell: Cell) -> Block:
    """Return limits, for vectors of 16 components and more whose lengths vary little."""
    pairs = token_pairs(cell)
    count = len(pairs.keys)
    sizes = [_mean_and_variance(cell, pairs, key) for key in pairs.keys]
    good = cell.d_k >= _LEAST and all(variance <= _SPREAD * mean**2 for mean, variance in sizes)
    kinds = np.full((4, count), math.nan)
    together = np.full((count, count), math.nan)
    if good:
        t = np.array([mean + math.sqrt(variance) * np.array([-1, 1]) for mean, variance in sizes]) * _gain(cell)
        found = [_moments(cell, at, np.full(2, 0.5)) for at in t]
        kinds = np.array([np.zeros(count), *np.array(found).T[:1], np.zeros(count), np.array(found).T[1]])
        square = _of_units(cell) ** 2 * cell.score.get("units")
        query, _ = _lengths(cell, "query", pairs.query)
        for i, j in np.ndindex(count, count):
            common = (query + _product(cell, pairs, i, j)) * _gain(cell)
            together[i, j] = square * correlated_moment(sizes[i][0] * _gain(cell), sizes[j][0] * _gain(cell), common)
    return block_of_kinds(Cumulants(*kinds), together, pairs.rows)


def _gain(cell: Cell) -> float:
    return 2 / (cell.d_k + cell.score.get("units"))


def _of_units(cell: Cell) -> float:
    return float(cell.score.get("v_std"))


def _moments(cell: Cell, t: Array, weights: Array) -> tuple[float, float]:
    """Return variance and fourth cumulant from the law of t: units v_std^2 E tanh^2, and by pairs of units."""
    units, v_std = int(cell.score.get("units")), _of_units(cell)
    second, fourth = even_moments(np.sqrt(t))
    variance = units * v_std**2 * float(weights @ second)
    of_fourth = units * float(weights @ fourth) + units * (units - 1) * float(weights @ second**2)
    return variance, 3 * v_std**4 * of_fourth - 3 * variance**2


def _lengths(cell: Cell, name: str, x: Vector) -> tuple[float, float]:
    """Return mean and variance of the squared length of a vector that the score sees, of the side `name`."""
    side = cell.query if name == "query" else cell.key
    if side.normalize.kind != "none":
        square, found = length_of(side.normalize, cell.d_k) ** 2, probability_of_vector(cell, side)
        return (math.nan, math.nan) if found is None else (square * found, square**2 * found * (1 - found))
    if not cell.projection:
        return dot_mean(x, x), dot_covariance(x, x, x, x)
    weights, d = weights_of(cell, name), cell.d_k
    mean = d * weights.square(dot_mean(x, x))
    second, fourth = powers(weights, x)
    return mean, d * fourth + d * (d - 1) * second - mean**2


def _mean_and_variance(cell: Cell, pairs: TokenPairs, key: Vector) -> tuple[float, float]:
    """Return mean and variance of |q|^2 + |k|^2, for a key of one kind."""
    (query, own), (of_key, other) = _lengths(cell, "query", pairs.query), _lengths(cell, "key", key)
    crossed = 0.0
    if {cell.query.normalize.kind, cell.key.normalize.kind} == {"none"}:
        crossed = dot_covariance(pairs.query, pairs.query, key, key)
        if cell.projection:
            crossed *= cell.d_k**2 * weights_of(cell, "query").variance * weights_of(cell, "key").variance
    return query + of_key, own + other + 2 * crossed


def _product(cell: Cell, pairs: TokenPairs, i: int, j: int) -> float:
    """Return E k.k' of different keys of two kinds, as the score sees them."""
    key, other = pairs.keys[i], pairs.others[j]
    if cell.key.normalize.kind != "none":
        centered = direction(cell, cell.key) and pairs.are_independent and not cell.projection
        return 0.0 if centered and not cell.key.tokens else math.nan
    product = dot_mean(key, other)
    if cell.projection:
        product = cell.d_k * weights_of(cell, "key").square(product)
    if product and cell.key.rotation:
        alike = cell.projection or cell.key.within.kind == "none"
        plain = alike and len(pairs.keys) == 1 and not (cell.causal and cell.n_queries > 1)
        return product * float(coherence(cell, pairs.rows.keys)[0]) if plain else math.nan
    return product
