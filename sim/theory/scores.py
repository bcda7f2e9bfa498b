"""Closed forms of the scores of a cell: what score function, structure and scale make of mean, variance and shape.

Raw scores are a mixture of a few kinds (:mod:`sim.theory.mixtures`), whose cumulants follow from those of independent
elements (:mod:`sim.theory.cumulants`) or from the vectors' directions and lengths. A linear scale multiplies them; a
soft cap averages tanh over their exact law, or over a normal one corrected by their third and fourth cumulants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sim.blas import one_blas_thread
from sim.cell import Cell
from sim.laws import LAWS, law_shape
from sim.scales import Rule
from sim.side import Side
from sim.theory.additive_scores import additive_block, additive_limit
from sim.theory.cumulants import Cumulants, dot_cumulants
from sim.theory.directions import explicit, linear
from sim.theory.distributions import Distribution, score_distribution
from sim.theory.mixtures import Block, ScoreMoments, block_of_kinds
from sim.theory.normalized_scores import normalized_block
from sim.theory.projected_scores import projected_block
from sim.theory.rotated_scores import rotated_block
from sim.theory.soft_caps import capped, capped_limit
from sim.theory.sources import dot_covariance
from sim.theory.token_pairs import token_pairs

__all__ = ["Distribution", "ScaledTheory", "ScoreTheory", "finite_moments", "scaled_theory", "score_theory"]


_BLANK = ScoreMoments()


@dataclass(frozen=True)
class ScoreTheory(ScoreMoments):
    """What is known of the raw scores of a cell: exact moments, NaN (or None) where nothing is.

    Attributes
    ----------
    moments : float
        How many moments of the score are finite.
    distribution : function x -> (P(s < x), P(s <= x)), or None
        Of every score.
    limit : ScoreMoments
        Approximations, right to 5 %, of some that have no exact form.
    """

    moments: float = math.nan
    distribution: Distribution | None = None
    limit: ScoreMoments = _BLANK


class ScaledTheory(NamedTuple):
    """What is known of the scores after the scale rule: exact moments, limits right to 5 %, and how many are finite."""

    exact: ScoreMoments
    limit: ScoreMoments
    moments: float


def score_theory(cell: Cell) -> ScoreTheory:
    """Return the closed forms of a cell's raw score."""
    made, limit = _blocks(cell)
    finite = finite_moments(cell)
    exact = _finite(made.moments(), finite)
    return ScoreTheory(
        mean=exact.mean,
        variance=exact.variance,
        row_variance=exact.row_variance,
        skewness=exact.skewness,
        excess_kurtosis=exact.excess_kurtosis,
        moments=finite,
        distribution=score_distribution(cell) if exact.variance > 0 or finite < 2 else None,
        limit=_finite(limit.moments(), finite) if limit else ScoreMoments(),
    )


def scaled_theory(cell: Cell, rule: Rule) -> ScaledTheory:
    """Return the closed forms of a cell's scores after a scale rule."""
    made, limit = _blocks(cell)
    finite = finite_moments(cell)
    if rule.factor == 0:
        several = bool((made.keys > 1).any())
        zero = ScoreMoments(mean=0.0, variance=0.0, row_variance=0.0 if several else math.nan)
        return ScaledTheory(zero, ScoreMoments(), math.inf)
    if rule.cap != math.inf:
        return _capped(cell, rule, limit or made, finite)
    factors = rule.factor * np.log(made.keys) if rule.log_n else np.full(made.keys.shape, rule.factor)
    exact = _finite(made.moments(factors), finite)
    return ScaledTheory(exact, _finite(limit.moments(factors), finite) if limit else ScoreMoments(), finite)


def _finite(moments: ScoreMoments, finite: float) -> ScoreMoments:
    """Return the moments without those that need more than `finite` moments of a score."""
    orders = {"mean": 1, "variance": 2, "row_variance": 2, "skewness": 3, "excess_kurtosis": 4}
    return replace(moments, **{name: math.nan for name, order in orders.items() if finite < order})


def finite_moments(cell: Cell) -> float:
    """Return how many moments of a raw score are finite.

    A score of independent vectors has as many as the elements of each; one that multiplies a vector with itself half as
    many. Bounded scores have all.
    """
    if not cell.has_vectors:
        law = cell.score.get("law")
        return float(LAWS[law.kind].finite(law_shape(law)))
    if cell.score.kind == "additive":
        return math.inf
    cell = explicit(cell)
    query, key = (_finite_of_side(side) for side in (cell.query, cell.key))
    rho = cell.pair.get("rho", 0.0)
    if rho:
        key = min(query, key)
    bounded = [side.normalize.kind != "none" for side in (cell.query, cell.key)]
    itself = rho or (cell.projection and cell.projection.attention == "self")
    if itself and not any(bounded) and cell.query.std and cell.key.std:
        query = query // 2 if math.isfinite(query) else query
    return min(math.inf if is_bounded else finite for finite, is_bounded in zip((query, key), bounded, strict=True))


