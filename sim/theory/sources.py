"""Vectors as sums of independent sources, and the moments of their dot products.

A source t is A_t z_t r_t: independent standardised elements z with cumulants k3 and k4, a common magnitude r with
E r^2 = 1 (1 but for dependent components), and the covariance S_t = A_t A_t' (:mod:`sim.theory.covariances`). A vector
is a constant for every component plus a weighted sum of sources; two vectors depend on each other by the sources that
they share. So whatever makes vectors dependent (tokens, pairs, attention to oneself) is only a matter of weights, and
one formula holds for the covariance of any two dot products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

from sim.kinds import Choice
from sim.laws import LAWS, law_shape
from sim.side import Side
from sim.theory.covariances import Covariance, componentwise, covariance, trace_product

__all__ = ["Source", "Vector", "dot_covariance", "dot_mean", "fourth_moment", "side_source"]


@dataclass(frozen=True)
class Source:
    """Independent standardised elements with a common magnitude and a covariance.

    Attributes
    ----------
    elements : tuple of float
        E z^0 .. E z^8; NaN where they are not finite.
    v2 : float
        E r^4.
    k3, k4 : float
        Third and fourth cumulants of z, times E r^3 and E r^4.
    is_normal : bool
        Whether z is normal.
    """

    covariance: Covariance
    elements: tuple[float, ...]
    v2: float
    k3: float
    k4: float
    is_normal: bool

    @property
    def is_gaussian(self) -> bool:
        """Whether the vector is normal."""
        return self.is_normal and self.is_independent

    @property
    def is_independent(self) -> bool:
        """Whether there is no common magnitude."""
        return self.v2 == 1


@dataclass(frozen=True)
class Vector:
    """A vector of `width` components: `mean` in each, plus sources by name with their weights."""

    width: int
    mean: float
    sources: Mapping[str, Source] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def weight(self, name: str) -> float:
        """Return the weight of a source, 0 where it has no part."""
        return self.weights.get(name, 0.0)

    def scaled(self, factor: float) -> dict[str, float]:
        """Return the weights times a factor."""
        return {name: factor * weight for name, weight in self.weights.items()}

    def has_part_of(self, other: Vector) -> bool:
        """Whether the vectors share a source."""
        return any(self.weight(name) * other.weight(name) for name in self.weights)


def _magnitude_moments(df: float) -> tuple[float, float]:
    """Return E r^3 and E r^4 of the multivariate t: r^2 = (df - 2) / chi^2_df, or df / chi^2_df to df = 2."""
    from scipy.special import beta

    half_scale = (df - 2 if df > 2 else df) / 2
    third = half_scale**1.5 * beta(df / 2 - 1.5, 1.5) / math.gamma(1.5) if df > 3 else math.inf
    return float(third), (df - 2) / (df - 4) if df > 4 else math.inf


@lru_cache(1024)
def source(law: Choice, dependent: Choice, within: Choice, width: int) -> Source:
    """Return the source of vectors of this law and structure."""
    elements = _finite(LAWS[law.kind].moments(law_shape(law)))
    r3, r4 = 1.0, 1.0
    if dependent.kind == "magnitude":
        r3, r4 = _magnitude_moments(float(dependent.get("df")))
    elif dependent.kind == "signs":  # signs, with the magnitude |z| of the law
        r4 = elements[4]
        elements = _finite(LAWS["rademacher"].moments(0.0))
    r3, r4 = (r if math.isfinite(r) else math.nan for r in (r3, r4))
    return Source(
        covariance=covariance(within, width),
        elements=elements,
        v2=r4,
        k3=elements[3] * r3 if elements[3] else 0.0,
        k4=(elements[4] - 3) * r4 if elements[4] != 3 else 0.0,
        is_normal=law.kind == "gaussian" and dependent.kind != "signs",
    )


def _finite(moments: Sequence[float]) -> tuple[float, ...]:
    """Return E z^0 and the moments; NaN in place of infinity, which NumPy would warn of."""
    found = (1.0, *(moment if math.isfinite(moment) else math.nan for moment in moments))
    return found + (math.nan,) * (9 - len(found))


def side_source(side: Side, width: int) -> Source:
    """Return the source of one side's vectors."""
    return source(side.law, side.dependent, side.within, width)


def dot_mean(a: Vector, b: Vector) -> float:
    """Return E a.b."""
    return a.width * (a.mean * b.mean + sum(weight * b.weight(name) for name, weight in a.weights.items()))


