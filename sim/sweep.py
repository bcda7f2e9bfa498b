"""A sweep: the validated description of a run, from keywords or a TOML file.

How a value travels: plain tables → fields of the cells (:mod:`sim.grid`: leaves, axes, cells, each one
validated) and fields that all cells share (:mod:`sim.settings`) → a :class:`Sweep`, which names them.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from sim.cell import Cell, Side
from sim.errors import InputError
from sim.grid import BOTH, MAX_CELLS, Grid, dimension
from sim.kinds import Choice
from sim.reading import Path, canonical, canonical_json, label, not_allowed, unknown_key, validated
from sim.scales import needs_d_k, scale_label, scale_rule
from sim.settings import Histogram, Settings

__all__ = ["MAX_CELLS", "Cell", "Histogram", "Side", "Sweep"]

_SIDES = ("vectors", "query", "key")
_FIELDS = ["name", "seed", "trials", "n_tokens", "n_queries", "n_keys", "d_k", "causal", "scale", "observables"]
_FIELDS += ["precision", "scale_at", *_SIDES, "pair", "projection", "score"]
_FIELDS += ["histogram", "threshold", "gradient_threshold", "quantile"]


def _plain(value: Any) -> Any:
    """Return plain Python: arrays, tuples and ranges as lists, NumPy's scalars as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse what is wrong with the fields as a whole, before any value is looked at."""
    for name in fields:
        if name not in _FIELDS:
            if name in Side.model_fields:
                raise InputError(f"{name} is unknown here: it belongs in [vectors], [query] or [key]")
            raise InputError(unknown_key((name,), _FIELDS))
    for both, (one, other) in BOTH.items():
        if both in fields and (clash := [name for name in (one, other) if name in fields]):
            raise InputError(
                f"{both} and {' and '.join(clash)} contradict each other: {both} sets both {one} and {other}; "
                f"leave one of them out"
            )
    if not {"d_k", "score"} & fields.keys():  # scores without vectors have none, which the cells know
        raise InputError("d_k is missing: give a whole number or a list of them")
    missing = [name for name in BOTH["n_tokens"] if name not in fields]
    if "n_tokens" not in fields and missing:
        raise InputError(f"{' and '.join(missing)} missing: give n_queries and n_keys, or n_tokens for both")
    for name in _SIDES:
        if name in fields and not isinstance(fields[name], dict):
            raise InputError(name + not_allowed(fields[name], f"a table of {', '.join(Side.model_fields)}"))


def _fitted(settings: Settings, cells: tuple[Cell, ...]) -> Settings:
    """Return the settings with the defaults that suit the cells, or refuse what the cells cannot have."""
    if not cells[0].has_vectors:  # nor has any other cell, as there is no d_k
        settings = _without_vectors(settings, cells[0].score.label)
    for scale in settings.scale:
        for d_k in {cell.d_k for cell in cells}:
            factor = scale_rule(scale, d_k).factor
            if factor and not 1e-9 <= abs(factor) <= 1e9:
                at = f" with d_k = {d_k}" if d_k else ""
                raise InputError(
                    f"scale = {scale_label(scale)!r} is not allowed{at}: it multiplies by {factor:.3g}, which must be "
                    f"0, or between 1e-9 and 1e9 in size"
                )
    return settings