def _finite_of_side(side: Side) -> float:
    if side.std == 0:
        return math.inf
    of_law = float(LAWS[side.law.kind].finite(law_shape(side.law)))
    if side.dependent.kind == "magnitude":
        return min(of_law, math.ceil(side.dependent.get("df")) - 1)
    return of_law


@lru_cache(256)
def _blocks(cell: Cell) -> tuple[Block, Block | None]:
    """Return the raw scores of a cell, and those by limits where it has such."""
    if not cell.has_vectors:
        return _iid_block(cell), None
    cell = explicit(cell)
    if cell.score.kind == "additive":
        return additive_block(cell), additive_limit(cell)
    with one_blas_thread():
        made = _dot_block(cell)
    if is_symmetric(cell):
        zero = np.zeros_like(made.kinds.third)
        made = replace(made, kinds=made.kinds._replace(third=zero))
    return made, None


def _dot_block(cell: Cell) -> Block:
    """Return the dot products of a cell, by what was done to the vectors last."""
    query, key = linear(cell, cell.query), linear(cell, cell.key)
    if query is None or key is None:
        sides = {"query": query or cell.query, "key": key or cell.key}
        return normalized_block(cell.model_copy(update=sides))
    if cell.projection:
        return projected_block(cell)
    cell = cell.model_copy(update={"query": query, "key": key})
    if query.rotation or key.rotation:
        return rotated_block(cell)
    pairs = token_pairs(cell)
    kinds = [dot_cumulants(pairs.query, k) for k in pairs.keys]
    covariances = [[dot_covariance(pairs.query, k, pairs.query, other) for other in pairs.others] for k in pairs.keys]
    stacked = Cumulants(*(np.array([float(kind[r]) for kind in kinds]) for r in range(4)))
    return block_of_kinds(stacked, np.array(covariances), pairs.rows)


def _iid_block(cell: Cell) -> Block:
    law = cell.score.get("law")
    _, second, third, fourth, *_ = LAWS[law.kind].moments(law_shape(law))
    kinds = Cumulants(np.zeros(1), np.array([second]), np.array([third]), np.array([fourth - 3 * second**2]))
    rows = token_pairs(cell).rows
    return block_of_kinds(kinds, np.zeros((1, 1)), rows)


def is_symmetric(cell: Cell) -> bool:
    """Whether -s has the law of s: one side has, independently of the other, or matrices of its own."""
    if not cell.has_vectors:
        return LAWS[cell.score.get("law").kind].symmetric
    if cell.score.kind == "additive" or (cell.projection and not cell.projection.tied):
        return True
    if (cell.projection and cell.projection.attention == "self") or not token_pairs(cell).are_independent:
        return False
    return any(_is_symmetric_side(cell, side) for side in (cell.query, cell.key))


def _is_symmetric_side(cell: Cell, side: Side) -> bool:
    """Whether -x has the law of x; the layer normalization of a vector takes its mean away first."""
    law = LAWS[side.law.kind].symmetric or side.dependent.kind == "signs" or side.std == 0
    return law and (side.mean == 0 or (side.normalize.kind == "layer" and not cell.projection))


def _are_centered(cell: Cell) -> bool:
    """Whether a key may change sign by itself: then no odd functions of two scores of a row correlate."""
    if not cell.has_vectors:
        return LAWS[cell.score.get("law").kind].symmetric
    key = cell.key
    alone = not (key.tokens and key.tokens.rho) and cell.score.kind != "additive"
    if cell.projection and (cell.projection.bias_std or cell.projection.attention == "self"):
        return False
    return alone and token_pairs(cell).are_independent and _is_symmetric_side(cell, key)


def _capped(cell: Cell, rule: Rule, block: Block, finite: float) -> ScaledTheory:
    exact, limit, centered = capped(score_distribution(cell), rule), ScoreMoments(), _are_centered(cell)
    mean, variance = (np.asarray(value) for value in block.kinds[:2])
    if not variance.any() and np.ptp(mean) == 0:
        exact = ScoreMoments(mean=rule.cap * math.tanh(rule.factor * mean[0] / rule.cap), variance=0.0)
    elif is_symmetric(cell):
        exact = replace(exact, mean=0.0, skewness=0.0)
    if centered and (block.keys > 1).any() and len(mean) == 1:
        exact = replace(exact, row_variance=exact.variance)
    if finite >= 4 and cell.has_vectors:
        on_lattice = LAWS[cell.query.law.kind].discrete or LAWS[cell.key.law.kind].discrete
        limit = capped_limit(block, rule, cell.d_k, centered, on_lattice)
    return ScaledTheory(exact, limit, math.inf)
