"""Drawn vectors of one cell, and the independent draws that its structure starts from, for tests."""

from dataclasses import replace

import numpy as np

from sim.philox import KEY, QUERY
from tests.measuring import draw_standard, draw_tokens, planned

PRECISIONS = ("float32", "float64")
CLOSE = {"float32": 1e-5, "float64": 1e-13}
TRIAL = 3


def made_of(**fields):
    """Return the plan of one cell."""
    sizes = {"d_k": 7, "n_queries": 5, "n_keys": 9, "observables": ["weights"]}
    made, _ = planned(**{**sizes, **fields})
    return made


def drawn(made, trial=TRIAL):
    """Return Q and K of a trial."""
    sizes = made.geometry
    return draw_tokens(made, QUERY, sizes.n_queries, trial), draw_tokens(made, KEY, sizes.n_keys, trial)


def standard(made, tensor, tokens, law="gaussian", trial=TRIAL, width=None):
    """Return the independent draws that a structure starts from, (tokens, width)."""
    return draw_standard(made, law, int(tensor), (tokens, width or made.cell.width), trial)


def check(found, expected, precision):
    np.testing.assert_allclose(found, expected, 0, CLOSE[precision] * max(1.0, abs(expected).max()))


def same_draws(made, other):
    """Return a plan that draws with the key of another."""
    geometry = made.geometry._replace(key=other.geometry.key)
    return replace(made, geometry=geometry)


def root_of(within, width):
    """Return R such that R z has the stated covariance; and the covariance, of trace `width`."""
    rho, i = within.get("rho"), np.arange(width)
    if within["kind"] == "equicorrelated":
        covariance = (1 - rho) * np.eye(width) + rho
        values, vectors = np.linalg.eigh(covariance)
        return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T, covariance
    if within["kind"] == "ar1":  # the recursion is the triangular root
        covariance = rho ** abs(i[:, None] - i) if rho else np.eye(width)
        return np.linalg.cholesky(covariance), covariance
    if within["kind"] == "power_law":
        variances = (i + 1.0) ** -within["exponent"]
    else:
        variances = np.where(i < within["count"], within["factor"] ** 2.0, 1.0)
    variances *= width / variances.sum()
    return np.diag(np.sqrt(variances)), np.diag(variances)
