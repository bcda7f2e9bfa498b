"""``sim.measure``: every observable of given queries and keys, exactly; nothing is drawn.

The vectors go through the kernels that drawn ones take, one head after the other as one trial each. Medians and
quantiles are taken from the values themselves, not from bins.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from sim.arrays import as_real
from sim.blas import blas_name, one_blas_thread
from sim.cell import visible_keys
from sim.cpu import available_threads
from sim.dataset import describe, dimension_labels, versions
from sim.errors import InputError, suggest
from sim.estimates import Tallies
from sim.given import Given, run_given
from sim.observables import OBSERVABLES, observed, value_of
from sim.plan import FIRST_SCORES, SIGMAS, Plan, bin_grid, edges_around, layout, plan, reach_of, rounding, unit_of
from sim.quantiles import scaled_edges
from sim.reading import RefusedError, canonical, read_name, repeated, show
from sim.rows import FROBENIUS, GRADIENT_QUERY_SQ
from sim.sweep import Sweep
from sim.tally import FAMILIES, Layout

__all__ = ["measure"]

Array = np.ndarray

_CHUNK = 1 << 22  # scores at a time in the pass over the raw scores
# Beyond it the fourth powers of scores leave the floats that they are summed in (float64), or what stands for an
# exponential of 0, 2^-120 in float32, is seen beside scores so far apart.
_LARGEST = {"float32": 1e25, "float64": 1e70}
_SMALLEST_HALF = {"float32": 1e-30, "float64": 1e-290}  # of a histogram: bins per unit of score are then still a number
# Where what is said of drawn vectors, with their trials, theory and bins, does not hold.
_DEFINITIONS = {
    "score_min": "over all pairs of query and key",
    "score_max": "over all pairs of query and key",
    "score_trial_max": "max |s|",
    "score_within_sigma": "|s - mean| <= sigma std by the mean and std of these scores, decided on raw scores",
    "score_quantile": "of the sorted scores, linear between neighbours",
    "jacobian_frobenius_median": "of the values themselves",
    "gradient_query_median": "of sqrt ||dL/dq||^2, averaged over standard normal g",
}
_COUNTS = ("d_k", "n_queries", "n_keys", "causal", "precision")


def measure(
    query: Any,
    key: Any,
    *,
    scale: Any = ("none", "sqrt_dk", "dk"),
    dims: Sequence[str] | None = None,
    causal: bool = False,
    precision: str = "float64",
    observables: Sequence[str] | str = FAMILIES,
    **settings: Any,
) -> xr.Dataset:
    """Measure given queries and keys.

    Parameters
    ----------
    query : array (..., heads, n_queries, d_k)
        float16, bfloat16, float32, float64 or integers, all finite. Leading axes become dimensions.
    key : array (..., key heads, n_keys, d_k)
        With the same leading axes; fewer heads are repeated: query head h meets key head h // (heads / key heads).
    scale : name, table, number, or a list of them
        As in :class:`sim.Sweep`.
    dims : sequence of str, optional
        Names of the leading axes; ``axis_0``, ``axis_1``, ... unless given.
    causal : bool
        Whether query i sees only the keys up to its own place, the last query all of them.
    precision : {"float64", "float32"}
        In which the scores are computed.
    observables : list of str
        The families; all unless given. "distribution" keeps all scores of a head in memory.
    **settings
        ``threshold``, ``gradient_threshold``, ``quantile`` and ``histogram``, as in :class:`sim.Sweep`.

    Returns
    -------
    xarray.Dataset
        The observables along the leading axes and `scale`, without `_se`, `_theory` or `trials`. Rows with a score
        beyond 1e25 (float32) or 1e70 (float64) are counted in ``overflowed_rows``, left out, and warned of.

    Raises
    ------
    InputError
        If an array or an option is wrong.
    """
    start = time.perf_counter()
    heads = _heads(as_real(query, "query"), as_real(key, "key"), dims)
    sweep = _sweep(heads, scale, causal, precision, observables, settings)
    tally_layout = layout(sweep)
    made = plan(sweep, sweep.cells[0], tally_layout)
    with one_blas_thread(), ThreadPoolExecutor(available_threads()) as pool:
        columns = list(pool.map(lambda pair: _measure_head(pair[0], pair[1], made, tally_layout, sweep), heads.pairs()))
    dataset = _labelled(columns, heads, sweep)
    _warn_of_lost_rows(int(dataset["overflowed_rows"].sum()), heads, precision)
    attributes = {
        "title": "queries and keys as given",
        **versions(),
        "scale": ", ".join(sweep.scale_labels),
        "blas": blas_name(),
        "elapsed_seconds": round(time.perf_counter() - start, 3),
    }
    return dataset.assign_attrs(attributes)


def _warn_of_lost_rows(lost: int, heads: _Heads, precision: str) -> None:
    if lost:
        warnings.warn(
            f"{lost} of {heads.count * heads.n_queries} rows have a score beyond {_LARGEST[precision]:.2g}, what "
            f"{precision} can take here; they are counted in overflowed_rows and left out of all else",
            RuntimeWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class _Heads:
    """Queries and keys with their leading axes, by name."""

    query: Array
    key: Array
    dims: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.query.shape[:-2]

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def n_queries(self) -> int:
        return self.query.shape[-2]

    def pairs(self) -> Iterator[tuple[Array, Array]]:
        """Yield Q and K of every head; query heads share the keys of their group."""
        group = self.query.shape[-3] // self.key.shape[-3] if self.shape else 1
        for place in itertools.product(*map(range, self.shape)):
            shared = (*place[:-1], place[-1] // group) if place else place
            yield self.query[place], self.key[shared]


def _heads(query: Array, key: Array, dims: Sequence[str] | None) -> _Heads:
    """Check that the arrays belong together."""
    if query.shape[-1] != key.shape[-1]:
        raise InputError(
            f"query and key have vectors of different lengths, {query.shape[-1]} and {key.shape[-1]} (shapes "
            f"{query.shape} and {key.shape}); the last axis is d_k, the one before it the tokens"
        )
    if query.ndim != key.ndim:
        raise InputError(
            f"query and key have {query.ndim} and {key.ndim} axes (shapes {query.shape} and {key.shape}); give both "
            f"the same leading axes"
        )
    lead, key_lead = query.shape[:-2], key.shape[:-2]
    if lead and (lead[:-1] != key_lead[:-1] or lead[-1] % key_lead[-1]):
        raise InputError(
            f"query and key have the leading axes {lead} and {key_lead}: they must be equal, but for the last of "
            f"them, the heads, where the keys' {key_lead[-1]} must divide the queries' {lead[-1]}"
        )
    return _Heads(query, key, _names(dims, len(lead)))


def _names(dims: Sequence[str] | None, count: int) -> tuple[str, ...]:
    given = [f"axis_{i}" for i in range(count)] if dims is None else dims
    names = tuple(given) if isinstance(given, (list, tuple)) else ("",)
    usable = all(isinstance(name, str) and name and name.isprintable() and "/" not in name for name in names)
    if len(names) != count or not usable:
        raise InputError(
            f"dims: got {show(dims)}; the arrays have {count} leading {'axis' if count == 1 else 'axes'}, give a name "
            f"without / for each in a list"
        )
    if again := repeated(names):
        raise InputError(f"dims has {again} twice: each axis needs a name of its own")
    variables = ("overflowed_rows", "scale_factor", "score_bin_edge", *OBSERVABLES)
    taken = {dim for name in variables[1:] for dim in describe(name)[0]} | {*variables, *_COUNTS}
    if clash := taken & set(names):
        raise InputError(f"dims: {', '.join(sorted(clash))} is a name of the dataset's own; choose another")
    return names


def _sweep(
    heads: _Heads, scale: Any, causal: Any, precision: Any, observables: Any, settings: Mapping[str, Any]
) -> Sweep:
    allowed = ("threshold", "gradient_threshold", "quantile", "histogram")
    if unknown := [name for name in settings if name not in allowed]:
        takes = ["scale", "dims", "causal", "precision", "observables", *allowed]
        raise InputError(f"{unknown[0]} is unknown: measure takes {', '.join(takes)}{suggest(unknown[0], takes)}")
    for name, given in (("causal", causal), ("precision", precision)):
        if isinstance(given, (list, tuple)):  # an axis in a sweep
            raise InputError(f"{name} = {show(given)} is not allowed: a list may not stand here; give one value")
    try:
        read_name(precision, tuple(_LARGEST))  # a sweep also knows precisions that are emulated
    except RefusedError as refusal:
        raise InputError(f"precision{refusal}") from None
    return Sweep(
        d_k=heads.query.shape[-1],
        n_queries=heads.n_queries,
        n_keys=heads.key.shape[-2],
        trials=1,
        scale=scale,
        causal=causal,
        precision=precision,
        observables=observables,
        **settings,
    )


class _Scores:
    """What one pass over a head's raw scores, a chunk of rows at a time, finds out before the kernels run."""

    def __init__(self, query: Array, key: Array, visible: Array, precision: str, keep: bool) -> None:
        self.is_lost = np.zeros(len(query), bool)
        self.first = np.empty(0)
        self.sorted = np.empty(0)
        with np.errstate(over="ignore"):  # an entry beyond the precision's range gives a score that is
            query, self.key = np.ascontiguousarray(query, precision), np.ascontiguousarray(key, precision)
        kept, count, mean, m2 = [], 0, 0.0, 0.0
        step = max(1, _CHUNK // len(key))
        for at in range(0, len(query), step):
            with np.errstate(over="ignore", invalid="ignore"):
                scores = (query[at : at + step] @ self.key.T).astype(float)
            sees = np.arange(len(key)) < visible[at : at + step, None]
            lost = np.logical_not((abs(np.where(sees, scores, 0)) < _LARGEST[precision]).all(axis=1))
            self.is_lost[at : at + step] = lost
            values = scores[sees & ~lost[:, None]]
            if len(self.first) < FIRST_SCORES:
                self.first = np.concatenate([self.first, values[: FIRST_SCORES - len(self.first)]])
            if keep:
                kept.append(values)
            if len(values):
                away = values.mean() - mean
                total = count + len(values)
                m2 += ((values - values.mean()) ** 2).sum() + away**2 * count * len(values) / total
                mean, count = mean + away * len(values) / total, total
        self.mean, self.std = mean, float(np.sqrt(m2 / count)) if count else 0.0
        if keep:
            self.sorted = np.sort(np.concatenate(kept))

    def edges(self, bins: int) -> Array:
        """Return edges over the median of the first thousand scores ± 8 of their interquartile ranges.

        No bin is narrower than the precision's step there.
        """
        median, _, half = reach_of(self.first, self.std)
        half = max(half, _SMALLEST_HALF[self.key.dtype.name], bins * float(np.finfo(self.key.dtype).eps) * abs(median))
        return edges_around(median, half, bins)


def _measure_head(query: Array, key: Array, made: Plan, tally_layout: Layout, sweep: Sweep) -> dict[str, Array]:
    """Return every variable of one head, by name."""
    cell = made.cell
    visible = visible_keys(len(query), len(key), cell.causal)
    scores = _Scores(query, key, visible, cell.precision, "distribution" in sweep.observables)
    is_kept = ~scores.is_lost
    columns: dict[str, Any] = {"overflowed_rows": np.int64(scores.is_lost.sum())}
    edges = made.edges if sweep.histogram else scores.edges(len(made.edges) - 1)
    # What lies at a whole number of standard deviations counts, as both of two scores do and all that are one value,
    # whatever rounding says: NumPy's product may add in another order than the kernels'.
    slack = min(rounding(scores.mean, scores.std, cell.precision), 0.01 * scores.std or math.inf)
    measures = made.measures._replace(
        window=np.array([scores.mean, *(sigma * scores.std + slack for sigma in SIGMAS)], cell.precision),
        unit=unit_of(scores.std),
        histogram=bin_grid(edges, cell.precision),
    )
    rows = int(is_kept.sum())
    head = replace(
        made,
        measures=measures,
        edges=edges,
        visible=visible[is_kept],
        geometry=made.geometry._replace(n_queries=rows),
    )
    if rows:
        seen = np.nan_to_num(scores.key, posinf=0, neginf=0)  # no row that is kept sees a key that overflows
        found = run_given(head, tally_layout, query[is_kept], seen)
        tallies = Tallies(found.tally[None], found.bins[None], tally_layout)
    for name in observed(sweep, tally_layout):
        if not rows:
            columns[name] = np.full(_shape(name, sweep, edges), np.nan)
        elif name in _EXACT:
            columns[name] = _EXACT[name](found, scores, head, sweep)
        else:
            columns[name] = value_of(name, tallies, head, sweep.quantile)
    if "distribution" in sweep.observables:
        columns["score_bin_edge"] = scaled_edges(edges, head.rules)
    return columns | {"scale_factor": np.array(head.factors)}


def _quantiles(found: Given, scores: _Scores, head: Plan, sweep: Sweep) -> Array:
    levels, factors = np.array(sweep.quantile), np.array(head.factors)[:, None]
    raw = np.quantile(scores.sorted, np.where(factors < 0, 1 - levels, levels))
    return np.array([rule.scaled(row) for rule, row in zip(head.rules, raw, strict=True)])


def _frobenius_median(found: Given, scores: _Scores, head: Plan, sweep: Sweep) -> Array:
    return np.median(found.values[:, FROBENIUS], axis=1)


def _gradient_query_median(found: Given, scores: _Scores, head: Plan, sweep: Sweep) -> Array:
    return np.median(np.sqrt(found.values[:, GRADIENT_QUERY_SQ]), axis=1)


_EXACT: dict[str, Callable[[Given, _Scores, Plan, Sweep], Array]] = {
    "score_quantile": _quantiles,
    "jacobian_frobenius_median": _frobenius_median,
    "gradient_query_median": _gradient_query_median,
}


def _shape(name: str, sweep: Sweep, edges: Array) -> tuple[int, ...]:
    sizes = {dim: len(values) for dim, values in dimension_labels(sweep).items()} | {"bin": len(edges) + 1}
    return tuple(sizes[dim] for dim in describe(name)[0])


def _labelled(columns: Sequence[Mapping[str, Array]], heads: _Heads, sweep: Sweep) -> xr.Dataset:
    variables: dict[str, Any] = {}
    for name in columns[0]:
        values = np.stack([column[name] for column in columns])
        if name == "overflowed_rows":
            own: tuple[str, ...] = ()
            attrs = {"long_name": "rows with a score beyond the precision's range, left out", "units": "1"}
        else:
            own, attrs = describe(name)
            attrs.pop("ancillary_variables", None)
            attrs |= {"definition": _DEFINITIONS[name]} if name in _DEFINITIONS else {}
        if name == "scale_factor":  # the same for every head
            variables[name] = (own, values[0], attrs)
        else:
            variables[name] = ((*heads.dims, *own), values.reshape((*heads.shape, *values.shape[1:])), attrs)
    used = {dim for dims, *_ in variables.values() for dim in dims}
    coords: dict[str, Any] = {
        name: (name, list(values)) for name, values in dimension_labels(sweep).items() if name in used
    }
    coords |= {name: canonical(getattr(sweep.cells[0], name)) for name in _COUNTS}
    return xr.Dataset(variables, coords)
