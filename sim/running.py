"""Estimates as the groups of trials come in: whether they settle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from sim.dataset import describe, stored_nodes
from sim.errors import InputError, suggest
from sim.estimates import Tallies
from sim.first_scores import settled
from sim.observables import OBSERVABLES, observed, value_of
from sim.plan import layout, plan
from sim.sweep import Sweep
from sim.tally import Layout, TreeNodes

__all__ = ["running"]


def running(dataset: xr.Dataset, variable: str) -> xr.DataArray:
    """Return an estimate of a dataset from its first group of trials, its first two groups, and so on to all.

    The running mean of an infinite moment never settles: it jumps whenever a larger draw comes in.

    Parameters
    ----------
    dataset : xarray.Dataset
        Of :func:`sim.run`, whole, with its tallies and attributes.
    variable : str
        An observable, such as ``"score_variance"``.

    Returns
    -------
    xarray.DataArray
        Along the sweep's axes, ``group`` (1, 2, ... up to the most that a cell has; NaN beyond a cell's own) and the
        observable's own dimensions. Its coordinate ``group_trials`` has the trials up to each group.

    Raises
    ------
    InputError
        If there is no such observable, or the dataset lacks the tallies it comes from.
    """
    sweep, tally_layout = _origin(dataset)
    names = observed(sweep, tally_layout)
    if variable not in names:
        raise InputError(
            f"variable: {variable!r} is no observable of this dataset; it has {', '.join(names)}"
            f"{suggest(variable, names)}"
        )
    cells = []
    for cell, nodes in zip(sweep.cells, stored_nodes(dataset, tally_layout), strict=True):
        made = plan(sweep, cell, tally_layout)
        tree = TreeNodes(made.group_blocks, tally_layout.segments)
        tree.nodes = nodes
        if OBSERVABLES[variable].family == "distribution":  # the bins' edges are where the run put them
            made = settled(made, sweep)
        groups, bins = tree.groups()
        prefixes = [Tallies(groups[:end], bins[:end], tally_layout) for end in range(1, len(groups) + 1)]
        values = [value_of(variable, tallies, made, sweep.quantile) for tallies in prefixes]
        cells.append((np.array(values), np.array([tallies.trials for tallies in prefixes])))
    return _labelled(dataset, sweep, variable, cells)


def _origin(dataset: xr.Dataset) -> tuple[Sweep, Layout]:
    """Return the sweep and the layout of a dataset's tallies."""
    missing = [name for name in ("tally", "tally_bin", "tally_entries") if name not in dataset]
    if missing or "sweep" not in dataset.attrs:
        raise InputError(
            f"dataset: {' and '.join(missing or ['the attribute sweep'])} missing: give a whole dataset of sim.run, "
            f"with its tallies and attributes"
        )
    sweep = Sweep(**json.loads(dataset.attrs["sweep"]))
    tally_layout = layout(sweep)
    stored = dataset["tally"].attrs.get("fields")
    if stored != json.dumps(tally_layout.labels) or len(dataset["tally"].shape) != len(sweep.shape) + 2:
        raise InputError("dataset: its tallies are of another version of sim, or a selection; run the sweep again")
    return sweep, tally_layout


def _labelled(
    dataset: xr.Dataset, sweep: Sweep, variable: str, cells: list[tuple[np.ndarray, np.ndarray]]
) -> xr.DataArray:
    most = max(len(values) for values, _ in cells)
    found = np.full((len(cells), most, *cells[0][0].shape[1:]), np.nan)
    trials = np.full((len(cells), most), np.nan)
    for i, (values, counts) in enumerate(cells):
        found[i, : len(values)], trials[i, : len(values)] = values, counts
    own, attrs = describe(variable)
    axes = tuple(sweep.axes)
    names = [*axes, *own]
    coords: dict[str, Any] = {name: dataset[name] for name in names if name in dataset.coords}
    coords |= {str(name): value for name, value in dataset.coords.items() if value.ndim == 0}
    coords["group"] = np.arange(1, most + 1)
    coords["group_trials"] = ((*axes, "group"), trials.reshape(*sweep.shape, most), {"long_name": "trials so far"})
    attrs.pop("ancillary_variables", None)
    return xr.DataArray(found.reshape(*sweep.shape, *found.shape[1:]), coords, (*axes, "group", *own), variable, attrs)
