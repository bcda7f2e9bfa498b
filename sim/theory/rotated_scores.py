"""Moments of the scores of rotated vectors: s_ij = q_i.R(D) k_j, with D = j - (the query's place) and planes of 2.

Plane p (components 2p, 2p + 1) turns by theta_p = base^(-2p/d) a token. Of independent sides with diagonal covariances
every D has cumulants of its own (:func:`sim.theory.cumulants.bilinear`), and a block is a mixture of them. For a row,

    E s_ij s_il = f(D_ij) f(D_il) + sum_p tr U_p R_ij V_p R_il' + tr S_p R_ij W_p R_il'

with f = E s, S the covariance of a query, U its second moment, V the covariance of two keys and W the keys' means.
For symmetric 2 x 2 matrices, U = u I + [[Re u', Im u'], [Im u', -Re u']] and likewise V,
tr U R(a) V R(b)' = 2 u v cos(a - b) + 2 Re(conj(u') v' e^(i(a+b))), so that sums over keys are geometric.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.cell import Cell
from sim.theory.component_blocks import blocks_of, merged
from sim.theory.cumulants import Cumulants, bilinear, dot_cumulants, quadratic
from sim.theory.mixtures import Block, block_of_kinds
from sim.theory.sources import Vector, dot_covariance
from sim.theory.token_pairs import TokenPairs, token_pairs

__all__ = ["coherence", "rotated_block"]

Array = np.ndarray

_LARGEST = 2**22  # elements of an array over places and planes


class _Turning(NamedTuple):
    """How planes turn: angles a token (planes,), and by how many tokens the queries are ahead of the first keys."""

    angles: Array
    ahead: int


def _turning(cell: Cell) -> _Turning | None:
    """Return how queries and keys turn, None unless both do, and by the same angles."""
    query, key = cell.query.rotation, cell.key.rotation
    if query is None or key is None or query.base != key.base:
        return None
    angles = float(query.base) ** (-2 * np.arange(cell.d_k // 2) / cell.d_k)
    return _Turning(angles, cell.n_keys - cell.n_queries)


def rotated_block(cell: Cell) -> Block:
    """Return the scores of rotated vectors, neither projected nor normalized."""
    pairs = token_pairs(cell)
    turning = _turning(cell)
    if pairs.are_independent and _is_isotropic(pairs.query, pairs.keys[0]):
        kinds, shares = _as_unrotated(pairs)
    elif turning is None:
        return _blank(pairs)
    elif len(pairs.keys) > 1:
        return _paired(cell, pairs, turning)
    else:
        kinds, shares = _by_distance(cell, pairs, turning)
    row_variances = np.full(pairs.rows.weights.shape, math.nan)
    if turning and pairs.are_independent:
        row_variances = _row_variances(cell, pairs, turning)
    return Block(kinds, shares, pairs.rows.keys, pairs.rows.weights, row_variances)


def _blank(pairs: TokenPairs) -> Block:
    count = len(pairs.keys)
    return block_of_kinds(Cumulants(*np.full((4, count), math.nan)), np.full((count, count), math.nan), pairs.rows)


def _is_isotropic(*vectors: Vector) -> bool:
    """Whether one of the vectors has a law that no rotation changes."""
    return any(
        vector.mean == 0 and all(part.is_normal and part.covariance.is_identity for part in vector.sources.values())
        for vector in vectors
    )


def _as_unrotated(pairs: TokenPairs) -> tuple[Cumulants, Array]:
    found = dot_cumulants(pairs.query, pairs.keys[0])
    return Cumulants(*(np.array([float(value)]) for value in found)), pairs.rows.shares


def _distances(cell: Cell, ahead: int) -> tuple[Array, Array]:
    """Return how far queries stand ahead of keys, and how often each distance occurs."""
    if cell.causal:
        distances = np.arange(cell.n_keys)
        return distances, cell.n_queries - np.maximum(0, distances - ahead)
    distances = np.arange(ahead - cell.n_keys + 1, ahead + cell.n_queries)
    most = min(cell.n_queries, cell.n_keys)
    from_ends = np.minimum(np.arange(1, len(distances) + 1), np.arange(len(distances), 0, -1))
    return distances, np.minimum(from_ends, most)


def _turns(angles: Array, distances: Array) -> Array:
    """Return the rotations (distances, planes, 2, 2) of a key relative to a query that far ahead."""
    turn = -distances[:, None] * angles
    cosine, sine = np.cos(turn), np.sin(turn)
    return np.stack([np.stack([cosine, -sine], axis=-1), np.stack([sine, cosine], axis=-1)], axis=-2)


def _by_distance(cell: Cell, pairs: TokenPairs, turning: _Turning) -> tuple[Cumulants, Array]:
    """Return the cumulants by distance, and the distances' shares."""
    query, key = pairs.query, pairs.keys[0]
    distances, counts = _distances(cell, turning.ahead)
    independent = pairs.are_independent
    normal = all(part.is_gaussian for vector in (query, key) for part in vector.sources.values())
    made = blocks_of(merged(query), merged(key), 2) if independent else blocks_of(query, key, 2)
    if made is None or not (independent or normal):
        return Cumulants(*np.full((4, 1), math.nan)), np.ones((1, 1))
    if len(distances) * len(turning.angles) > _LARGEST:
        return _of_alike(query, key) if independent else Cumulants(*np.full((4, 1), math.nan)), np.ones((1, 1))
    of = bilinear if independent else quadratic
    found = [
        of(made[0], made[1].turned(_turns(turning.angles, part)))
        for part in np.array_split(distances, math.ceil(len(distances) * len(turning.angles) / 2**14))
    ]
    values = (np.concatenate([np.broadcast_to(f[r], len(np.atleast_1d(f[0]))) for f in found]) for r in range(4))
    shares = counts[:, None]
    if (
        cell.causal and len(distances) * len(pairs.rows.keys) <= _LARGEST
    ):  # each row sees all distances to the first key
        shares = (distances[:, None] < pairs.rows.keys) * pairs.rows.weights
    return Cumulants(*values), shares / shares.sum()


