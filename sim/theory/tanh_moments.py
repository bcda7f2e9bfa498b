"""Moments of the hyperbolic tangent of normal variables: what soft caps and additive scores are made of."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["correlated_moment", "even_moments"]

Array = np.ndarray


def even_moments(sigma: Array) -> tuple[Array, Array]:
    """Return E tanh^2 and E tanh^4 of normal variables of standard deviations `sigma` (n,), to 1e-9."""
    from scipy.interpolate import CubicSpline

    if sigma.size <= _DIRECTLY:
        return _even_moments(sigma)
    spread = sigma > 0
    least = sigma[spread].min() if spread.any() else 1.0
    ends = math.log(max(least, 1e-150)), math.log(max(sigma.max(), 1e-150)) + 1e-9
    grid = np.linspace(*ends, max(_DIRECTLY, math.ceil(100 * (ends[1] - ends[0]))))
    at = np.log(np.maximum(sigma, math.exp(ends[0])))
    second, fourth = (spread * CubicSpline(grid, values)(at) for values in _even_moments(np.exp(grid)))
    return second, fourth


_DIRECTLY = 500  # points that are not worth an interpolation
_Y, _Z = np.arange(-20, 20.05, 0.1), np.arange(-9, 9.02, 0.05)


def _even_moments(sigma: Array) -> tuple[Array, Array]:
    """Integrate over z where tanh (sigma z) is a smooth factor, and over y = sigma z, where it is the density."""
    small = sigma <= 2
    wide = np.maximum(sigma, 2)[:, None]
    over_y = np.exp(-((_Y / wide) ** 2) / 2) / (wide * math.sqrt(2 * math.pi)) * (_Y[1] - _Y[0])
    over_z = np.exp(-(_Z**2) / 2) / math.sqrt(2 * math.pi) * (_Z[1] - _Z[0])
    square = np.tanh(np.minimum(sigma, 2)[:, None] * _Z) ** 2
    of_y = np.tanh(_Y) ** 2
    second = np.where(small, square @ over_z, 1 - over_y @ (1 - of_y))
    fourth = np.where(small, square**2 @ over_z, 1 - over_y @ (1 - of_y**2))
    return second, fourth


def correlated_moment(t: float, s: float, common: float) -> float:
    """Return E tanh(x) tanh(y) of normal x, y of variances t and s and the covariance `common`."""
    if not (t > 0 and s > 0):
        return 0.0
    if math.isnan(common):
        return math.nan
    z = np.arange(-8.5, 8.51, min(0.1, 0.2 / math.sqrt(max(t, s))))
    density = np.exp(-(z**2) / 2)
    density /= density.sum()
    own = max(0.0, s - common**2 / t)
    expected = np.tanh(common / math.sqrt(t) * z[:, None] + math.sqrt(own) * z) @ density
    return float((np.tanh(math.sqrt(t) * z) * expected) @ density)
