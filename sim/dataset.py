"""The labelled dataset: assembling it from estimates, and netCDF files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import xarray as xr

import sim
from sim.errors import InputError
from sim.observables import OBSERVABLES, Estimate
from sim.plan import OVERFLOW_TYPES, SIGMAS
from sim.provenance import PACKAGE, code_digest
from sim.sweep import Sweep
from sim.tally import Layout, Node

__all__ = [
    "SCHEMA_VERSION",
    "Collector",
    "describe",
    "dimension_labels",
    "is_current",
    "provenance",
    "read",
    "stored_nodes",
    "versions",
    "write",
]

SCHEMA_VERSION = 2


class Collector:
    """Takes the results of a sweep cell by cell, in order, and labels them at the end.

    Parameters
    ----------
    sweep : Sweep
    layout : Layout
        Of its tallies.
    """

    def __init__(self, sweep: Sweep, layout: Layout) -> None:
        self._sweep = sweep
        self._layout = layout
        self._columns: dict[str, list[np.ndarray]] = {}
        self._tallies: list[list[_Stored]] = []

    def add(
        self,
        estimates: Mapping[str, Estimate],
        bookkeeping: Mapping[str, Any],
        nodes: list[Node],
    ) -> None:
        """Add the next cell: its estimates, its other variables, and the nodes of its merge tree."""
        for name, estimate in estimates.items():
            self._append(name, estimate.value)
            if estimate.se is not None:
                self._append(f"{name}_se", estimate.se)
                blank = np.full(estimate.value.shape, np.nan)
                self._append(f"{name}_theory", blank if estimate.theory is None else estimate.theory)
            if estimate.limit is not None:
                self._append(f"{name}_limit", estimate.limit)
        for name, value in bookkeeping.items():
            self._append(name, np.asarray(value))
        self._tallies.append([_Stored.of(node) for node in nodes])

    def _append(self, name: str, value: np.ndarray) -> None:
        self._columns.setdefault(name, []).append(value)

    def dataset(self, attributes: Mapping[str, Any]) -> xr.Dataset:
        """Return the dataset with these attributes."""
        sweep = self._sweep
        axes = tuple(sweep.axes)
        variables = {}
        for name, column in self._columns.items():
            values = np.stack(column).reshape(sweep.shape + column[0].shape)
            dims, attrs = describe(name)
            variables[name] = (axes + dims, values, attrs)
        variables |= self._tally_variables(axes)
        coords: dict[str, Any] = {name: (name, list(values)) for name, values in sweep.axes.items()}
        coords |= sweep.coordinates
        if "n_tokens" in coords:  # both counts are there for readers of any sweep
            coords["n_queries"] = coords["n_keys"] = coords["n_tokens"]
        used = {dim for dims, *_ in variables.values() for dim in dims} | {"scale"}
        coords |= {name: (name, list(values)) for name, values in dimension_labels(sweep).items() if name in used}
        return xr.Dataset(variables, coords, attributes)

    def _tally_variables(self, axes: tuple[str, ...]) -> dict[str, Any]:
        """Return the groups' tallies, padded to the cell with most nodes (absent: NaN, with 0 trials)."""
        shape = self._sweep.shape
        most = max(len(nodes) for nodes in self._tallies)
        tallies = np.full((len(self._tallies), most, self._layout.fields), np.nan)
        first, blocks, entries = np.full((3, len(self._tallies), most), -1, np.int64)
        for i, nodes in enumerate(self._tallies):
            for j, node in enumerate(nodes):
                tallies[i, j], first[i, j], blocks[i, j] = node.tally, node.first, node.blocks
                entries[i, j] = len(node.counts)
        dims = (*axes, "tally_node")
        variables = {
            "tally": (
                (*dims, "tally_field"),
                tallies.reshape(*shape, *tallies.shape[1:]),
                {
                    "long_name": "tallies of the groups of blocks and of the right edge of their merge tree",
                    "fields": json.dumps(self._layout.labels),
                },
            ),
        }
        for name, values, words in (
            ("tally_first_block", first, "first block; -1: no node"),
            ("tally_blocks", blocks, "full blocks merged; 0: one short block; -1: no node"),
            ("tally_entries", entries, "entries of tally_bin and tally_count, node after node; -1: no node"),
        ):
            variables[name] = (dims, values.reshape(*shape, most), {"long_name": words})
        return variables | self._bin_variables()

    def _bin_variables(self) -> dict[str, Any]:
        """Return the occupied bins, all nodes' one after the other: of thousands most are empty."""
        nodes = [node for nodes in self._tallies for node in nodes]
        return {
            "tally_bin": (
                "tally_entry",
                np.concatenate([node.steps for node in nodes]),
                {
                    "long_name": "number of an occupied bin, less that of the one before in the node",
                    "parts": json.dumps(self._layout.bin_parts),
                },
            ),
            "tally_count": (
                "tally_entry",
                np.concatenate([node.counts for node in nodes]),
                {"long_name": "how often the bin was met"},
            ),
        }


@dataclass(frozen=True)
class _Stored:
    """A node of the merge tree as it is stored: of its bins only the occupied ones."""

    first: int
    blocks: int
    tally: np.ndarray
    steps: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, node: Node) -> _Stored:
        occupied = np.flatnonzero(node.bins)
        steps = np.diff(occupied, prepend=0).astype(np.int32)
        return cls(node.first, node.blocks, node.tally, steps, node.bins[occupied])


