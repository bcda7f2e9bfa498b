"""Where a number comes from: digests of the code that simulates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

__all__ = ["GIVEN", "PACKAGE", "PRESENTATION", "code_digest", "kernel_digest"]

PACKAGE = Path(__file__).parent
# What only shows or starts things: an edit here changes no number, so it makes no dataset stale.
PRESENTATION = frozenset(
    {
        "__init__.py",
        "__main__.py",
        "cli.py",
        "experiments.py",
        "figures.py",
        "fits.py",
        "meter.py",
        "running.py",
        "show.py",
    }
)
# What measures given vectors and draws none: no stored dataset of a sweep depends on it.
GIVEN = frozenset({"arrays.py", "given.py", "measuring.py"})


def _digest(belongs: Callable[[str, bytes], bool]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_bytes()
        if belongs(name, text):
            digest.update(name.encode() + b"\0" + text + b"\0")
    return digest.hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the simulating part of the package, 16 hexadecimal digits."""
    return _digest(lambda name, text: name not in PRESENTATION | GIVEN)


@cache
def kernel_digest() -> str:
    """Return a digest of all that is compiled: the modules that take a decorator from :mod:`sim.jit`."""
    return _digest(lambda name, text: name == "jit.py" or b"from sim.jit import" in text)