def dot_covariance(a: Vector, b: Vector, c: Vector, d: Vector) -> float:
    """Return Cov(a.b, c.d).

    In the elements z both are quadratic forms, with blocks M_tu = (a_t b_u + a_u b_t) / 2 A_t'A_u and linear parts
    m_t = (a_t mean_b + b_t mean_a) A_t'1. Between independent elements Cov(z'Mz + m'z, z'Nz + n'z) is
    2 tr MN + sum k4 M_ii N_ii + k3 (M_ii n_i + N_ii m_i) + m.n; a magnitude adds (E r^4 - 1)(tr M_tt tr N_tt +
    2 tr M_tt N_tt).
    """
    sources = {**a.sources, **b.sources, **c.sources, **d.sources}
    m, n = _form(a, b, sources), _form(c, d, sources)
    total = 0.0
    for (t, u), weight in m.blocks.items():
        if product := weight * n.blocks.get((t, u), 0.0):
            total += 2 * product * trace_product(sources[t].covariance, sources[u].covariance)
    for t, part in sources.items():
        of_t = part.covariance
        m_tt, n_tt, m_t, n_t = m.blocks.get((t, t), 0.0), n.blocks.get((t, t), 0.0), m.linear[t], n.linear[t]
        if m_tt * n_tt and part.v2 != 1:
            total += m_tt * n_tt * (part.v2 - 1) * (of_t.width**2 + 2 * trace_product(of_t, of_t))
        if m_tt * n_tt and part.k4:
            total += m_tt * n_tt * part.k4 * of_t.over_columns(squares=2)
        if (m_tt * n_t or n_tt * m_t) and part.k3:
            total += (m_tt * n_t + n_tt * m_t) * part.k3 * of_t.over_columns(squares=1, sums=1)
        if m_t * n_t:
            total += m_t * n_t * of_t.total
    return total


@dataclass(frozen=True)
class _Form:
    blocks: dict[tuple[str, str], float]
    linear: dict[str, float]


def _form(a: Vector, b: Vector, sources: Mapping[str, Source]) -> _Form:
    pairs = {(t, u): (a.weight(t) * b.weight(u) + a.weight(u) * b.weight(t)) / 2 for t in sources for u in sources}
    return _Form(
        blocks={names: weight for names, weight in pairs.items() if weight},
        linear={t: a.weight(t) * b.mean + b.weight(t) * a.mean for t in sources},
    )


def fourth_moment(a: Vector, b: Vector, c: Vector, d: Vector) -> float:
    """Return the sum over components of E a_i b_i c_i d_i."""
    vectors = (a, b, c, d)
    sources = {name: part for vector in vectors for name, part in vector.sources.items()}
    total = a.width * math.prod(vector.mean for vector in vectors)
    for x, y in combinations(range(4), 2):  # two components that vary, and two means
        means = math.prod(vectors[i].mean for i in range(4) if i not in (x, y))
        if means:
            total += means * (dot_mean(vectors[x], vectors[y]) - a.width * vectors[x].mean * vectors[y].mean)
    for left_out in range(4):
        rest = [vector for i, vector in enumerate(vectors) if i != left_out]
        total += vectors[left_out].mean * _joint_cumulants(rest, sources)
    return total + _joint_cumulants(list(vectors), sources) + _gaussian_part(vectors, sources)


def _joint_cumulants(vectors: list[Vector], sources: Mapping[str, Source]) -> float:
    """Return the sum over components of the third or fourth cumulants that the elements' own make."""
    order = len(vectors)
    total = 0.0
    for name, part in sources.items():
        cumulant = {3: part.k3, 4: part.k4}[order]
        if (weight := math.prod(vector.weight(name) for vector in vectors)) and cumulant:
            sums = part.covariance.over_columns(**{{3: "cubes", 4: "fourths"}[order]: 1})
            total += weight * cumulant * sums
    return total


def _gaussian_part(vectors: tuple[Vector, ...], sources: Mapping[str, Source]) -> float:
    """Return the sum over components of the fourth moments by Isserlis's theorem, and what magnitudes add."""
    a, b, c, d = vectors
    total = 0.0
    for t, of_t in sources.items():
        for u, of_u in sources.items():
            pairings = sum(
                w.weight(t) * x.weight(t) * y.weight(u) * z.weight(u)
                for w, x, y, z in ((a, b, c, d), (a, c, b, d), (a, d, b, c))
            )
            if pairings:
                second = of_t.v2 if t == u else 1.0
                total += pairings * second * componentwise(of_t.covariance, of_u.covariance)
    return total
