"""Moments of the scores of normalized vectors, from the direction of one side and the lengths of the other.

If the direction u of one side is uniform and independent of the other vector y, the score L u.y has mean 0, variance
L^2 E |y|^2 / D and fourth moment 3 L^4 E |y|^4 / (D (D + 2)) in D dimensions; of a centered u only what of y lies
across (1, ..., 1) counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.cell import Cell
from sim.side import Side
from sim.theory.component_blocks import merged
from sim.theory.cumulants import Cumulants
from sim.theory.directions import Direction, cosine_moments, direction, length_of, probability_of_vector
from sim.theory.mixtures import Block, block_of_kinds
from sim.theory.projected_scores import powers, weights_of
from sim.theory.sources import Vector, dot_covariance, dot_mean
from sim.theory.token_pairs import TokenPairs, token_pairs

__all__ = ["normalized_block"]


class Lengths(NamedTuple):
    """E |y|^2, E |y|^4, and E y.y' of two vectors of a side; NaN where one is not known."""

    square: float
    fourth: float
    product: float


_UNKNOWN = Lengths(math.nan, math.nan, math.nan)


def normalized_block(cell: Cell) -> Block:
    """Return the scores of sides of which one at least is normalized."""
    pairs = token_pairs(cell)
    count = len(pairs.keys)
    blank = Cumulants(*np.full((4, count), math.nan))
    if cell.pair.kind != "none" and not (cell.projection or pairs.are_independent):
        return _correlated(cell, pairs) or block_of_kinds(blank, np.full((count, count), math.nan), pairs.rows)
    carried = _carrier(cell)
    if carried is None or (cell.projection and cell.pair.kind != "none"):
        return block_of_kinds(blank, np.full((count, count), math.nan), pairs.rows)
    name, u = carried
    side, other = (cell.query, cell.key) if name == "query" else (cell.key, cell.query)
    size = length_of(side.normalize, cell.d_k) ** 2 / u.dimensions
    of_other = _lengths(cell, "key" if name == "query" else "query", other, pairs, u)
    variance = size * u.probability * of_other.square
    quartic = 3 * size**2 * u.dimensions / (u.dimensions + 2) if u.is_uniform else math.nan
    fourth = quartic * u.probability * of_other.fourth
    product = of_other.product * u.probability if name == "query" else of_other.square * _alignment(cell, side, u)
    turned = cell.query.rotation or cell.key.rotation
    if turned and not (product == 0 and (cell.key.normalize.kind != "none" or cell.key.mean == 0)):
        product = math.nan
    zero = 0.0 if u.is_symmetric else math.nan
    kinds = Cumulants(*np.repeat([[0.0], [variance], [zero], [fourth - 3 * variance**2]], count, axis=1))
    return block_of_kinds(kinds, np.full((count, count), size * product), pairs.rows)


def _carrier(cell: Cell) -> tuple[str, Direction] | None:
    """Return the side by whose direction the scores are known, and that direction; one uniform on the sphere first."""
    turned = bool(cell.query.rotation or cell.key.rotation)
    found = []
    for name, side in (("query", cell.query), ("key", cell.key)):
        u = direction(cell, side) if side.normalize.kind != "none" else None
        if u and not (turned and u.is_centered):  # a rotation turns (1, ..., 1) away
            found.append((name, u))
    return max(found, key=lambda item: (item[1].is_uniform, not item[1].is_centered), default=None)


def _alignment(cell: Cell, side: Side, u: Direction) -> float:
    """Return E u.u' of two vectors of a side."""
    if cell.projection:
        return math.nan
    rho = side.tokens.rho if side.tokens else 0.0
    if rho == 0:
        return 0.0
    return cosine_moments(rho, u.dimensions)[0] if u.is_uniform and side.dependent.kind == "none" else math.nan


