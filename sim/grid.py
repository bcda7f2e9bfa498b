"""A grid: the fields of a sweep that shape cells, expanded.

The tables are flattened into leaves (``("key", "mean"): [0, 1]``); a leaf that is a list is an axis; the
product of the axes gives one plain table a cell; and each of these is validated as scalars, so that a
message never speaks of positions in lists. Coordinates are read back from the cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from sim.cell import Cell, Projection, Side
from sim.errors import InputError
from sim.kinds import Choice
from sim.reading import Path, Table, dotted, repeated, show, validated

__all__ = ["BOTH", "MAX_CELLS", "Grid", "dimension"]

MAX_CELLS = 1_000_000

# What stands for two fields of a cell at once.
BOTH = {"n_tokens": ("n_queries", "n_keys"), "vectors": ("query", "key")}
# The fields of the tables that have no kinds to choose from, in the order of the schema.
_BELOW = {
    "query": tuple(Side.model_fields),
    "key": tuple(Side.model_fields),
    "projection": tuple(Projection.model_fields),
}


def _leaves(table: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what stands at the ends of the tables: of a side, and of the single tables in a side."""
    for key, value in table.items():
        if not isinstance(key, str):
            raise InputError(f"{dotted(path)}: the key {show(key)} is unknown: keys are words")
        if isinstance(value, dict) and value and len(path) < 2:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _is_axis(path: Path, value: object) -> bool:
    # Several kinds are written as a list of tables, as each kind has parameters of its own.
    return isinstance(value, list) and path[1:][-1:] != ("kind",)


def _place(path: Path) -> tuple[Any, ...]:
    """Return a sorting key: fields in the order of the schema, parameters by name."""
    top = BOTH.get(path[0], path)[0]
    fields = list(_BELOW.get(top, ()))
    place = fields.index(path[1]) if path[1:] and path[1] in fields else len(fields)
    return [*Cell.model_fields].index(top), place, path[1:]


def dimension(path: Path) -> str:
    """Return a path's name in the dataset: ``key_mean``, ``mean`` under [vectors], ``query_df``, ``within_rho``."""
    words = path[1:] if path[0] == "vectors" else path
    return "_".join([*(word for word in words[:-1] if word != "law"), words[-1]])


def _cell_table(leaves: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """Return the nested table of one cell: the inverse of :func:`_leaves`, with both sides written out."""
    table: dict[str, Any] = {}
    for path, value in leaves:
        for top in BOTH.get(path[0], path[:1]):
            *tables, last = (top, *path[1:])
            inner = table
            for key in tables:
                inner = inner.setdefault(key, {})
            inner[last] = value
    return table


@dataclass(frozen=True)
class Grid:
    """The cells of a sweep and where they lie.

    Attributes
    ----------
    axes : dict of path to values
        As they stand in the cells, in the order of the schema.
    scalars : dict of path to value
        All the others, defaults included.
    cells : tuple of Cell
        In C order of the axes.
    """

    axes: dict[Path, tuple[Any, ...]]
    scalars: dict[Path, Any]
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Grid:
        """Expand the fields that shape cells."""
        leaves = dict(_leaves(fields))
        lists = {path: leaves.pop(path) for path in sorted(leaves, key=_place) if _is_axis(path, leaves[path])}
        _check_size(lists)

        written_as = {field: word for word in fields for field in BOTH.get(word, ())}
        points = product(*lists.values())
        tables = (_cell_table([*leaves.items(), *zip(lists, point, strict=True)]) for point in points)
        cells = tuple(validated(Cell, table, written_as) for table in tables)

        for cell in cells:
            _check_resolved(cell)

        axes = {}
        stride = len(cells)
        for path, values in lists.items():
            stride //= len(values)
            axes[path] = tuple(_value_at(cells[i * stride], path) for i in range(len(values)))
            if again := repeated(axes[path]):
                raise InputError(f"{dotted(path)} has {again} twice: the values of an axis must differ")
        return cls(axes, _scalars(fields, cells[0], axes), cells)


def _check_size(lists: Mapping[Path, list[Any]]) -> None:
    for path, values in lists.items():
        if not values:
            raise InputError(f"{dotted(path)} = [] is not allowed: an axis needs at least one value")
    if (total := math.prod(map(len, lists.values()))) > MAX_CELLS:
        sizes = " × ".join(f"{dotted(path)}: {len(values)}" for path, values in lists.items())
        raise InputError(f"{total} cells are too many ({sizes}): a sweep has at most {MAX_CELLS}")


def _check_resolved(cell: Cell) -> None:
    if not cell.is_resolved:
        sides = ", ".join(
            f"{name} mean {side.mean:g} and std {side.std:g}"
            for name, side in (("query", cell.query), ("key", cell.key))
        )
        raise InputError(
            f"mean and std: with {sides} the scores differ by less than the rounding of {cell.precision}; "
            f"give a mean nearer to 0 or a larger std"
            + (', or precision = "float64"' if cell.precision == "float32" else "")
        )


# What every cell has, whatever it is; all else is left out where it is not used.
_ALWAYS = ("seed", "d_k", "n_tokens", "n_queries", "n_keys", "causal", "precision", "law", "mean", "std")


def _schema(fields: Mapping[str, Any]) -> list[Path]:
    """Return the paths of a cell's fields, in the words of the user and in the order of the schema."""
    written_as = {field: word for word in fields for field in BOTH.get(word, ())}
    if not {"vectors", "query", "key"} & fields.keys():
        written_as |= {"query": "vectors", "key": "vectors"}
    tops = dict.fromkeys(written_as.get(field, field) for field in Cell.model_fields)
    sides = [top for top in tops if top in ("vectors", "query", "key")]
    return sorted(
        [
            *((top,) for top in tops if top not in sides),
            *((side, field) for side in sides for field in Side.model_fields),
        ],
        key=_place,
    )


def _scalars(fields: Mapping[str, Any], cell: Cell, axes: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return what is the same in all cells, a table without kinds as its fields; `cell` is one of them."""
    scalars: dict[Path, Any] = {}
    for path in _schema(fields):
        if path in axes or (path[0] in ("d_k", "vectors", "query", "key") and not cell.has_vectors):
            continue
        varied = any(axis[: len(path)] == path for axis in axes)
        if path[-1] not in _ALWAYS and path[-1] not in _value_at(cell, path[:-1]).given and not varied:
            continue
        value = _value_at(cell, path)
        if isinstance(value, Table):
            scalars |= {(*path, name): inner for name, inner in value.given.items() if (*path, name) not in axes}
        else:
            scalars[path] = value
    return scalars


def _value_at(cell: Cell, path: Path) -> Any:
    """Return what stands at a path of the user; a parameter of a kind lies in its choice."""
    value: Any = cell
    for i, part in enumerate(path):
        name = part if i else BOTH.get(part, path)[0]
        value = value.get(name) if isinstance(value, Choice) else getattr(value, name)
    return value
