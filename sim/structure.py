"""Structure: what makes components, vectors or sides dependent or unequal, and what makes scores of them.

One registry for each step of the draw, an entry for each kind: its name and which parameters it takes. The order
of the draw is law, dependent, within, tokens, pair, std and mean, projection, normalize and gain, rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sim.kinds import Choice, Kind, Parameter
from sim.laws import LAWS
from sim.reading import in_range, read_choice, read_real, read_whole

__all__ = ["DEPENDENT", "INITS", "NORMALIZE", "PAIR", "SCORES", "WITHIN", "Init", "ScoreFunction"]

_WHOLE = f"a whole number from 1 to {2**20}"


def _sized(default: float | None, allowed: str, accepts: Callable[[float], bool]) -> Parameter:
    """Return a parameter that multiplies: 0, or of a size that keeps scores in range."""
    return Parameter(default, allowed, accepts, lambda given: in_range(read_real(given, allowed)))


def _count(allowed: str = _WHOLE) -> Parameter:
    return Parameter(None, allowed, lambda count: 1 <= count <= 2**20, lambda given: read_whole(given, allowed))


# Components of one vector that are uncorrelated, but not independent.
DEPENDENT: dict[str, Kind] = {
    "none": Kind(),
    # a common random magnitude for all components of a vector: the multivariate t of `df` degrees of freedom
    "magnitude": Kind(parameters={"df": _sized(None, "a finite number above 0", lambda df: df > 0)}),
    # one magnitude |z| for all components, each with a random sign of its own
    "signs": Kind(),
}

# Covariance of the components of one vector, of trace d.
WITHIN: dict[str, Kind] = {
    "none": Kind(),
    # down to -1 / (width - 1), which depends on the cell
    "equicorrelated": Kind(parameters={"rho": Parameter(None, "a number between -1 and 1", lambda rho: -1 < rho < 1)}),
    "ar1": Kind(parameters={"rho": Parameter(None, "a number between -1 and 1", lambda rho: -1 < rho < 1)}),
    # eigenvalue i proportional to i^-exponent
    "power_law": Kind(parameters={"exponent": Parameter(None, "a number from 0 to 10", lambda x: 0 <= x <= 10)}),
    # the first `count` components have `factor` times the standard deviation of the others
    "outliers": Kind(
        parameters={"count": _count(), "factor": _sized(None, "a finite number above 0", lambda x: x > 0)}
    ),
}

_GAIN = {"gain": _sized(1.0, "a finite number above 0", lambda gain: gain > 0)}

# What becomes of the length (and mean) of each vector that the score sees; `gain` multiplies the result.
NORMALIZE: dict[str, Kind] = {
    "none": Kind(),
    "l2": Kind(parameters=_GAIN),  # length 1
    "rms": Kind(parameters=_GAIN),  # length sqrt(d_k)
    "layer": Kind(parameters=_GAIN),  # mean 0 over the components, length sqrt(d_k)
}

# Dependence between the sides.
PAIR: dict[str, Kind] = {
    "none": Kind(),
    # key j with query j, for j below the smaller count
    "paired": Kind(parameters={"rho": Parameter(None, "a number from -1 to 1", lambda rho: -1 <= rho <= 1)}),
    # one vector common to all queries and keys of a trial, of weight sqrt(rho)
    "shared": Kind(parameters={"rho": Parameter(None, "a number from 0 to 1", lambda rho: 0 <= rho <= 1)}),
}


@dataclass(frozen=True, kw_only=True)
class ScoreFunction(Kind):
    """A score function.

    Attributes
    ----------
    of_vectors : bool
        Whether the score is of a query and a key; else it is drawn itself, and there is no d_k.
    draws : tuple of str
        The parameters that shape what is drawn; the others only act on it.
    """

    of_vectors: bool = True
    draws: tuple[str, ...] = ()


SCORES: dict[str, ScoreFunction] = {
    "dot": ScoreFunction(),
    "cosine": ScoreFunction(),
    # v.tanh(W_q q + W_k k) with `units` units
    "additive": ScoreFunction(
        parameters={"units": _count(), "v_std": _sized(1.0, "a finite number of at least 0", lambda std: std >= 0)},
        draws=("units",),
    ),
    # standardised scores, independent of each other
    "iid": ScoreFunction(
        parameters={"law": Parameter(Choice("gaussian"), "a law", read=lambda given: read_choice(given, LAWS))},
        of_vectors=False,
        draws=("law",),
    ),
}


@dataclass(frozen=True)
class Init:
    """An initialisation of W_Q and W_K: the law of a weight, and `std(side, d_model, d_k)`, its standard deviation.

    `side` is "query" or "key".
    """

    law: str
    std: Callable[[str, int, int], float]


# Fan-in is d_model. Fan-out is d_k, or 3 d_model where one matrix makes Q, K and V.
INITS: dict[str, Init] = {
    "xavier_uniform": Init("uniform", lambda side, d_model, d_k: math.sqrt(2 / (d_model + d_k))),
    "xavier_normal": Init("gaussian", lambda side, d_model, d_k: math.sqrt(2 / (d_model + d_k))),
    "he": Init("gaussian", lambda side, d_model, d_k: math.sqrt(2 / d_model)),
    "lecun": Init("gaussian", lambda side, d_model, d_k: math.sqrt(1 / d_model)),
    # torch.nn.Linear: uniform on +-1/sqrt(d_model)
    "torch_linear": Init("uniform", lambda side, d_model, d_k: math.sqrt(1 / (3 * d_model))),
    "gpt2": Init("gaussian", lambda side, d_model, d_k: 0.02),
    "fused_xavier": Init("uniform", lambda side, d_model, d_k: math.sqrt(2 / (d_model + 3 * d_model))),
    # the scale 1/sqrt(d_k) is folded into W_Q
    "t5": Init("gaussian", lambda side, d_model, d_k: (d_model * (d_k if side == "query" else 1)) ** -0.5),
}
