"""The plan of a cell: its blocks and groups, and the arguments of its kernel.

Block and group sizes follow from the cell alone; how many blocks are handed out at a time never matters
to a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.arguments import draw_of, fixed_rule, has_own_view
from sim.block import Draw, Geometry, new_work, run_blocks
from sim.cell import Cell
from sim.elementary import LOG2_E
from sim.laws import LAWS
from sim.scales import Rule, scale_factor, scale_rule
from sim.sizes import SIZE_BINS
from sim.stream import OVERFLOWS, Measures
from sim.structure import INITS
from sim.sweep import Sweep
from sim.tally import PARTNERS, ROUNDED, Layout
from sim.theory.normal_rows import key_gradient_theory, query_gradient_limit, row_limits, row_theory
from sim.theory.row_integrals import RowIntegrals
from sim.theory.scores import ScaledTheory, ScoreTheory, scaled_theory, score_theory

__all__ = [
    "FIRST_SCORES",
    "OVERFLOW_TYPES",
    "SIGMAS",
    "Plan",
    "bin_grid",
    "edges_around",
    "layout",
    "plan",
    "reach_of",
    "rounding",
    "unit_of",
]

SIGMAS = (1, 2, 3)
OVERFLOW_TYPES = ("float16", "float32")  # of sim.stream.OVERFLOWS
MAX_GROUPS = 64
HISTOGRAM_BINS = 256
FIRST_SCORES = 1000  # of a cell, which say where its scores lie if theory does not
HISTOGRAM_WIDTHS = 8  # half the histogram's range, in standard deviations
_WORK_PER_BLOCK = 2**17  # multiplications and their like, some 10 microseconds
_WORK_PER_BATCH = 2**29  # some 30 milliseconds: what Ctrl-C waits for at the most
_MAX_BATCH = 1024


@dataclass(frozen=True)
class Plan:
    """How one cell is run.

    Attributes
    ----------
    blocks, block_trials : int
        Number of blocks, and trials in each (1 to 8); the last may be short.
    group_blocks : int
        Blocks in a group, a power of two: at most 64 groups.
    batch_blocks : int
        Blocks handed to a thread at a time, a power of two.
    factors : tuple of float
        Of the scale rules: the slope at 0, of a causal cell's last row.
    rules : tuple of Rule
        The scale rules with their numbers, ln n in the factor but where rows see different numbers of keys.
    edges : array (bins + 1,)
        Of the histogram, in raw units.
    """

    cell: Cell
    trials: int
    blocks: int
    block_trials: int
    group_blocks: int
    batch_blocks: int
    factors: tuple[float, ...]
    rules: tuple[Rule, ...]
    edges: np.ndarray
    theory: ScoreTheory
    draw: Draw
    geometry: Geometry
    visible: np.ndarray
    measures: Measures

    def run(
        self,
        first_block: int,
        tallies: np.ndarray,
        bins: np.ndarray,
        bin_rows: np.ndarray,
        *,
        keep_values: bool = False,
        sample: np.ndarray | None = None,
        stop: np.ndarray | None = None,
    ) -> np.ndarray:
        """Run blocks of the cell on this thread; the other arguments of ``sim.block.run_blocks`` are the plan's.

        Returns
        -------
        float64 array (scales, N_VALUES, n_queries)
            What the rows of the last trial are worth, if `keep_values`.
        """
        work = new_work(self.draw, self.geometry, self.measures, keep_values)
        real = self.measures.exponents.dtype
        run_blocks[real.name](
            first_block,
            self.draw,
            self.geometry,
            self.visible,
            self.measures,
            work,
            tallies,
            bins,
            bin_rows,
            np.empty(0, real) if sample is None else sample,
            np.zeros(1, np.uint8) if stop is None else stop,
        )
        return work.rows.values

    @cached_property
    def scaled(self) -> tuple[ScaledTheory, ...]:
        """What is known of the scores under each rule."""
        return tuple(scaled_theory(self.cell, rule) for rule in self.rules)

    @cached_property
    def row_theory(self) -> dict[str, np.ndarray]:
        """Exact expectations of a row's quantities, each an array (scales,); NaN where there are none."""
        return _by_field([row_theory(self.cell, rule) for rule in self.rules])

    @property
    def key_gradient_theory(self) -> np.ndarray:
        """Exact expectation of ||dL/dk||^2, of shape (scales,); NaN where there is none."""
        return np.array([key_gradient_theory(self.cell, rule) for rule in self.rules])

    @property
    def query_gradient_limit(self) -> np.ndarray:
        """The part of the expectation of ||dL/dq||^2 across the query, of shape (scales,); NaN for short vectors."""
        return np.array([query_gradient_limit(self.cell, rule) for rule in self.rules])

    @cached_property
    def row_limits(self) -> dict[str, np.ndarray]:
        """Their asymptotic forms, each an array (scales,); NaN outside the ranges in which they hold."""
        return _by_field([row_limits(self.cell, rule) for rule in self.rules])


