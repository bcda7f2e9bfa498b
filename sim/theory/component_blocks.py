"""Vectors as blocks of components, each a matrix times independent elements plus a mean: what cumulants are sums over.

Blocks stand beside each other, `counts` times each: of one component where covariances are diagonal, or are so in
common eigenvectors and the elements normal; of two in a rotation; of all components else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.kinds import Choice
from sim.theory.covariances import DENSE, covariance, spectra
from sim.theory.sources import Source, Vector

__all__ = ["Blocks", "blocks_of", "merged", "parts_of"]

Array = np.ndarray

_MOST = 2**17  # different blocks


class Blocks(NamedTuple):
    """A vector P u + mu in blocks of components; what comes first in a shape is of different vectors.

    Attributes
    ----------
    counts : array (blocks,)
        How often each block stands there.
    factors : array (..., blocks, components, elements)
        P.
    means : array (..., blocks, components)
        mu.
    k3, k4 : array (elements,)
    v2 : float
    names : tuple of str
        The sources, each of the same number of elements, in order.
    """

    counts: Array
    factors: Array
    means: Array
    k3: Array
    k4: Array
    v2: float
    names: tuple[str, ...]

    def turned(self, turns: Array) -> Blocks:
        """Return the blocks multiplied by matrices (..., blocks, components, components)."""
        return self._replace(factors=turns @ self.factors, means=(turns @ self.means[..., None])[..., 0])


def parts_of(vector: Vector) -> list[Source]:
    """Return the sources that have part in a vector."""
    return [vector.sources[name] for name, weight in vector.weights.items() if weight]


def merged(vector: Vector) -> Vector:
    """Return the vector with sources of equal covariance put into one: the same law, if nothing shares them.

    The cumulants of independent elements add; of magnitudes, E v^2 is that of v = sum weight^2 r^2.
    """
    groups: dict[object, list[str]] = {}
    for name, weight in vector.weights.items():
        if weight:
            groups.setdefault(vector.sources[name].covariance, []).append(name)
    sources, weights = {}, {}
    for names in groups.values():
        size = math.sqrt(math.fsum(vector.weights[name] ** 2 for name in names))
        shares = [(vector.weights[name] / size, vector.sources[name]) for name in names]
        sources[names[0]] = Source(
            covariance=shares[0][1].covariance,
            elements=(math.nan,) * 9,
            v2=1 + sum(share**4 * (part.v2 - 1) for share, part in shares),
            k3=sum(share**3 * part.k3 for share, part in shares),
            k4=sum(share**4 * part.k4 for share, part in shares),
            is_normal=all(part.is_normal for _, part in shares),
        )
        weights[names[0]] = size
    return Vector(vector.width, vector.mean, sources, weights)


def blocks_of(a: Vector, b: Vector, size: int = 1, largest: int = DENSE) -> tuple[Blocks, Blocks] | None:
    """Return two vectors in blocks that fit each other; None where these would be larger than `largest`.

    `size` is the number of components in a block of diagonal covariances.
    """
    parts = [*parts_of(a), *parts_of(b)]
    plain = covariance(Choice("none"), a.width)
    diagonal = all(part.covariance.runs for part in parts)
    # normal elements may be those of the eigenvectors
    in_eigenvectors = size == 1 and all(part.is_normal for part in parts)
    found = spectra(*(part.covariance for part in parts), plain) if diagonal or in_eigenvectors else None
    if found:
        counts, eigenvalues, ones = found
        scales = [np.sqrt(values) for values in eigenvalues]
        if size > 1:
            scales, ones = [np.repeat(scale, counts) for scale in scales], np.repeat(ones, counts)
            counts = np.ones(a.width // size, int)
        factors = [scale.reshape(len(counts), size, 1) * np.eye(size) for scale in scales[:-1]]
        means = ones.reshape(len(counts), size)
    elif size == 1 and a.width <= largest:
        counts, means = np.ones(1, int), np.ones((1, a.width))
        factors = [part.covariance.matrix[None] for part in parts]
    else:
        return None
    if len(counts) > _MOST:
        return None
    of_a = len(parts_of(a))
    return _blocks(a, factors[:of_a], counts, means), _blocks(b, factors[of_a:], counts, means)


def _blocks(vector: Vector, factors: list[Array], counts: Array, means: Array) -> Blocks:
    names = [name for name, weight in vector.weights.items() if weight]
    parts = parts_of(vector)
    weighted = [vector.weights[name] * factor for name, factor in zip(names, factors, strict=True)]
    of_magnitudes = [part.v2 for part in parts if not part.is_independent]
    return Blocks(
        counts=counts,
        factors=np.concatenate([np.zeros((*means.shape, 0)), *weighted], axis=-1),
        means=vector.mean * means,
        k3=np.repeat([part.k3 for part in parts], means.shape[1]),
        k4=np.repeat([part.k4 for part in parts], means.shape[1]),
        # magnitudes of several sources do not fold into one number
        v2=1.0 if not of_magnitudes else of_magnitudes[0] if len(parts) == 1 else math.nan,
        names=tuple(names),
    )
