"""BLAS held to one thread, as threads of the engine call it: sums then have the same bits for any number of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["blas_name", "one_blas_thread"]


@cache
def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (loads the BLAS that kernels call, so that it is found)

    return ThreadpoolController()  # looks through all that the process has loaded: 5 ms


def one_blas_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread."""
    return _libraries().limit(limits=1, user_api="blas")


@cache
def blas_name() -> str:
    """Return the BLAS that computes the scores: ``openblas 0.3.30 Zen``."""
    libraries = [library for library in _libraries().info() if library["user_api"] == "blas"]
    # Wheels of NumPy bring one of their own, which the kernels do not call.
    ours = [library for library in libraries if "scipy.libs" in library["filepath"]] or libraries
    if not ours:
        return "unknown"
    return f"{ours[0]['internal_api']} {ours[0]['version']} {ours[0].get('architecture', '')}".strip()