def _by_field(rows: Sequence[RowIntegrals | None]) -> dict[str, np.ndarray]:
    blank = RowIntegrals(*[math.nan] * len(RowIntegrals._fields))
    columns = np.array([row or blank for row in rows], float).T
    return dict(zip(RowIntegrals._fields, columns, strict=True))


def layout(sweep: Sweep) -> Layout:
    """Return the layout of the sweep's tallies, the same for all its cells."""
    bins = sweep.histogram.bins if sweep.histogram else HISTOGRAM_BINS
    sizes = {
        "scale": len(sweep.scale),
        "threshold": len(sweep.threshold),
        "gradient_threshold": len(sweep.gradient_threshold),
        "sigma": len(SIGMAS),
        "bin": bins + 2,
        "size": SIZE_BINS,
        "dtype": len(OVERFLOWS),
    }
    extra = []
    if "weights" in sweep.observables and any(cell.pair.kind == "paired" for cell in sweep.cells):
        extra.append(PARTNERS)
    if "numerics" in sweep.observables and any(cell.is_rounded for cell in sweep.cells):
        extra.append(ROUNDED)
    return Layout((*sweep.observables, *extra), sizes)


def plan(sweep: Sweep, cell: Cell, layout: Layout) -> Plan:
    """Return the plan of one cell of `sweep`."""
    # the product, the passes over the scores, and the elements at some 8 multiplications each
    d_k = cell.d_k or 0
    work = cell.n_queries * cell.n_keys * (d_k + 32) + 8 * (cell.n_queries + cell.n_keys) * d_k
    block_trials = _power_of_two(_WORK_PER_BLOCK // work, 8)
    blocks = -(-sweep.trials // block_trials)
    group_blocks = 1 << max(0, math.ceil(math.log2(blocks / MAX_GROUPS)))
    theory = score_theory(cell)
    edges = _edges(sweep, theory)
    factors = tuple(scale_factor(scale, cell.d_k, cell.n_keys) for scale in sweep.scale)
    rules = tuple(fixed_rule(cell, scale_rule(scale, cell.d_k)) for scale in sweep.scale)
    first, second = (np.uint32(word) for word in cell.philox_key())
    return Plan(
        cell=cell,
        trials=sweep.trials,
        blocks=blocks,
        block_trials=block_trials,
        group_blocks=group_blocks,
        batch_blocks=_power_of_two(_WORK_PER_BATCH // (work * block_trials), _MAX_BATCH),
        factors=factors,
        rules=rules,
        edges=edges,
        theory=theory,
        draw=draw_of(cell, rules),
        geometry=Geometry(cell.n_queries, cell.n_keys, d_k, sweep.trials, block_trials, (first, second)),
        visible=cell.visible,
        measures=_measures(sweep, cell, layout, theory, np.array(factors), rules, edges),
    )


def _power_of_two(at_most: int, limit: int) -> int:
    """Return the largest power of two within both bounds, and at least 1."""
    return 1 << max(0, min(at_most, limit).bit_length() - 1)


def _edges(sweep: Sweep, theory: ScoreTheory) -> np.ndarray:
    if sweep.histogram:
        return np.linspace(sweep.histogram.low, sweep.histogram.high, sweep.histogram.bins + 1)
    std = _known(theory.std, 1.0)  # where it is not known, :mod:`sim.first_scores` moves the edges
    center = _known(theory.mean, 0.0)
    half = HISTOGRAM_WIDTHS * (std or max(1.0, abs(center)))  # a constant score: any width will do
    return edges_around(center, half, HISTOGRAM_BINS)


def _known(value: float, instead: float) -> float:
    return value if math.isfinite(value) else instead


def edges_around(center: float, half: float, bins: int) -> np.ndarray:
    """Return the edges of `bins` equal bins over center ± half, a little to the left.

    The center, or on a lattice whole standard deviations from it, are values that scores take: rounding would decide
    on which side of an edge.
    """
    return np.linspace(center - half, center + half, bins + 1) - half / 2**17


def reach_of(scores: np.ndarray, instead: float = 0.0) -> tuple[float, float, float]:
    """Return where some first scores of a cell lie: median, interquartile range, and half the histogram's range.

    `instead` is a width to take where half of the scores are one value.
    """
    low, median, high = np.quantile(scores, [0.25, 0.5, 0.75]) if len(scores) else (0.0, 0.0, 0.0)
    iqr = high - low
    return median, iqr, HISTOGRAM_WIDTHS * (iqr or instead or max(1.0, abs(median)))


def bin_grid(edges: np.ndarray, precision: np.dtype | str) -> np.ndarray:
    """Return the lower edge of the first bin, and bins per unit of raw score: ``Measures.histogram``."""
    return np.array([edges[0], (len(edges) - 1) / (edges[-1] - edges[0])], precision)


def rounding(mean: float, std: float, precision: np.dtype | str) -> float:
    """Return what a dot product's rounding may do to a score of this mean and standard deviation."""
    return 32 * float(np.finfo(precision).eps) * (std + abs(mean))


def _window(cell: Cell, theory: ScoreTheory) -> np.ndarray:
    """Return the center and the limits of ``score_within_sigma``; NaN where rounding could decide.

    Scores of discrete elements can lie exactly at a whole number of standard deviations, and then count: the
    limit is wider by what a dot product's rounding may do.
    """
    laws = (cell.query.law, cell.key.law) if cell.has_vectors else (cell.score.get("law"),)
    is_discrete = all(LAWS[law.kind].discrete for law in laws)
    slack = rounding(theory.mean, theory.std, cell.computes_in) if is_discrete else 0.0
    if slack > 0.1 * theory.std / math.sqrt(cell.d_k or 1) > 0:
        return np.full(1 + len(SIGMAS), np.nan)
    return np.array([theory.mean, *(sigma * theory.std + slack for sigma in SIGMAS)])


def _measures(
    sweep: Sweep,
    cell: Cell,
    layout: Layout,
    theory: ScoreTheory,
    slopes: np.ndarray,
    rules: tuple[Rule, ...],
    edges: np.ndarray,
) -> Measures:
    real = np.dtype(cell.computes_in)
    own = np.array([has_own_view(cell, rule) for rule in rules])
    factors = np.where(own, 1.0, slopes)
    is_sloped = own | (cell.score.kind != "dot")
    return Measures(
        offsets=layout.offsets,
        factors=factors,
        views=np.where(own, np.cumsum(own), 0),
        n_views=1 + int(own.sum()),
        is_sloped=is_sloped.astype(np.uint8),
        exponents=(factors * LOG2_E).astype(real),
        thresholds=np.array(sweep.threshold),
        gradient_thresholds=np.array(sweep.gradient_threshold),
        window=_window(cell, theory).astype(real),
        unit=unit_of(theory.std),
        is_wide=theory.moments < 4,
        histogram=bin_grid(edges, real),
        bins=len(edges) + 1,
        gradient_units=_gradient_units(cell, slopes, is_sloped),
        partners=min(cell.n_queries, cell.n_keys) if cell.pair.kind == "paired" else 0,
    )


def unit_of(std: float) -> float:
    """Return a power of two near 1 / std that a float32 holds, and 1 where it is not known: ``Measures.unit``."""
    return 2.0 ** max(min(-round(math.log2(std)), 120), -120) if 0 < std < math.inf else 1.0


def _gradient_units(cell: Cell, slopes: np.ndarray, is_sloped: np.ndarray) -> np.ndarray:
    """Return powers of two beyond most ||dL/dq||, without the factor of rules that are one, (scales,).

    It is at most the slope times the largest distance of two ds/dq, which for a dot product are the keys.
    """
    varied = cell.key.std * math.sqrt(cell.d_k or 1)  # what keys without structure differ by
    sizes = np.where(is_sloped | (not _has_plain_keys(cell)), _score_slope(cell), varied)
    units = np.exp2(np.ceil(np.log2(np.where(sizes > 0, sizes, 0.125))) + 3)
    return units * np.where(is_sloped & (slopes != 0), abs(slopes), 1.0)


def _has_plain_keys(cell: Cell) -> bool:
    return cell.key.normalize.kind == "none" and not cell.projection and not cell.key.rotation


def _score_slope(cell: Cell) -> float:
    """Return the typical size of ds/dq."""
    if cell.score.kind == "cosine":
        return 1 / (_length(cell, "query") or 1.0)
    if cell.score.kind == "additive":
        units = cell.score.get("units")
        return float(cell.score.get("v_std")) * math.sqrt(2 * units * cell.d_k / (cell.d_k + units))
    return _length(cell, "key") if cell.has_vectors else 1.0


def _length(cell: Cell, name: str) -> float:
    """Return the typical length of a vector."""
    side, made = getattr(cell, name), cell.projection
    if side.normalize.kind != "none":
        return float(side.normalize.get("gain")) * (1.0 if side.normalize.kind == "l2" else math.sqrt(cell.d_k))
    size = math.hypot(side.mean, side.std)
    if made:
        weight_std = INITS[made.init].std(name, made.d_model, cell.d_k)
        size = math.hypot(size * math.sqrt(made.d_model) * weight_std, made.bias_std)
    return size * math.sqrt(cell.d_k)
