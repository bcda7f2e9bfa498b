"""A Monte Carlo laboratory for dot-product attention.

``import sim`` loads nothing heavy; each public name brings its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.engine import run
    from sim.errors import InputError
    from sim.measuring import measure
    from sim.running import running
    from sim.sweep import Sweep

__all__ = ["InputError", "Sweep", "__version__", "measure", "run", "running"]

__version__ = "0.1.0"

_MODULES = {
    "InputError": "sim.errors",
    "Sweep": "sim.sweep",
    "measure": "sim.measuring",
    "run": "sim.engine",
    "running": "sim.running",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value  # from now on an ordinary attribute
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