def _lengths(cell: Cell, name: str, side: Side, pairs: TokenPairs, u: Direction) -> Lengths:
    """Return the lengths of the vectors that u meets, of their part across (1, ..., 1) if it is centered."""
    if side.normalize.kind != "none":
        return _normalized_lengths(cell, side, u)
    # the last kind is not the query's own token
    y, other = (pairs.keys[-1], pairs.others[-1]) if name == "key" else (pairs.query, pairs.query)
    if cell.projection:
        return _projected_lengths(cell, name, y, other, u)
    if not u.is_centered:
        square = dot_mean(y, y)
        return Lengths(square, dot_covariance(y, y, y, y) + square**2, dot_mean(y, other))
    return _centered_lengths(y, other)


def _projected_lengths(cell: Cell, name: str, y: Vector, other: Vector, u: Direction) -> Lengths:
    d, weights = u.dimensions, weights_of(cell, name)
    second, fourth = powers(weights, y)
    product = d * weights.square(dot_mean(y, other))
    if weights.fourth and u.is_centered:
        return Lengths(d * weights.square(dot_mean(y, y)), math.nan, product)
    return Lengths(d * weights.square(dot_mean(y, y)), d * fourth + d * (d - 1) * second, product)


def _normalized_lengths(cell: Cell, side: Side, u: Direction) -> Lengths:
    own = direction(cell, side)
    probability = own.probability if own else probability_of_vector(cell, side)
    if probability is None:
        return _UNKNOWN
    size = length_of(side.normalize, cell.d_k) ** 2
    square, fourth = size * probability, size**2 * probability
    product = size * _alignment(cell, side, own) if own else math.nan
    if not u.is_centered or side.normalize.kind == "layer":
        return Lengths(square, fourth, product)
    if own is None:
        return _UNKNOWN
    d = cell.d_k
    fourth = fourth * (d - 1) * (d + 1) / (d * (d + 2)) if own.is_uniform else math.nan
    return Lengths(square * (d - 1) / d, fourth, product * (d - 1) / d)


def _centered_lengths(y: Vector, other: Vector) -> Lengths:
    """Return the lengths of y less its mean over the components."""
    d = y.width
    across = {name: part.covariance.width - part.covariance.total / d for name, part in y.sources.items()}
    across |= {name: part.covariance.width - part.covariance.total / d for name, part in other.sources.items()}
    square = sum(weight**2 * across[name] for name, weight in y.weights.items())
    product = sum(weight * other.weight(name) * across[name] for name, weight in y.weights.items())
    fourth = math.nan
    parts = list(merged(y).sources.values())
    if not parts:
        fourth = 0.0
    elif len(parts) == 1 and parts[0].covariance.is_identity:
        v2, k4 = parts[0].v2, parts[0].k4
        scale = square / (d - 1) if d > 1 else 0.0
        fourth = scale**2 * (v2 * (d - 1) * (d + 1) + k4 * d * (1 - 1 / d) ** 2)
    return Lengths(square, fourth, product)


def _correlated(cell: Cell, pairs: TokenPairs) -> Block | None:
    """Return the scores of normalized normal vectors that are paired, or share a part."""
    query, key = cell.query, cell.key
    directions = [direction(cell, side) for side in (query, key)]
    kinds_of = {side.normalize.kind for side in (query, key)}
    plain = not (query.tokens or key.tokens or query.rotation or key.rotation) and query.within == key.within
    if not plain or any(u is None or not u.is_uniform for u in directions) or "none" in kinds_of:
        return None
    if len({kind == "layer" for kind in kinds_of}) > 1 or {"none"} != {query.dependent.kind, key.dependent.kind}:
        return None
    d = directions[0].dimensions if directions[0] else 0
    size = math.prod(length_of(side.normalize, cell.d_k) for side in (query, key))
    cosines = [cosine_moments(float(cell.pair.get("rho")), d)] + [(0.0, 1 / d)] * (len(pairs.keys) - 1)
    mean, square = size * np.array([c[0] for c in cosines]), size**2 * np.array([c[1] for c in cosines])
    unknown = np.full(len(mean), math.nan)
    together = np.full((len(mean), len(mean)), math.nan if cell.pair.kind == "shared" else 0.0)
    return block_of_kinds(Cumulants(mean, square - mean**2, unknown, unknown), together, pairs.rows)