def _of_alike(query: Vector, key: Vector) -> Cumulants:
    """Return mean and variance of vectors of alike components, of which one has mean 0: of them no distance knows."""
    identity = all(part.covariance.is_identity for vector in (query, key) for part in vector.sources.values())
    if not identity or query.mean * key.mean:
        return Cumulants(*np.full((4, 1), math.nan))
    variance = dot_covariance(query, key, query, key)
    return Cumulants(*np.array([[0.0], [variance], [math.nan], [math.nan]]))


def _paired(cell: Cell, pairs: TokenPairs, turning: _Turning) -> Block:
    """Return the scores of paired vectors of alike normal components of mean 0."""
    others = pairs.keys[1:]
    independent = all(not pairs.query.has_part_of(key) for key in others) and not cell.key.tokens
    if not independent or not all(_is_isotropic(vector) for vector in (pairs.query, *pairs.keys)):
        return _blank(pairs)
    made = blocks_of(pairs.query, pairs.keys[0], 2)
    if made is None or not all(part.is_gaussian for part in pairs.query.sources.values()):
        return _blank(pairs)
    partner = quadratic(made[0], made[1].turned(_turns(turning.angles, np.array([turning.ahead]))))
    rest = [dot_cumulants(pairs.query, key) for key in others]
    kinds = Cumulants(*(np.array([float(np.squeeze(kind[r])) for kind in (partner, *rest)]) for r in range(4)))
    return block_of_kinds(kinds, np.zeros((len(pairs.keys),) * 2), pairs.rows)


# Rows ----------------------------------------------------------------------------------------------


def _average_phase(angle: Array, n: Array) -> Array:
    """Return the mean of e^(i angle j) over j = 0 .. n - 1."""
    return np.exp(0.5j * angle * (n - 1)) * np.sin(n * angle / 2) / (n * np.sin(angle / 2))


def coherence(cell: Cell, keys: Array) -> Array:
    """Return the mean of tr R R' / d over the rotations R, R' of different ones of the first keys; 1 without rotation.

    Parameters
    ----------
    cell : Cell
    keys : array (n,)
        How many keys, each 2 at least or of no matter.
    """
    turning = _turning(cell)
    if turning is None or (cell.query.rotation is None and cell.key.rotation is None):
        return np.full(keys.shape, 1.0 if cell.key.rotation is None else math.nan)
    if keys.size * turning.angles.size > _LARGEST:
        return np.full(keys.shape, math.nan)
    squared = (abs(_average_phase(turning.angles, keys[:, None])) ** 2).mean(axis=1)
    return (keys * squared - 1) / np.maximum(keys - 1, 1)


