"""A dataset as text: one table a variable, each estimate ± its standard error with theory beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from sim.errors import InputError, suggest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from xarray import DataArray, Dataset

__all__ = ["find_datasets", "number", "print_dataset", "with_error"]

_COMPANIONS = ("_se", "_theory", "_limit")
# A histogram is a picture, not a table of 258 lines for each cell.
_PICTURES = {"bin", "bin_edge"}
_TALLIES = ["tally_node", "tally_field", "tally_entry"]  # for merging datasets, not for reading
_ROWS = 400


def find_datasets(given: str, results: Path) -> list[Path]:
    """Return the files meant by a path, a folder, or a name under the folder of results.

    Raises
    ------
    InputError
        If there is none.
    """
    for place in (Path(given), results / given, results / f"{given}.nc"):
        if place.is_file():
            return [place]
        if found := sorted(place.glob("*.nc")):
            return found
    names = sorted({path.parent.relative_to(results).as_posix() for path in results.glob("**/*.nc")})
    raise InputError(
        f"dataset: {given!r} is neither a file nor a name under {str(results)!r}{suggest(given, names)} "
        f"(names there: {', '.join(names) or 'none'})"
    )


def number(value: Any) -> str:
    """Write a value in at most six digits; text stays as it is, and blank is a dash."""
    if isinstance(value, (bool, np.bool_)):
        return str(value).lower()
    if isinstance(value, (str, bytes, np.str_)) or not isinstance(value, (int, float, np.number)):
        return str(value)
    return "–" if np.isnan(value) else f"{value:.6g}"


def with_error(value: float, error: float) -> str:
    """Write an estimate to the place of the error's second digit.

    >>> with_error(1.00234567, 0.00123)
    '1.0023 ± 0.0012'
    >>> with_error(12345.6, 123.4)
    '12350 ± 120'
    >>> with_error(1.234e-7, 5.6e-9)
    '(1.234 ± 0.056)e-07'
    >>> with_error(0.5, 0.0)
    '0.5 ± 0'
    """
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return number(value) + (" ± 0" if error == 0 and math.isfinite(value) else "")
    # By way of text, for 0.0996 is 0.10 when written with two digits.
    place = int(f"{error:.1e}".partition("e")[2]) - 1
    size = max(abs(value), error)
    exponent = int(f"{size:.1e}".partition("e")[2])
    if -5 <= exponent < 7:
        decimals = max(-place, 0)
        return f"{round(value, -place):.{decimals}f} ± {round(error, -place):.{decimals}f}"
    unit, decimals = 10.0**exponent, max(exponent - place, 0)
    return f"({value / unit:.{decimals}f} ± {error / unit:.{decimals}f})e{exponent:+03d}"


def _labels(array: DataArray, dimension: Hashable) -> list[str]:
    if dimension in array.coords:
        return [number(value) for value in array[dimension].values]
    return [str(index) for index in range(array.sizes[dimension])]


def _like(dataset: Dataset, name: str, array: DataArray) -> Any:
    """Return a companion's values in the shape of its estimate, or None if it is not there or all blank."""
    if name not in dataset or dataset[name].dtype.kind not in "biuf" or not {*dataset[name].dims} <= {*array.dims}:
        return None
    values = dataset[name].broadcast_like(array).transpose(*array.dims).values
    return values if np.isfinite(values).any() else None


def _rows(array: DataArray, error: Any, theory: Any, limit: Any) -> Iterator[list[str]]:
    for place in itertools.product(*(range(size) for size in array.shape)):
        value = array.values[place]
        row = [number(value) if error is None else with_error(float(value), float(error[place]))]
        row += [number(column[place]) for column in (theory, limit) if column is not None]
        if theory is not None and error is not None:
            apart = (value - theory[place]) / error[place] if error[place] > 0 else math.nan
            row.append("–" if math.isnan(apart) else f"{apart:+.1f}")
        yield row


def _table(dataset: Dataset, name: str) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    array = dataset[name]
    error, theory, limit = (_like(dataset, name + companion, array) for companion in _COMPANIONS)
    about = array.attrs.get("long_name", "")
    units = array.attrs.get("units", "")
    title = name + (f": {about}" if about else "") + (f" [{units}]" if units not in ("", "1") else "")
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for dimension in array.dims:
        table.add_column(str(dimension), justify="right", no_wrap=True)
    table.add_column("estimate" if error is None else "estimate ± standard error", justify="right", no_wrap=True)
    if theory is not None:
        table.add_column("theory", justify="right", no_wrap=True)
    if limit is not None:
        table.add_column("limit", justify="right", no_wrap=True)
    if theory is not None and error is not None:
        table.add_column("(estimate − theory) / s.e.", justify="right", no_wrap=True)
    cells = itertools.product(*(_labels(array, dimension) for dimension in array.dims))
    for cell, row in itertools.islice(zip(cells, _rows(array, error, theory, limit), strict=True), _ROWS):
        table.add_row(*(escape(text) for text in (*cell, *row)))
    if array.size > _ROWS:
        table.caption = f"... and {array.size - _ROWS} rows more"
    return table


def _head(dataset: Dataset) -> Iterator[str]:
    """Say what holds for the whole dataset: its scalar coordinates, and bookkeeping that is the same everywhere."""
    for name, coordinate in dataset.coords.items():
        if coordinate.ndim == 0:
            yield f"{name} = {number(coordinate.item())}"
    for name in ("trials", "groups"):
        if name in dataset.data_vars and dataset[name].size and (dataset[name] == dataset[name].values.flat[0]).all():
            yield f"{name} = {number(dataset[name].values.flat[0])}"


def _listed(dataset: Dataset) -> Iterator[str]:
    """Yield the estimates' names, leaving out what stands beside another, and what is no number."""
    names = {str(name) for name in dataset.data_vars}
    for name in map(str, dataset.data_vars):
        array = dataset[name]
        beside = any(name.endswith(end) and name.removesuffix(end) in names for end in _COMPANIONS)
        same = name in ("trials", "groups") and array.size and (array == array.values.flat[0]).all()
        if not beside and not same and array.size and array.dtype.kind in "biuf":
            yield name


def print_dataset(path: Path, console: Console, variables: Sequence[str] = ()) -> None:
    """Print a dataset's estimates.

    Parameters
    ----------
    path : Path
        A netCDF file.
    console : Console
        Where to; its width is the tables' limit.
    variables : sequence of str
        Which estimates; all unless given.

    Raises
    ------
    InputError
        If the file is no dataset, or has no such estimate.
    """
    try:
        with xr.open_dataset(path, engine="h5netcdf") as opened:
            dataset = opened.drop_dims(_TALLIES, errors="ignore").load()
    except Exception as error:  # a damaged file may raise anything
        raise InputError(
            f"dataset: {str(path)!r} cannot be read as netCDF ({error}); give a file that sim run wrote"
        ) from error
    names = list(_listed(dataset))
    for name in variables:
        if name not in names and (name not in dataset.data_vars or dataset[name].dtype.kind not in "biuf"):
            raise InputError(f"variable: {name!r} is not in {path} (there: {', '.join(names)}){suggest(name, names)}")
    console.print(str(path), style="bold", markup=False, highlight=False)
    console.print(", ".join(_head(dataset)) or "no parameters recorded", markup=False, highlight=False)
    pictures = []
    for name in variables or names:
        if _PICTURES.intersection(map(str, dataset[name].dims)):
            pictures.append(name)
            continue
        console.print()
        console.print(_table(dataset, name), highlight=False)
    if pictures:
        console.print(f"\nNot listed: {', '.join(pictures)}", markup=False, highlight=False)