def stored_nodes(dataset: xr.Dataset, layout: Layout) -> list[list[Node]]:
    """Return the nodes of every cell's merge tree as they stand in a dataset, cells in C order of its axes."""
    count = dataset.sizes["tally_node"]
    tallies = dataset["tally"].values.reshape(-1, count, layout.fields)
    first, blocks, entries = (
        dataset[name].values.reshape(-1, count) for name in ("tally_first_block", "tally_blocks", "tally_entries")
    )
    steps, counts = dataset["tally_bin"].values, dataset["tally_count"].values
    cells, at = [], 0
    for i in range(len(tallies)):
        nodes = []
        for j in np.flatnonzero(first[i] >= 0):
            entry = slice(at, at := at + int(entries[i, j]))
            bins = layout.empty_bins(1)[0]
            bins[np.cumsum(steps[entry])] = counts[entry]
            nodes.append(Node(int(first[i, j]), int(blocks[i, j]), tallies[i, j], bins))
        cells.append(nodes)
    return cells


def dimension_labels(sweep: Sweep) -> dict[str, Sequence[Any]]:
    """Return the coordinate values of the dimensions that come after a sweep's axes."""
    return {
        "scale": sweep.scale_labels,
        "sigma": SIGMAS,
        "dtype": OVERFLOW_TYPES,
        "threshold": sweep.threshold,
        "gradient_threshold": sweep.gradient_threshold,
        "quantile": sweep.quantile,
    }


_BOOKKEEPING = {
    "score_bin_edge": (("scale", "bin_edge"), "edges of the bins of score_histogram"),
    "scale_factor": (("scale",), "what a raw score is multiplied by"),
    "trials": ((), "trials, each one draw of Q and K"),
    "groups": ((), "groups of trials behind the standard errors; intervals use Student's t with groups - 1"),
    "score_moments": ((), "how many moments of the score are finite"),
}


def describe(variable: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the dimensions after the axes, and the attributes, of a variable."""
    if variable in _BOOKKEEPING:
        dims, long_name = _BOOKKEEPING[variable]
        return dims, {"long_name": long_name, "units": "1"}
    name, _, suffix = variable, "", ""
    for ending in ("_se", "_theory", "_limit"):
        if variable not in OBSERVABLES and variable.endswith(ending):
            name, suffix = variable.removesuffix(ending), ending
    entry = OBSERVABLES[name]
    dims = ("scale", *entry.dims) if entry.has_scale else entry.dims
    if suffix == "_se":
        return dims, {"long_name": f"standard error of {name}", "units": entry.units}
    if suffix == "_theory":
        return dims, {"long_name": f"exact closed form of {name}, blank where there is none", "units": entry.units}
    if suffix == "_limit":
        return dims, {"long_name": f"asymptotic form of {name}, blank outside its range", "units": entry.units}
    attrs = {"long_name": entry.long_name, "units": entry.units, "definition": entry.definition}
    if entry.error is not None:
        attrs["ancillary_variables"] = f"{name}_se"
    return dims, attrs


def provenance(sweep: Sweep) -> dict[str, Any]:
    """Return the attributes that say what the numbers come from."""
    seed = sweep.axes.get("seed", [sweep.coordinates.get("seed")])
    return {
        "title": f"{sweep.name}: dot-product attention by Monte Carlo",
        "seed": json.dumps(seed[0] if len(seed) == 1 else list(seed)),
        "sweep": json.dumps(sweep.resolved()),
        "sweep_hash": sweep.hash,
        **versions(),
    }


def versions() -> dict[str, Any]:
    """Return the attributes that say which code and libraries the numbers come from, and when."""
    return {
        "Conventions": "CF-1.11",
        "sim_version": sim.__version__,
        "git_commit": _git_commit(),
        "code_digest": code_digest(),
        "schema_version": SCHEMA_VERSION,
        "numba_version": numba.__version__,
        "numpy_version": np.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache  # of the code that is loaded, whatever becomes of the checkout meanwhile
def _git_commit() -> str:
    """Return the commit of the package's own checkout, with ``-dirty``, or ``unknown``."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"],
            cwd=PACKAGE.parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip() if described.returncode == 0 else "unknown"


def write(dataset: xr.Dataset, path: Path) -> None:
    """Write `dataset` to `path`, replacing what was there: whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    encoding = {
        name: {"zlib": True, "complevel": 4, "shuffle": True} for name in dataset.data_vars if dataset[name].ndim
    }
    # By way of memory: on a full disk the HDF5 library itself crashes.
    content = dataset.to_netcdf(engine="h5netcdf", encoding=encoding)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> xr.Dataset:
    """Return the dataset in `path`, in memory."""
    try:
        with xr.open_dataset(path, engine="h5netcdf") as dataset:
            return dataset.load()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such dataset") from None
    except Exception as error:  # a damaged file may raise anything
        raise InputError(f"{path}: not a netCDF file that can be read ({error})") from None


def is_current(path: Path, sweep: Sweep) -> bool:
    """Return whether `path` holds what running `sweep` with this code would give."""
    try:
        with xr.open_dataset(path, engine="h5netcdf") as dataset:
            attrs = dataset.attrs
    except Exception:  # a damaged file may raise anything
        return False
    return attrs.get("sweep_hash") == sweep.hash and attrs.get("code_digest") == code_digest()
