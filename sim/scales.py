"""Scale rules: what a raw score is multiplied by. Adding a rule is one entry in :data:`SCALES`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sim.kinds import Choice, Kind, number_label

__all__ = ["SCALES", "ScaleRule", "scale_factor", "scale_label"]


@dataclass(frozen=True, kw_only=True)
class ScaleRule(Kind):
    """A linear rule: `factor` takes d_k and n_keys and the rule's parameters by name."""

    factor: Callable[..., float]


SCALES: dict[str, ScaleRule] = {
    "none": ScaleRule(factor=lambda d_k, n_keys: 1.0),
    "sqrt_dk": ScaleRule(factor=lambda d_k, n_keys: 1 / math.sqrt(d_k)),
    "dk": ScaleRule(factor=lambda d_k, n_keys: 1 / d_k),
}


def scale_factor(scale: Choice | float, d_k: int, n_keys: int) -> float:
    """Return what a raw score is multiplied by; a number is the factor itself."""
    if isinstance(scale, Choice):
        return SCALES[scale.kind].factor(d_k, n_keys, **dict(scale.parameters))
    return float(scale)


def scale_label(scale: Choice | float) -> str:
    """Return the coordinate value: ``sqrt_dk``, ``0.125``."""
    return scale.label if isinstance(scale, Choice) else number_label(scale)
