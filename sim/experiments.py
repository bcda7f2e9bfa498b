"""Experiments: modules of one folder, found by name; each asks a question and says what to simulate for it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sim.errors import InputError, suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset

    from sim.sweep import Sweep

__all__ = ["Entry", "Experiment", "find", "find_all", "load"]

# The only key of an experiment with a single dataset: `results/NAME/data.nc`.
SINGLE = "data"


@dataclass(frozen=True)
class Entry:
    """An experiment that was found but not loaded."""

    name: str
    summary: str
    path: Path


@dataclass(frozen=True)
class Experiment:
    """What is simulated and drawn under one name.

    Attributes
    ----------
    name : str
        The folder under `results`.
    sweeps : mapping of str to Sweep
        By the name of the file that each becomes; the key is ``data`` where there is one sweep only.
    makers : mapping of str to callable
        ``maker(quick) -> xarray.Dataset``, likewise, for what the engine does not sweep.
    figure : callable, optional
        Draws the dataset, or for a dict of sweeps the dict of datasets by key.
    single : bool
        Whether there is one dataset rather than a dict of them.
    """

    name: str
    sweeps: Mapping[str, Sweep] = field(default_factory=dict)
    makers: Mapping[str, Callable[[bool], Dataset]] = field(default_factory=dict)
    figure: Callable[[Any], Figure] | None = None
    single: bool = True

    def paths(self, folder: Path) -> dict[str, Path]:
        """Return the dataset's file for each key, under the experiment's own part of `folder`."""
        return {key: folder / self.name / f"{key}.nc" for key in (*self.sweeps, *self.makers)}


def _folder(given: Path | None) -> Path:
    folder = Path(__file__).parent.parent / "experiments" if given is None else given
    if not folder.is_dir():
        raise InputError(
            f"--experiments: {str(folder)!r} is no folder; give the one that holds the experiments' modules"
        )
    return folder


def _summary(path: Path) -> str:
    """Read the docstring's first line without running the module."""
    try:
        text = ast.get_docstring(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        return f"(cannot be read: {error})"
    return text.splitlines()[0] if text else ""


def find_all(folder: Path | None = None) -> list[Entry]:
    """List the experiments of a folder by name, without running any of them.

    Parameters
    ----------
    folder : Path, optional
        Default: `experiments` beside the package. Names that start with an underscore are not experiments.

    Raises
    ------
    InputError
        If there is no such folder.
    """
    modules = sorted(path for path in _folder(folder).glob("*.py") if not path.name.startswith("_"))
    return [Entry(path.stem, _summary(path), path) for path in modules]


def find(name: str, folder: Path | None = None) -> Entry:
    """Return the experiment of that name; raise InputError with the nearest one if there is none."""
    entries = {entry.name: entry for entry in find_all(folder)}
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise InputError(
            f"experiment: {name!r} is not known{suggest(name, entries)} (experiments: {known}; "
            "a sweep of your own is a file that ends in .toml)"
        )
    return entries[name]


def _import(entry: Entry) -> ModuleType:
    """Import the module by its path, under a name that no other module has."""
    unique = f"sim_experiment_{entry.name}"
    spec = importlib.util.spec_from_file_location(unique, entry.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry.path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"experiment {entry.name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ImportError(f"experiment {entry.name} ({entry.path}): {type(error).__name__}: {error}") from error
    return module


def _check_keys(name: str, swept: Mapping[Any, Any]) -> None:
    if not swept:
        raise InputError(
            f"experiment {name}: SWEEP = {{}} is not allowed: it must be a Sweep, or a dict of at least one"
        )
    for key in swept:
        if not isinstance(key, str) or not re.fullmatch(r"\w[\w.=+-]*", key):
            raise InputError(
                f"experiment {name}: the key {key!r} of SWEEP is not allowed: it must be text of letters, digits "
                "and _ . = + -, as it names a file"
            )


def load(entry: Entry) -> Experiment:
    """Import an experiment and read what it simulates and how it is drawn.

    Raises
    ------
    InputError
        If one of its sweeps is refused, or it does not say what to simulate.
    ImportError
        If the module itself fails.
    """
    module = _import(entry)
    swept, dataset = getattr(module, "SWEEP", None), getattr(module, "dataset", None)
    # `from sim import dataset` in an experiment must not be taken for its own function.
    dataset = dataset if inspect.isfunction(dataset) else None
    if (swept is None) == (dataset is None):
        raise InputError(f"experiment {entry.name}: define either SWEEP or a function dataset(quick)")
    single = not isinstance(swept, dict)
    if isinstance(swept, dict):
        _check_keys(entry.name, swept)
    parts: Mapping[str, Any] = swept if isinstance(swept, dict) else {SINGLE: dataset if swept is None else swept}
    # In a dict a function may stand beside sweeps, for what the engine does not sweep: times, or another layer.
    makers = {key: part for key, part in parts.items() if inspect.isfunction(part)}
    sweeps = {key: part for key, part in parts.items() if key not in makers}
    return Experiment(entry.name, sweeps, makers, getattr(module, "figure", None), single)
