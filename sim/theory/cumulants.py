"""The first four cumulants of a dot product, where they have a closed form.

Notation: x = P u + mu and y = R w + nu with independent elements u, w of cumulants k3, k4 and, for all elements of a
vector together, v2 = E v^2 of their variance v given the magnitude; C = P'R, a = P'nu, b = R'mu, G = CC', H = C'C.
Then x.y - E x.y = a'u + b'w + u'Cw, and its moments follow from E u_i u_j u_k u_l. P and R stand as blocks beside
each other, `counts` times each: of one component where covariances are diagonal, of two in a rotation, of all else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.theory.component_blocks import Blocks, blocks_of, merged, parts_of
from sim.theory.covariances import aligned
from sim.theory.sources import Vector, dot_covariance, dot_mean

__all__ = ["Cumulants", "bilinear", "dot_cumulants", "quadratic", "square_moments"]

Array = np.ndarray

_LARGEST_PAIR = 512  # components of dependent vectors without common eigenvectors
_LONGEST = 2**17  # different components of dependent ones with independent components


class Cumulants(NamedTuple):
    """The first four cumulants of a score, NaN where one is not known; numbers, or arrays of them."""

    mean: Array
    variance: Array
    third: Array
    fourth: Array


def dot_cumulants(a: Vector, b: Vector) -> Cumulants:
    """Return the cumulants of a.b: mean and variance always, the others where they have a closed form.

    For independent vectors any law will do, for dependent ones normal laws, or any with independent components.
    """
    third = fourth = np.array(math.nan)
    parts = [*parts_of(a), *parts_of(b)]
    if not a.has_part_of(b):
        if pair := blocks_of(merged(a), merged(b)):
            _, _, third, fourth = bilinear(*pair)
    elif all(part.is_gaussian for part in parts):
        if pair := blocks_of(a, b, largest=_LARGEST_PAIR):
            _, _, third, fourth = quadratic(*pair)
    elif all(part.covariance.runs and part.is_independent for part in parts):
        third, fourth = _product_cumulants(a, b)
    return Cumulants(np.array(dot_mean(a, b)), np.array(dot_covariance(a, b, a, b)), third, fourth)


def _transposed(matrix: Array) -> Array:
    return np.swapaxes(matrix, -1, -2)


def _times(matrix: Array, vector: Array) -> Array:
    return (matrix @ vector[..., None])[..., 0]


def bilinear(x: Blocks, y: Blocks) -> Cumulants:
    """Return the cumulants of x.y for independent vectors."""
    c = _transposed(x.factors) @ y.factors
    a, b = _times(_transposed(x.factors), y.means), _times(_transposed(y.factors), x.means)
    a, b = np.broadcast_to(a, c.shape[:-1]), np.broadcast_to(b, (*c.shape[:-2], c.shape[-1]))
    counts, c2 = x.counts, c * c
    g, h = c2.sum(-1), c2.sum(-2)  # the diagonals of G and H
    forward, back = _times(c, b), _times(_transposed(c), a)

    def total(values: Array) -> Array:  # over elements and blocks
        return values.sum(-1) @ counts

    def over(left: Array, matrix: Array, right: Array) -> Array:  # left' matrix right, over blocks
        return total(left * _times(matrix, np.broadcast_to(right, (*matrix.shape[:-2], matrix.shape[-1]))))

    size_a, size_b, size_c = total(a**2), total(b**2), total(g)
    k3x, k4x, k3y, k4y = x.k3, x.k4, y.k3, y.k4
    third = total(k3x * (a**3 + 3 * a * g)) + total(k3y * (b**3 + 3 * b * h)) + 6 * total(a * forward)
    fourth = (
        total(k4x * (a**4 + 6 * a**2 * g + 3 * y.v2 * g**2))
        + total(k4y * (b**4 + 6 * b**2 * h + 3 * x.v2 * h**2))
        + 12 * (x.v2 * total(back**2) + y.v2 * total(forward**2))
        + 12 * (total(k3x * forward * (a**2 + y.v2 * g)) + total(k3y * back * (b**2 + x.v2 * h)))
        + 6 * x.v2 * y.v2 * _square_of_products(c) @ counts
        # a magnitude common to all blocks
        + 3 * ((x.v2 - 1) * (size_a**2 + 2 * size_a * size_c) + (y.v2 - 1) * (size_b**2 + 2 * size_b * size_c))
        + 3 * (x.v2 * y.v2 - 1) * size_c**2
    )
    if (k3x != 0).any() and (k3y != 0).any():
        third = third + over(k3x, c2 * c, k3y)
        fourth = fourth + 12 * over(k3x * a, c2, k3y * b)
    if (k4x != 0).any() or (k4y != 0).any():
        c3 = c2 * c
        fourth = fourth + 4 * (over(k4x * a, c3, k3y) + over(k3x, c3, k4y * b)) + over(k4x, c2 * c2, k4y)
    return Cumulants(_dot_of_means(x, y), size_a + size_b + size_c, third, fourth)


def _dot_of_means(x: Blocks, y: Blocks) -> Array:
    """Return the dot product of the means."""
    return (x.means * y.means).sum(-1) @ x.counts


def _square_of_products(c: Array) -> Array:
    """Return tr (CC')^2 of each block."""
    small = c if c.shape[-2] >= c.shape[-1] else _transposed(c)
    product = _transposed(small) @ small
    return np.einsum("...ij,...ij->...", product, product)


def quadratic(x: Blocks, y: Blocks) -> Cumulants:
    """Return the cumulants of x.y for jointly normal vectors (Mathai and Provost 1992).

    With A = [[0, I], [I, 0]] / 2, V the covariance and m the mean of both vectors together,
    kappa_r = 2^(r-1) (r-1)! [tr (AV)^r + r m'(AV)^(r-1) A m].
    """
    px, py, cross = _second_moments(x, y)
    av = (
        np.concatenate(
            [
                np.concatenate([_transposed(cross), py], axis=-1),
                np.concatenate([px, cross], axis=-1),
            ],
            axis=-2,
        )
        / 2
    )
    means = np.concatenate(np.broadcast_arrays(x.means, y.means), axis=-1)
    swapped = np.concatenate(np.broadcast_arrays(y.means, x.means), axis=-1) / 2  # A m
    square = av @ av
    powers = [swapped]
    for _ in range(3):
        powers.append(_times(av, powers[-1]))
    traces = [
        np.trace(av, axis1=-2, axis2=-1),
        np.trace(square, axis1=-2, axis2=-1),
        (square * _transposed(av)).sum((-2, -1)),
        (square * _transposed(square)).sum((-2, -1)),
    ]
    first, second, third, fourth = (
        2 ** (r - 1) * math.factorial(r - 1) * (trace + r * (means * power).sum(-1)) @ x.counts
        for r, trace, power in zip(range(1, 5), traces, powers, strict=True)
    )
    return Cumulants(first, second, third, fourth)


def _second_moments(x: Blocks, y: Blocks) -> tuple[Array, Array, Array]:
    """Return the covariances of x, of y, and of x with y, in blocks."""
    px, py = x.factors @ _transposed(x.factors), y.factors @ _transposed(y.factors)
    cross = np.zeros(np.broadcast_shapes(px.shape, py.shape))
    for name in set(x.names) & set(y.names):
        left, right = (
            np.split(vector.factors, len(vector.names), axis=-1)[vector.names.index(name)] for vector in (x, y)
        )
        cross = cross + left @ _transposed(right)
    return np.broadcast_to(px, cross.shape), np.broadcast_to(py, cross.shape), cross


def _product_cumulants(a: Vector, b: Vector) -> tuple[Array, Array]:
    """Return the third and fourth cumulant for independent components: those of a_i b_i add.

    From the joint moments of a_i and b_i about their means, so that no large constant is left to cancel.
    """
    names = list(dict.fromkeys([*a.weights, *b.weights]))
    sources = {**a.sources, **b.sources}
    counts, scales = aligned(*(run for name in names if (run := sources[name].covariance.runs)))
    if len(counts) > _LONGEST:
        return np.array(math.nan), np.array(math.nan)
    joint = np.zeros((5, 5, len(counts)))
    joint[0, 0] = 1.0
    for name, scale in zip(names, scales, strict=True):
        joint = _with_source(joint, a.weight(name) * scale, b.weight(name) * scale, sources[name].elements)
    raw = [_power_of_product(r, a.mean, b.mean, joint) for r in range(5)]
    m2 = raw[2] - raw[1] ** 2
    m3 = raw[3] - 3 * raw[2] * raw[1] + 2 * raw[1] ** 3
    m4 = raw[4] - 4 * raw[3] * raw[1] + 6 * raw[2] * raw[1] ** 2 - 3 * raw[1] ** 4
    return counts @ m3, counts @ (m4 - 3 * m2**2)


def _with_source(joint: Array, p: Array, r: Array, elements: tuple[float, ...]) -> Array:
    """Return E (X + p z)^i (Y + r z)^j from E X^i Y^j, for i, j = 0 .. 4 and z independent of X and Y."""
    found = np.zeros_like(joint)
    for i, j in np.ndindex(5, 5):
        for k, m in np.ndindex(i + 1, j + 1):
            weight = math.comb(i, k) * math.comb(j, m) * p**k * r**m
            if weight.any() and elements[k + m]:
                found[i, j] += weight * elements[k + m] * joint[i - k, j - m]
    return found


def _power_of_product(r: int, mu: float, nu: float, joint: Array) -> Array:
    """Return E (mu Y + nu X + XY)^r from E X^i Y^j, by the multinomial theorem."""
    total = np.zeros(joint.shape[-1])
    for i in range(r + 1):
        for j in range(r - i + 1):
            k = r - i - j  # powers of mu Y, of nu X, of XY
            ways = math.factorial(r) // (math.factorial(i) * math.factorial(j) * math.factorial(k))
            if weight := ways * mu**i * nu**j:
                total += weight * joint[j + k, i + k]
    return total


def square_moments(x: Vector) -> Array | None:
    """Return E F, E NF, E N^2 F and E F^2 of N = sum x_i^2 and F = sum x_i^4.

    None unless the components are independent.
    """
    parts = parts_of(x)
    if not all(part.covariance.runs and part.is_independent for part in parts):
        return None
    counts, scales = aligned(
        *(part.covariance.runs for part in parts if part.covariance.runs), (np.array([x.width]), np.ones(1))
    )
    names = [name for name, weight in x.weights.items() if weight]
    power = np.zeros((9, len(counts)))
    power[:] = x.mean ** np.arange(9)[:, None]
    for name, scale in zip(names, scales, strict=False):
        power = _plus_source(power, x.weights[name] * scale, x.sources[name].elements)
    a, b = power[2], power[4]  # of x^2 and x^4
    mean_n, mean_f = counts @ a, counts @ b
    nn, nf, ff = counts @ (b - a**2), counts @ (power[6] - a * b), counts @ (power[8] - b**2)
    nnf = counts @ (power[8] - 2 * power[6] * a - b**2 + 2 * a**2 * b)
    return np.array(
        [
            mean_f,
            nf + mean_n * mean_f,
            nnf + 2 * nf * mean_n + (nn + mean_n**2) * mean_f,
            ff + mean_f**2,
        ]
    )


def _plus_source(power: Array, p: Array, elements: tuple[float, ...]) -> Array:
    """Return E (X + p z)^r from E X^r, for r = 0 .. 8 and z independent of X."""
    return np.array([sum(math.comb(r, k) * p**k * elements[k] * power[r - k] for k in range(r + 1)) for r in range(9)])
