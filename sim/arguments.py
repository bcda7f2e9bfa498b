"""A cell as the kernels take it: codes, numbers and tables in the precision of its scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sim.block import Draw
from sim.cell import Cell
from sim.cell import Side as SideFields
from sim.draw import LAW_CODES
from sim.kinds import Choice
from sim.laws import LAWS, law_shape
from sim.philox import KEY, QUERY, WEIGHTS
from sim.scales import Rule
from sim.structure import INITS
from sim.theory.covariances import covariance
from sim.tiles import TILE
from sim.vectors import (
    AR1,
    DIAGONAL,
    EQUICORRELATED,
    GIVEN,
    L2,
    LAYER,
    MAGNITUDES,
    PAIRED,
    RMS,
    SHARING,
    SIGNS,
    Pair,
    Side,
)
from sim.views import (
    ADDITIVE,
    AT_BOTH,
    AT_QUERY,
    AT_SCORES,
    BFLOAT16,
    COSINE,
    DOT,
    FLOAT16,
    IID,
    Score,
    Transform,
)

__all__ = ["draw_of", "fixed_rule", "given_side", "has_own_view"]

_DEPENDENT = {"none": 0, "magnitude": MAGNITUDES, "signs": SIGNS}
_WITHIN = {
    "none": 0,
    "power_law": DIAGONAL,
    "outliers": DIAGONAL,
    "equicorrelated": EQUICORRELATED,
    "ar1": AR1,
}
_NORMALIZE = {"none": 0, "l2": L2, "rms": RMS, "layer": LAYER}
_PAIR = {"none": 0, "paired": PAIRED, "shared": SHARING}
_SCORE = {"dot": DOT, "cosine": COSINE, "additive": ADDITIVE, "iid": IID}
_ROUNDING = {"float16": FLOAT16, "bfloat16": BFLOAT16}
_PLACE = {"scores": AT_SCORES, "query": AT_QUERY, "both": AT_BOTH}


def fixed_rule(cell: Cell, rule: Rule) -> Rule:
    """Return a rule with ln n in its factor, unless the rows of the cell see different numbers of keys."""
    if not rule.log_n or (cell.causal and cell.n_queries > 1):
        return rule
    return rule._replace(factor=rule.factor * math.log(cell.n_keys), log_n=False)


def has_own_view(cell: Cell, rule: Rule) -> bool:
    """Return whether a rule of :func:`fixed_rule` is more than a factor on the raw scores that all rules share."""
    return rule.log_n or math.isfinite(rule.cap) or cell.is_rounded or cell.scale_at != "scores"


def draw_of(cell: Cell, rules: Sequence[Rule]) -> Draw:
    """Return what is drawn in a cell, and what its rules, of :func:`fixed_rule`, make of it."""
    precision = cell.computes_in
    return Draw(
        query=_side(cell, "query", precision),
        key=_side(cell, "key", precision),
        pair=Pair(_PAIR[cell.pair.kind], float(cell.pair.get("rho", 0)), min(cell.n_queries, cell.n_keys)),
        score=_score(cell, precision),
        transform=Transform(
            factors=np.array([rule.factor for rule in rules]),
            log_n=np.array([rule.log_n for rule in rules], np.uint8),
            caps=np.array([rule.cap for rule in rules]),
            rounding=_ROUNDING.get(cell.precision, 0),
            place=_PLACE[cell.scale_at],
        ),
    )


def _numbers(law: Choice, mean: float, std: float, precision: str) -> np.ndarray:
    return np.array([mean, std, *LAWS[law.kind].constants(law_shape(law))], precision)


def _diagonal(side: SideFields, width: int) -> np.ndarray:
    """Return the standard deviations of the components where they are unequal, (width,), else none."""
    if _WITHIN[side.within.kind] != DIAGONAL:
        return np.empty(0)
    runs = covariance(side.within, width).runs
    assert runs is not None
    counts, scales = runs
    return np.repeat(scales, counts)


def _side(cell: Cell, name: str, precision: str) -> Side:
    side: SideFields = getattr(cell, name)
    made = cell.projection
    own = KEY if name == "key" else QUERY
    weight_std = INITS[made.init].std(name, made.d_model, cell.d_k) if made else 0.0
    weight_law = Choice(INITS[made.init].law) if made else Choice("gaussian")
    rates, turns = _rotation(cell, side, precision)
    return Side(
        law=LAW_CODES[side.law.kind],
        numbers=_numbers(side.law, side.mean, side.std, precision),
        standard=_numbers(side.law, 0.0, 1.0, precision),
        given=np.empty((0, 0), precision),
        width=made.d_model if made else 0,
        tensor=QUERY if made and made.attention == "self" else own,
        weight_law=LAW_CODES[weight_law.kind],
        weight_tensor=np.uint32((QUERY if made and made.tied else own) + WEIGHTS),
        weights=_numbers(weight_law, 0.0, weight_std, precision),
        bias=_numbers(Choice("gaussian"), 0.0, made.bias_std if made else 0.0, precision),
        dependent=_DEPENDENT[side.dependent.kind],
        df=float(side.dependent.get("df", 0)),
        within=_WITHIN[side.within.kind],
        rho=float(side.within.get("rho", 0)),
        diagonal=_diagonal(side, cell.width).astype(precision),
        common=side.tokens.rho if side.tokens else 0.0,
        normalize=_NORMALIZE[side.normalize.kind],
        gain=float(side.normalize.get("gain", 1)),
        offset=cell.n_keys - cell.n_queries if name == "query" else 0,
        rates=rates,
        turns=turns,
    )


def _rotation(cell: Cell, side: SideFields, precision: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the angles of the planes a token, and cosine and sine of their first multiples."""
    planes = cell.d_k // 2 if side.rotation else 0
    rates = side.rotation.base ** (-2 * np.arange(planes) / cell.d_k) if side.rotation else np.empty(0)
    angles = rates[:, None] * np.arange(TILE)
    return rates, np.array([np.cos(angles), np.sin(angles)], precision)


def _score(cell: Cell, precision: str) -> Score:
    units = int(cell.score.get("units", 0))
    weight_std = math.sqrt(2 / (cell.d_k + units)) if units else 0.0  # Xavier's, normal
    law = cell.score.get("law", Choice("gaussian"))
    return Score(
        kind=_SCORE[cell.score.kind],
        units=units,
        numbers=np.array(
            [
                _numbers(Choice("gaussian"), 0.0, std, precision)
                for std in (weight_std, float(cell.score.get("v_std", 1)))
            ]
        ),
        law=LAW_CODES[law.kind],
        constants=_numbers(law, 0.0, 1.0, precision),
    )


def given_side(side: Side, vectors: np.ndarray) -> Side:
    """Return a side whose vectors, (tokens, d_k), are given."""
    return side._replace(law=GIVEN, given=np.ascontiguousarray(vectors, side.numbers.dtype))