def _without_vectors(settings: Settings, score: str) -> Settings:
    """Return the settings for scores that are drawn themselves, without what needs d_k or vectors."""
    given = settings.model_fields_set
    if "observables" in given and "gradients" in settings.observables:
        raise InputError(
            f"observables = 'gradients' is not allowed with score = {score!r}: its scores are drawn themselves, "
            f"without queries and keys to take gradients of; leave gradients out"
        )
    if "scale" in given and (refused := [scale_label(scale) for scale in settings.scale if needs_d_k(scale)]):
        raise InputError(
            f"scale = {refused[0]!r} is not allowed with score = {score!r}, which has no d_k; give none, a number, "
            f"log_n or softcap, the last two after none or a number"
        )
    families = tuple(family for family in settings.observables if family != "gradients")
    scale = settings.scale if "scale" in given else (Choice("none"),)
    return settings.model_copy(update={"observables": families, "scale": scale})


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Sweep:
    """A validated, immutable sweep.

    Parameters
    ----------
    d_k : int, or a list of them
        Length of a vector. **A list means an axis**, here and in all fields but those said to be no axis.
    n_queries, n_keys : int
        Numbers of vectors; `n_tokens` in their place sets both.
    name : str
        Names the folder of results; ``"sweep"`` unless given. No axis.
    seed : int
        0 unless given.
    trials : int
        Independent trials per cell, exact; 1000 unless given. No axis.
    scale : name, table, number, or a list of them
        Scale rules; they add no cells. ``["none", "sqrt_dk", "dk"]`` unless given (without `d_k` ``["none"]``).
    observables : list of str
        The families to compute; all but "spectrum", which costs several passes, unless given. No axis.
    causal : bool
        Whether query i sees only the keys up to its own place (the last query all of them); false unless given.
    precision : {"float32", "float64", "float16", "bfloat16"}
        float32 unless given; the last two emulate hardware.
    scale_at : {"scores", "query", "both"}
        What the scale multiplies; the scores unless given.
    vectors : dict
        ``{"law": ..., "mean": ..., "std": ...}`` of both sides; gaussian, 0 and 1 unless given. A law is
        a name or a table ``{"kind": ..., parameters}``. Further fields give structure, none unless given:
        `dependent`, `within` and `normalize` (names or tables, see :mod:`sim.structure`), `tokens` ``{"rho": ...}``
        and `rotation` ``{"base": ...}``.
    query, key : dict
        The same for each side, in the place of `vectors`.
    pair : name or table
        Dependence between the sides: none, or a table of kind paired or shared.
    projection : dict
        ``{"init": ..., "d_model": ..., "attention": "cross", "tied": False, "bias_std": 0}``: the vectors' law up to
        their mean is then of tokens of width `d_model`.
    score : name or table
        The score function; dot unless given. Of kind iid, scores are drawn without vectors: there is no `d_k`.
    histogram : dict
        ``{"low": ..., "high": ..., "bins": 256}`` in raw units. No axis.
    threshold, gradient_threshold, quantile : float or list of float
        At which rates and quantiles are measured; they add no cells.

    Attributes
    ----------
    scale : tuple of Choice or float
        The scale rules; `scale_labels` has their coordinate values.
    cells : tuple of Cell
        The grid in C order of `axes`.

    Raises
    ------
    InputError
        If anything is wrong; the message names the field, what was given and what is allowed.

    Examples
    --------
    >>> Sweep(d_k=[16, 64], n_tokens=128, key={"mean": [0, 0.5, 1]}).shape
    (2, 3)
    """

    name: str
    trials: int
    scale: tuple[Choice | float, ...]
    observables: tuple[str, ...]
    histogram: Histogram | None
    threshold: tuple[float, ...]
    gradient_threshold: tuple[float, ...]
    quantile: tuple[float, ...]
    cells: tuple[Cell, ...]
    _grid: Grid
    _given: dict[str, Any]

    def __init__(self, **fields: Any) -> None:
        try:
            fields = _plain(fields)
        except RecursionError:
            raise InputError("the sweep's tables and lists are nested too deeply") from None
        _check_fields(fields)
        settings = validated(Settings, {k: v for k, v in fields.items() if k in Settings.model_fields})
        grid = Grid.of({k: v for k, v in fields.items() if k not in Settings.model_fields})
        settings = _fitted(settings, grid.cells)

        values = dict(settings) | {"cells": grid.cells, "_grid": grid, "_given": fields}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Sweep:
        """Return the sweep that a TOML file describes; there `name` is required.

        Raises
        ------
        InputError
            If the file cannot be read or its content is wrong; the message begins with the path.
        """
        fields = _read_toml(path)
        try:
            if "name" not in fields:
                raise InputError('name is missing: give the sweep a name, such as name = "shifted_keys"')
            return cls(**fields)
        except InputError as error:
            raise InputError(f"{os.fspath(path)}: {error}") from None

    @property
    def scale_labels(self) -> tuple[str, ...]:
        """The coordinate values of `scale`: ``("sqrt_dk", "0.125")``."""
        return tuple(scale_label(scale) for scale in self.scale)

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Dimension name to coordinate values, in the order of the schema: what makes the cells."""
        return {dimension(path): tuple(map(label, values)) for path, values in self._grid.axes.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(len(values) for values in self._grid.axes.values())

    @property
    def coordinates(self) -> dict[str, Any]:
        """The scalar coordinates: all fields of a cell that are not axes, defaults included."""
        return {dimension(path): label(self._fixed(path)) for path in self._grid.scalars}

    def _fixed(self, path: Path) -> Any:
        """Return a scalar; of a kind without the parameters that are axes."""
        below = [axis[len(path) :] for axis in self._grid.axes if axis[: len(path)] == path]
        return _without(self._grid.scalars[path], below)

    def resolved(self) -> dict[str, Any]:
        """Return the whole sweep as a JSON-able dict, defaults filled in: ``Sweep(**resolved)`` equals it."""
        tree: dict[str, Any] = {}
        for path in self._grid.scalars:
            _put(tree, path, canonical(self._fixed(path)))
        for path, values in self._grid.axes.items():
            _put(tree, path, [canonical(value) for value in values])
        tree |= {
            "name": self.name,
            "trials": self.trials,
            "scale": [canonical(scale) for scale in self.scale],
            "observables": list(self.observables),
            "histogram": self.histogram.model_dump() if self.histogram else None,
            "threshold": list(self.threshold),
            "gradient_threshold": list(self.gradient_threshold),
            "quantile": list(self.quantile),
        }
        return {field: tree[field] for field in _FIELDS if field in tree}

    @property
    def hash(self) -> str:
        """16 hex digits of :meth:`resolved`: equal for equal sweeps."""
        return hashlib.blake2b(canonical_json(self.resolved()).encode(), digest_size=8).hexdigest()

    def replace(self, **fields: Any) -> Sweep:
        """Return the same sweep with some fields given anew: ``sweep.replace(trials=100)``."""
        return Sweep(**{**self._given, **fields})

    def __eq__(self, other: object) -> bool:
        return self.resolved() == other.resolved() if isinstance(other, Sweep) else NotImplemented

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def __repr__(self) -> str:
        axes = " × ".join(f"{name}: {len(values)}" for name, values in self.axes.items())
        grid = f"{len(self.cells)} cells ({axes})" if axes else "1 cell"
        return f"<Sweep {self.name!r}: {grid}, scale {', '.join(self.scale_labels)}, {self.trials} trials>"


def _without(value: Any, below: list[Path]) -> Any:
    """Return a choice without the parameters at these paths in it."""
    if not below:
        return value
    inner = {name: [path[1:] for path in below if path[0] == name] for name, _ in value.parameters}
    kept = tuple((name, _without(one, inner[name])) for name, one in value.parameters if () not in inner[name])
    return replace(value, parameters=kept)


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at a path; a kind by its bare name makes way for a table when a parameter comes."""
    for part in path[:-1]:
        inner = tree.setdefault(part, {})
        if isinstance(inner, str):
            inner = tree[part] = {"kind": inner}
        tree = inner
    tree[path[-1]] = value


def _read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the tables of a TOML file, or say why there are none."""
    shown = os.fspath(path)
    try:
        # With or without the byte-order mark that some editors put in front.
        return tomllib.loads(FilePath(path).read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{shown}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{shown} is a directory: give a TOML file") from None
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{shown} is not UTF-8: line {line} has the byte 0x{error.object[error.start]:02x}") from None
    except RecursionError:
        raise InputError(f"{shown}: tables and lists are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError says where; int() refuses numbers of thousands of digits
        raise InputError(f"{shown} is not valid TOML: {error}") from None
