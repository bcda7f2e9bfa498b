"""Normalized vectors: what is known of their directions, and cosines of correlated normal vectors.

Divided by its length, a vector of independent normal components of mean 0 is uniform on the sphere, and independent
of its length. Of any exchangeable law symmetric in each component the direction u still has E u = 0 and
E uu' = I / d. Less its mean over the components ("layer") all happens in the d - 1 dimensions across (1, ..., 1), where
equal means and equal correlations of the components do not matter, and exchangeable components suffice for E uu'.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.cell import Cell
from sim.kinds import Choice
from sim.laws import LAWS, law_shape
from sim.side import Side
from sim.structure import INITS

__all__ = ["Direction", "cosine_moments", "direction", "explicit", "length_of", "linear", "probability_of_vector"]


class Direction(NamedTuple):
    """A random direction.

    Attributes
    ----------
    is_uniform : bool
        On the sphere; else only E u = 0 and E uu' are those of a uniform one.
    is_symmetric : bool
        Whether -u has the same law.
    dimensions : int
        d, or d - 1 where components sum to 0.
    is_centered : bool
        Whether the components sum to 0.
    probability : float
        That there is a direction: a vector may be zero, and stays so.
    """

    is_uniform: bool
    is_symmetric: bool
    dimensions: int
    is_centered: bool
    probability: float = 1.0


def explicit(cell: Cell) -> Cell:
    """Return the same scores as dot products: the cosine is that of vectors of length 1."""
    if cell.score.kind != "cosine":
        return cell
    sides = {}
    for name in ("query", "key"):
        side = getattr(cell, name)
        is_centered = side.normalize.kind == "layer"  # and stays so
        unit = Choice("layer", (("gain", cell.d_k**-0.5),)) if is_centered else Choice("l2", (("gain", 1.0),))
        sides[name] = side.model_copy(update={"normalize": unit})
    return cell.model_copy(update=sides | {"score": Choice("dot")})


def length_of(normalize: Choice, d: int) -> float:
    """Return the length of normalized vectors."""
    return float(normalize.get("gain")) * (1.0 if normalize.kind == "l2" else math.sqrt(d))


def _is_of_signs(side: Side) -> bool:
    return side.law.kind == "rademacher" or side.dependent.kind == "signs"


def linear(cell: Cell, side: Side) -> Side | None:
    """Return the side that, not normalized, is what normalizing makes of it; None where there is none.

    Signs, times whatever common magnitude and scales of their own, have a constant length, and so have constants.
    """
    normalize = side.normalize
    if normalize.kind == "none":
        return side
    if normalize.kind == "layer" or cell.projection or cell.pair.kind != "none":
        return None
    size = length_of(normalize, cell.d_k) / math.sqrt(cell.d_k)
    without = {"normalize": Choice("none")}
    if side.std == 0:
        return side.model_copy(update=without | {"mean": math.copysign(size, side.mean), "tokens": None})
    constant = side.within.kind in ("none", "power_law", "outliers") and side.mean == 0 and not side.tokens
    if _is_of_signs(side) and constant and probability_of_direction(side, cell.d_k, False) == 1:
        return side.model_copy(update=without | {"law": Choice("rademacher"), "dependent": Choice("none"), "std": size})
    return None


def direction(cell: Cell, side: Side) -> Direction | None:
    """Return what is known of the direction of a side's vectors, less their mean if they are to be centered."""
    centered = side.normalize.kind == "layer"
    d = cell.d_k
    across = d - 1 if centered else d
    if cell.projection:
        is_normal, found = INITS[cell.projection.init].law == "gaussian", probability_of_vector(cell, side)
        if cell.projection.tied or found is None:
            return None
        return Direction(is_normal, True, across, centered, found)
    alike = side.within.kind == "none" or (centered and side.within.kind == "equicorrelated")
    if not alike or side.std == 0 or not (centered or side.mean == 0):
        return None
    if side.law.kind == "gaussian" and side.dependent.kind in ("none", "magnitude"):
        return Direction(True, True, across, centered)
    probability = probability_of_vector(cell, side)
    symmetric = LAWS[side.law.kind].symmetric or side.dependent.kind == "signs"
    if probability is None or not (symmetric or centered):
        return None
    return Direction(False, symmetric, across, centered, probability)


def probability_of_vector(cell: Cell, side: Side) -> float | None:
    """Return the probability that a vector that is to be normalized is not zero: then it has a direction.

    None where it is below 1 and more than the law decides.
    """
    if not cell.projection:
        return probability_of_direction(side, cell.d_k, side.normalize.kind == "layer")
    if cell.projection.bias_std:
        return 1.0
    found = probability_of_direction(side, cell.projection.d_model, False)
    # of a token without a direction, query and key are zero at once
    return None if found != 1 and cell.projection.attention == "self" else found


def probability_of_direction(side: Side, d: int, centered: bool) -> float | None:
    """Return the probability that a vector is not zero, or has components that differ if it is to be centered.

    None where it is below 1 and more than the law decides.
    """
    kind = side.law.kind
    if LAWS[kind].discrete and not centered:
        return _probability_of_sums(side, d)
    if side.mean and not centered:
        return 1.0
    if side.dependent.kind == "signs":
        equal = 2 * 0.5**d if centered else 0.0
        zero = 1 - law_shape(side.law) if kind == "sparse" else 0.0
        found = (1 - zero) * (1 - equal)
    else:
        p = {"rademacher": 0.5, "two_point": law_shape(side.law)}.get(kind, 0.0)
        equal = p**d + (1 - p) ** d if centered and p else 0.0
        found = 1 - ((1 - law_shape(side.law)) ** d if kind == "sparse" else equal)
    unequal = centered and side.within.kind not in ("none", "equicorrelated")
    return None if found < 1 and (unequal or (side.tokens and side.tokens.rho)) else found


def _probability_of_sums(side: Side, d: int) -> float | None:
    """Return the probability that a vector of two values is not zero: that not all elements are one that is 0.

    None where elements are sums of several values that may cancel.
    """
    p = 0.5 if side.law.kind == "rademacher" else law_shape(side.law)
    values = (math.sqrt((1 - p) / p), p), (-math.sqrt(p / (1 - p)), 1 - p)
    if side.dependent.kind == "magnitude":
        return 1.0
    rho = side.tokens.rho if side.tokens else 0.0
    odds = ((1 - p) / p) ** 2
    if rho and (side.mean or any(math.isclose(rho, x / (1 + x), rel_tol=1e-6) for x in (odds, 1 / odds))):
        return None
    if not side.mean:
        return 1.0
    if side.within.kind != "none" or (side.dependent.kind == "signs" and p != 0.5):
        return None
    return 1 - sum(share**d for value, share in values if math.isclose(side.std * value, -side.mean, rel_tol=1e-6))


def cosine_moments(rho: float, dimensions: int) -> tuple[float, float]:
    """Return E c and E c^2 of the cosine c of two standard normal vectors of componentwise correlation rho.

    Those of the sample correlation about known means (Muirhead 1982, 5.1.3).
    """
    from scipy.special import hyp2f1, poch

    d = dimensions
    first = rho * 2 / d * poch(d / 2, 0.5) ** 2 * hyp2f1(0.5, 0.5, d / 2 + 1, rho**2)
    second = 1 - (1 - rho**2) * (d - 1) / d * hyp2f1(1, 1, d / 2 + 1, rho**2) if abs(rho) < 1 else 1.0
    return float(first), float(second)
