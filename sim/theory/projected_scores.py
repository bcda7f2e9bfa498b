"""Moments of the scores of projected tokens: q = W_Q x + b, k = W_K y + c, weights and biases drawn for each trial.

Given the tokens, the d_k products q_c k_c are independent and alike, W having independent elements of variance s^2
and excess kurtosis k4, the biases (normal, independent of each other) variance beta^2. So what is left to average over
tokens are their dot products: S(x, y) = s^2 x.y + beta^2 is the covariance of q_c, given x and y, and for a row
E q.k q.k' = d_k E S_q(x, x) S_k(y, y').
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.cell import Cell
from sim.laws import LAWS
from sim.structure import INITS
from sim.theory.cumulants import Cumulants, dot_cumulants, square_moments
from sim.theory.mixtures import Block, block_of_kinds
from sim.theory.rotated_scores import coherence
from sim.theory.sources import Vector, dot_covariance, dot_mean, fourth_moment
from sim.theory.token_pairs import Rows, TokenPairs, token_pairs

__all__ = ["Weights", "powers", "projected_block", "weights_of"]


class Weights(NamedTuple):
    """Of one matrix and its bias: variances s^2 and beta^2, and the fourth cumulant of a weight."""

    variance: float
    bias: float
    fourth: float

    def square(self, mean: float) -> float:
        """Return E S(x, y) from E x.y."""
        return self.variance * mean + self.bias


def weights_of(cell: Cell, side: str) -> Weights:
    """Return the weights of one side, "query" or "key"."""
    made = cell.projection
    assert made is not None
    init = INITS[made.init]
    variance = init.std(side, made.d_model, cell.d_k) ** 2
    excess = LAWS[init.law].moments(0.0)[3] - 3
    return Weights(variance, made.bias_std**2, excess * variance**2)


def projected_block(cell: Cell) -> Block:
    """Return the scores of projected tokens, not normalized."""
    assert cell.projection is not None
    pairs = token_pairs(cell)
    query, key = weights_of(cell, "query"), weights_of(cell, "key")
    count = len(pairs.keys)
    together = np.zeros((count, count))
    squares = np.zeros(count)
    means = np.zeros(count)
    for i, y in enumerate(pairs.keys):
        if cell.projection.tied:
            means[i] = cell.d_k * query.variance * dot_mean(pairs.query, y)
        product = _tied_product if cell.projection.tied else _product
        squares[i] = product(cell.d_k, query, key, pairs.query, y, y)
        for j, other in enumerate(pairs.others):
            together[i, j] = product(cell.d_k, query, key, pairs.query, y, other)
    fourth = [math.nan] * count
    if not cell.projection.tied:
        fourth = [_fourth(cell.d_k, query, key, pairs, i) for i in range(count)]
    third = np.full(count, math.nan if cell.projection.tied else 0.0)
    variances = squares - means**2
    kinds = Cumulants(means, variances, third, np.array(fourth) - 3 * variances**2)
    covariances = (together - np.outer(means, means))[:, :, None]
    if cell.query.rotation or cell.key.rotation:
        kinds, covariances = _rotated(cell, kinds, covariances, pairs.rows)
    return block_of_kinds(kinds, covariances, pairs.rows)


def _rotated(cell: Cell, kinds: Cumulants, covariances: np.ndarray, rows: Rows) -> tuple[Cumulants, np.ndarray]:
    """Return cumulants and covariances of rotated queries and keys: given the tokens, theirs are multiples of I.

    Two keys of a row have then E q.Rk q.R'k' in proportion to tr RR', in the mean over rows also where a row holds the
    query's own key, unless the rows see different places. Only normal weights have fourth moments that do not turn.
    """
    assert cell.projection is not None
    if cell.projection.tied:
        return Cumulants(*np.full((4, len(kinds.mean)), math.nan)), covariances * math.nan
    if INITS[cell.projection.init].law != "gaussian":
        kinds = kinds._replace(fourth=np.full(len(kinds.mean), math.nan))
    mixed = cell.causal and cell.n_queries > 1 and len(kinds.mean) > 1
    found = covariances * (np.array(math.nan) if mixed else coherence(cell, rows.keys))
    return kinds, np.where(covariances == 0, 0.0, found)


def _product(d_k: int, query: Weights, key: Weights, x: Vector, y: Vector, other: Vector) -> float:
    """Return E q.k q.k' for k and k' of tokens y and `other`."""
    means = query.square(dot_mean(x, x)) * key.square(dot_mean(y, other))
    return d_k * (means + query.variance * key.variance * dot_covariance(x, x, y, other))


def _tied_product(d_k: int, query: Weights, key: Weights, x: Vector, y: Vector, other: Vector) -> float:
    """Return E q.k q.k' for q and k of the same matrix: E (w.x)^2 (w.y)(w.y') of one w, and pairs of different ones."""
    xx, yy, xy, xo = dot_mean(x, x), dot_mean(y, other), dot_mean(x, y), dot_mean(x, other)
    crossed = xy * xo + dot_covariance(x, y, x, other)
    one = query.variance**2 * (xx * yy + dot_covariance(x, x, y, other) + 2 * crossed)
    if query.fourth:
        one += query.fourth * fourth_moment(x, x, y, other)
    one += query.variance * query.bias * (xx + yy) + query.bias**2
    return d_k * one + d_k * (d_k - 1) * query.variance**2 * crossed


def _fourth(d_k: int, query: Weights, key: Weights, pairs: TokenPairs, i: int) -> float:
    """Return E (q.k)^4 = d_k E q_c^4 k_c^4 + 3 d_k (d_k - 1) E q_c^2 k_c^2 q_e^2 k_e^2, for keys of one kind.

    E q_c^4 given x is 3 S(x, x)^2 + k4 s^4 sum x_i^4. Known for independent tokens, and for a token with itself.
    """
    x, y = pairs.query, pairs.keys[i]
    if not x.has_part_of(y):
        (second_q, fourth_q), (second_k, fourth_k) = powers(query, x), powers(key, y)
        return d_k * fourth_q * fourth_k + 3 * d_k * (d_k - 1) * second_q * second_k
    if x != y:
        return math.nan
    n = _raw_moments(dot_cumulants(x, x))
    # coefficients of S(x, x)^2 as a polynomial in |x|^2
    q2, k2 = (np.array([w.bias**2, 2 * w.variance * w.bias, w.variance**2]) for w in (query, key))
    both = float(np.convolve(q2, k2) @ n)
    found = (9 * d_k + 3 * d_k * (d_k - 1)) * both
    if query.fourth or key.fourth:
        moments = square_moments(x)
        if moments is None:
            return math.nan
        crossed = query.fourth * (k2 @ moments[:3]) + key.fourth * (q2 @ moments[:3])
        found += d_k * float(3 * crossed + query.fourth * key.fourth * moments[3])
    return found


def powers(weights: Weights, x: Vector) -> tuple[float, float]:
    """Return E S(x, x)^2 and E q_c^4."""
    mean = dot_mean(x, x)
    second = weights.square(mean) ** 2 + weights.variance**2 * dot_covariance(x, x, x, x)
    fourth = 3 * second
    if weights.fourth:
        fourth += weights.fourth * fourth_moment(x, x, x, x)
    return second, fourth


def _raw_moments(of: Cumulants) -> np.ndarray:
    """Return E N^0 .. E N^4 from the cumulants of N."""
    k1, k2, k3, k4 = (float(value) for value in of)
    second = k2 + k1**2
    third = k3 + 3 * k2 * k1 + k1**3
    return np.array([1.0, k1, second, third, k4 + 3 * k2**2 + 4 * k3 * k1 + 6 * k2 * k1**2 + k1**4])
