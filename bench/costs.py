"""What a law or a structure costs: CPU time beside the plain case, in interleaved rounds of one thread.

A law is timed by its elements alone, random words included; a structure by whole trials of 128 × 128 tokens with
d_k = 64, of the first row's work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xarray as xr
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.floor import one_thread
from bench.rounds import calibrate, order, timed
from bench.work import SCALES, SEED
from sim.cpu import compile_kernels, run_batches
from sim.draw import LAW_CODES, START, fill
from sim.laws import LAWS
from sim.philox import KEY
from sim.plan import Plan, layout, plan
from sim.sweep import Sweep
from sim.tally import Layout

__all__ = ["CASES", "PLAIN", "Case", "measure_costs", "table"]

PLAIN = "gaussian, plain"
_TOKENS, _ELEMENTS = 512, 64
_LAWS = {
    "rademacher": 0.0,
    "uniform": 0.0,
    "laplace": 0.0,
    "student_t": 5.0,
    "exponential": 0.0,
    "two_point": 0.2,
    "sparse": 0.1,
    "lognormal": 0.5,
}
_RHO = {"rho": 0.5}


@dataclass(frozen=True)
class Case:
    """One line of the table: fields of a sweep, and how many times the plain case it may cost; NaN for no bound."""

    fields: Mapping[str, Any]
    target: float = np.nan


CASES: dict[str, Case] = {
    "magnitude": Case({"vectors": {"dependent": {"kind": "magnitude", "df": 5}}}, 2),
    "signs": Case({"vectors": {"dependent": "signs"}}, 2),
    "equicorrelated": Case({"vectors": {"within": {"kind": "equicorrelated", **_RHO}}}, 2),
    "ar1": Case({"vectors": {"within": {"kind": "ar1", **_RHO}}}, 2),
    "power_law": Case({"vectors": {"within": {"kind": "power_law", "exponent": 1}}}, 2),
    "outliers": Case({"vectors": {"within": {"kind": "outliers", "count": 2, "factor": 10}}}, 1.3),
    "tokens": Case({"vectors": {"tokens": _RHO}}, 1.3),
    "paired": Case({"pair": {"kind": "paired", **_RHO}}, 1.3),
    "shared": Case({"pair": {"kind": "shared", **_RHO}}, 2),
    "normalize l2": Case({"vectors": {"normalize": "l2"}}, 1.3),
    "normalize rms": Case({"vectors": {"normalize": "rms"}}, 1.3),
    "normalize layer": Case({"vectors": {"normalize": "layer"}}, 1.3),
    "rotation": Case({"vectors": {"rotation": {"base": 10000}}}, 2),
    "projection, d_model 128": Case({"projection": {"init": "xavier_uniform", "d_model": 128}}),
    "cosine": Case({"score": "cosine"}),
    "additive, 64 units": Case({"score": {"kind": "additive", "units": 64}}),
    "float16": Case({"precision": "float16"}),
    "soft caps": Case({"scale": [{"kind": "softcap", "cap": cap} for cap in (10, 30, 50)]}),
}


def _elements(law: str, shape: float) -> Callable[[int], None]:
    out = np.empty((_ELEMENTS, _TOKENS), np.float32)
    numbers = np.array([0, 1, *LAWS[law].constants(shape)], np.float32)
    key = (np.uint32(SEED), np.uint32(0))

    def run(trials: int) -> None:
        for trial in range(trials):
            fill(LAW_CODES[law], out, START, START, np.uint32(trial), KEY, key, numbers)

    return run


def _trials(fields: Mapping[str, Any]) -> Callable[[int], None]:
    families = ["scores", "weights", "jacobian"]
    plain = {"d_k": 64, "n_tokens": 128, "scale": list(SCALES), "observables": families, "seed": SEED}

    @cache  # closed forms are no part of the work
    def planned(trials: int) -> tuple[Plan, Layout]:
        sweep = Sweep(**{**plain, **fields, "trials": trials})
        where = layout(sweep)
        made = plan(sweep, sweep.cells[0], where)
        compile_kernels(made, where)
        return made, where

    def run(trials: int) -> None:
        made, where = planned(trials)
        for _ in run_batches([made], where, 1):
            pass

    return run


def measure_costs(rounds: int, budget: float) -> xr.Dataset:
    """Return the costs: `rounds` interleaved rounds, each case for about `budget` seconds of a round."""
    laws = {"gaussian": _elements("gaussian", 0.0), **{law: _elements(law, shape) for law, shape in _LAWS.items()}}
    structures = {PLAIN: _trials({}), **{name: _trials(case.fields) for name, case in CASES.items()}}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with one_thread():
        for plain, group in (("gaussian", laws), (PLAIN, structures)):
            trials = {name: calibrate(run, budget) for name, run in group.items()}
            times: dict[str, list[float]] = {name: [] for name in group}
            for number in range(rounds):
                for name in order(list(group), number):
                    times[name].append(timed(group[name], trials[name]).cpu)
            found |= {name: (np.array(values), np.array(times[plain])) for name, values in times.items()}
    targets = [3.0 if name in LAWS else CASES[name].target if name in CASES else np.nan for name in found]
    per = [1e9 / (_TOKENS * _ELEMENTS) if name in LAWS else 1e6 for name in found]
    times_of = np.array([values for values, _ in found.values()]) * np.array(per)[:, None]
    ratios = np.array([values / plain for values, plain in found.values()])
    return xr.Dataset(
        {
            "cost": (("case", "round"), times_of, {"long_name": "CPU time: ns an element (laws), us a trial"}),
            "ratio": (("case", "round"), ratios, {"long_name": "times the plain case of the same round", "units": "1"}),
            "ratio_target": (("case",), targets, {"long_name": "the most that it may be", "units": "1"}),
        },
        {"case": list(found), "round": np.arange(1, rounds + 1)},
    )


def table(data: xr.Dataset) -> Table:
    """Return the medians over the rounds as a table."""
    found = Table(box=SIMPLE_HEAD, title="What laws (ns an element) and structures (µs a trial, 64, 128×128) cost")
    for name in ("law or structure", "CPU", "× plain", "at most"):
        found.add_column(name, justify="left" if name.startswith("law") else "right")
    for case in data["case"].values:
        one = data.sel(case=case)
        cost, ratio, target = float(one["cost"].median()), float(one["ratio"].median()), float(one["ratio_target"])
        missed = " [red]missed[/]" if ratio > target else ""
        unit = "ns" if case in LAWS else "µs"
        bound = "" if np.isnan(target) else f"{target:g}{missed}"
        found.add_row(str(case), f"{cost:.3g} {unit}", f"{ratio:.2f}", bound)
    return found