class _Matrix(NamedTuple):
    """Symmetric 2 x 2 matrices by plane: u and u' of the module's notation."""

    real: Array
    turned: Array


def _matrices(variances: Array, mean: float) -> _Matrix:
    """Return diag(variances) + mean^2 11' by plane, of variances (planes, 2)."""
    half_sum, half_difference = variances.sum(axis=1) / 2, (variances[:, 0] - variances[:, 1]) / 2
    return _Matrix(half_sum + mean**2, half_difference + 1j * mean**2)


def _row_variances(cell: Cell, pairs: TokenPairs, turning: _Turning) -> Array:
    """Return the expected variance across the keys of the rows of each class, of independent sides."""
    query, key, other = pairs.query, pairs.keys[0], pairs.others[0]
    variances = [_variances(a, b) for a, b in ((query, query), (key, key), (key, other))]
    keys = pairs.rows.keys
    if any(v is None for v in variances) or len(keys) * len(turning.angles) > _LARGEST:
        return np.full(keys.shape, math.nan)
    of_query, of_key, of_keys = (v for v in variances if v is not None)
    second, first = _matrices(of_query, query.mean), _matrices(of_query, 0.0)
    n = keys[:, None].astype(float)
    angles = turning.angles
    # the mean of e^(-2i theta p) over the rows of a class, p the query's place
    if cell.causal:
        phases = np.exp(-2j * angles * (n - 1))
    else:
        phases = np.exp(-2j * angles * turning.ahead) * np.conj(_average_phase(2 * angles, np.array(cell.n_queries)))
    same, together = _average_phase(2 * angles, n) * phases, _average_phase(angles, n)

    def of_one_key(u: _Matrix, v: _Matrix) -> Array:
        return (2 * u.real * v.real + 2 * (np.conj(u.turned) * v.turned * same).real).sum(axis=1)

    def of_two_keys(u: _Matrix, v: _Matrix) -> Array:  # the same key twice included
        turned = 2 * (np.conj(u.turned) * v.turned * together**2 * phases).real
        return (2 * u.real * v.real * abs(together) ** 2 + turned).sum(axis=1)

    common, means = _matrices(of_keys, 0.0), _matrices(np.zeros_like(of_key), key.mean)
    less = np.maximum(keys - 1, 1)
    found = of_one_key(second, _matrices(of_key, 0.0))
    found = found - (keys * of_two_keys(second, common) - of_one_key(second, common)) / less
    found = found + (of_one_key(first, means) - of_two_keys(first, means)) * keys / less
    return found + _variance_of_means(cell, pairs, turning)


def _variances(a: Vector, b: Vector) -> Array | None:
    """Return the covariances of the components of two vectors by plane, None where others correlate too."""
    found = np.zeros((a.width // 2, 2))
    for name, weight in a.weights.items():
        runs = a.sources[name].covariance.runs
        if runs is None:
            return None
        counts, scales = runs
        found += (weight * b.weight(name) * np.repeat(scales, counts) ** 2).reshape(-1, 2)
    return found


def _variance_of_means(cell: Cell, pairs: TokenPairs, turning: _Turning) -> Array:
    """Return the variance of E s across the keys of a row, on average over the rows of each class."""
    keys = pairs.rows.keys
    if pairs.query.mean * pairs.keys[0].mean == 0:
        return np.zeros(keys.shape)
    distances, _ = _distances(cell, turning.ahead)
    if len(distances) * len(turning.angles) > _LARGEST:
        return np.full(keys.shape, math.nan)
    means = 2 * pairs.query.mean * pairs.keys[0].mean * np.cos(distances[:, None] * turning.angles).sum(axis=1)
    sums = np.cumsum(np.concatenate([[0.0], means - means.mean()]))
    squares = np.cumsum(np.concatenate([[0.0], (means - means.mean()) ** 2]))
    ends = np.arange(cell.n_queries) + (turning.ahead if cell.causal else cell.n_keys - 1) + 1
    n = keys if cell.causal else keys[0]
    within = squares[ends] - squares[ends - n] - (sums[ends] - sums[ends - n]) ** 2 / n
    of_rows = within / np.maximum(n - 1, 1)
    return of_rows if cell.causal else np.full(1, of_rows.mean())
