"""Scale rules: what becomes of a raw score before softmax. Adding a rule is one entry in :data:`SCALES`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.kinds import Choice, Kind, Parameter, number_label
from sim.reading import RefusedError, in_range, read_choice, read_name, read_real, show

__all__ = ["SCALES", "Rule", "ScaleRule", "needs_d_k", "read_scale", "scale_factor", "scale_label", "scale_rule"]


class Rule(NamedTuple):
    """A scale rule with its numbers filled in: the scaled score is ``cap * tanh(factor * s / cap)``.

    Attributes
    ----------
    factor : float
        What the raw score s is multiplied by.
    log_n : bool
        Whether `factor` is to be multiplied by ln of the number of keys that the row sees.
    cap : float
        Infinity where nothing is capped: the scaled score is then ``factor * s``.
    """

    factor: float
    log_n: bool = False
    cap: float = math.inf

    def scaled(self, scores: np.ndarray) -> np.ndarray:
        """Return the scaled scores; NaN where the factor is each row's own."""
        if self.log_n:
            return np.full(scores.shape, np.nan)
        scaled = self.factor * scores
        return scaled if math.isinf(self.cap) else self.cap * np.tanh(scaled / self.cap)

    def slope(self, scores: np.ndarray) -> np.ndarray:
        """Return the derivative of the scaled score; NaN where the factor is each row's own."""
        flat = self.factor * np.ones_like(scores)
        if self.log_n:
            return np.full(scores.shape, np.nan)
        return flat if math.isinf(self.cap) else flat * (1 - np.tanh(self.factor * scores / self.cap) ** 2)


@dataclass(frozen=True, kw_only=True)
class ScaleRule(Kind):
    """A rule: `rule` takes d_k and the rule's parameters by name; `of_d_k` is whether d_k is used."""

    rule: Callable[..., Rule]
    of_d_k: bool = False


# What another rule may come after: the linear rules without parameters.
_FIRST: dict[str, Callable[[int], float]] = {
    "none": lambda d_k: 1.0,
    "sqrt_dk": lambda d_k: 1 / math.sqrt(d_k),
    "dk": lambda d_k: 1 / d_k,
}
_OF_D_K = ("sqrt_dk", "dk")


def _read_first(given: object) -> str | float:
    if isinstance(given, str):
        return read_name(given, list(_FIRST), " or a finite number")
    return in_range(read_real(given, f"one of {', '.join(_FIRST)} or a finite number"))


def _first(after: str | float, d_k: int) -> float:
    return _FIRST[after](d_k) if isinstance(after, str) else after


_AFTER = Parameter("none", f"one of {', '.join(_FIRST)} or a finite number", read=_read_first)
_FACTOR = Parameter(1.0, "a finite number", read=lambda given: in_range(read_real(given, "a finite number")))
_CAP = Parameter(
    None,
    "a finite number above 0",
    lambda cap: cap > 0,
    lambda given: in_range(read_real(given, "a finite number above 0")),
)
_EXPONENT = Parameter(None, "a number from -2 to 2", lambda exponent: abs(exponent) <= 2)

SCALES: dict[str, ScaleRule] = {
    **{name: ScaleRule(rule=lambda d_k, name=name: Rule(_FIRST[name](d_k)), of_d_k=name in _OF_D_K) for name in _FIRST},
    "log_n": ScaleRule(
        parameters={"factor": _FACTOR, "after": _AFTER},
        rule=lambda d_k, factor, after: Rule(factor * _first(after, d_k), log_n=True),
    ),
    "softcap": ScaleRule(
        parameters={"cap": _CAP, "after": _AFTER},
        rule=lambda d_k, cap, after: Rule(_first(after, d_k), cap=cap),
    ),
    "power": ScaleRule(
        parameters={"exponent": _EXPONENT, "factor": _FACTOR},
        rule=lambda d_k, exponent, factor: Rule(factor * d_k**exponent),
        of_d_k=True,
    ),
}


def read_scale(given: object) -> Choice | float:
    """Return a scale rule from a name, a table or a number, or raise a RefusedError."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if isinstance(value, list):
                hint = "lists may not stand inside a scale table; list the tables: scale = [{...}, {...}]"
                raise RefusedError(f" = {show(value)} is not allowed: {hint}", (str(key),))
    elif not isinstance(given, (str, Choice)):
        return in_range(read_real(given, f"one of {', '.join(SCALES)}, a table {{kind = ...}} or a finite number"))
    return read_choice(given, SCALES, " or a number")


def scale_rule(scale: Choice | float, d_k: int | None) -> Rule:
    """Return the rule for vectors of length d_k (None: of scores without vectors); a number is the factor itself."""
    if isinstance(scale, Choice):
        return SCALES[scale.kind].rule(d_k, **dict(scale.parameters))
    return Rule(float(scale))


def scale_factor(scale: Choice | float, d_k: int | None, n_keys: int) -> float:
    """Return the rule's slope at a raw score of 0, for a row that sees `n_keys` keys."""
    rule = scale_rule(scale, d_k)
    return rule.factor * math.log(n_keys) if rule.log_n else rule.factor


def needs_d_k(scale: Choice | float) -> bool:
    """Return whether the rule divides by a power of d_k, itself or in what it comes after."""
    if not isinstance(scale, Choice):
        return False
    parameters: dict[str, Any] = dict(scale.parameters)
    return SCALES[scale.kind].of_d_k or parameters.get("after") in _OF_D_K


def scale_label(scale: Choice | float) -> str:
    """Return the coordinate value: ``sqrt_dk``, ``0.125``, ``softcap(cap=50, after=sqrt_dk)``."""
    return scale.label if isinstance(scale, Choice) else number_label(scale)
