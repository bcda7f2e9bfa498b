"""Tallies: what a block counts, as one flat row of float64 that merges with another.

A tally is a row of fields laid out by :data:`PARTS`; counts are exact up to 2^53. Rows merge in
aligned pairs, a binary tree over the block index, so that any split of the blocks gives the same bits.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from sim.jit import inner, kernel
from sim.moments import MOMENT_FIELDS, merge_moments

__all__ = ["FAMILIES", "PARTS", "Layout", "Node", "Part", "TreeNodes", "leave_one_out", "merge_into", "merge_tree"]

FAMILIES = ("scores", "distribution", "weights")

SUM, MINIMUM, MAXIMUM, MOMENTS = range(4)


@dataclass(frozen=True)
class Part:
    """A run of fields of one kind; `dims` are names of sizes, the family None is always kept."""

    name: str
    family: str | None
    merge: int
    dims: tuple[str, ...] = ()


PARTS = (
    Part("trials", None, SUM),
    Part("rows", None, SUM),
    Part("score_moments", "scores", MOMENTS, ("scale", "moment")),
    Part("score_min", "scores", MINIMUM, ("scale",)),
    Part("score_max", "scores", MAXIMUM, ("scale",)),
    Part("score_trial_max", "scores", SUM, ("scale",)),
    Part("score_row_variance", "scores", SUM, ("scale",)),
    Part("score_within_sigma", "scores", SUM, ("sigma",)),
    Part("score_histogram", "distribution", SUM, ("bin",)),  # of raw scores, with the two open ends
    Part("weight_max", "weights", SUM, ("scale",)),
    Part("weight_entropy", "weights", SUM, ("scale",)),
    Part("weight_effective_keys", "weights", SUM, ("scale",)),
    Part("weight_sum_squares", "weights", SUM, ("scale",)),
    Part("saturated", "weights", SUM, ("scale", "threshold")),
)

# Where each part starts in the row, -1 when its family is left out: the kernels' view of a layout.
_NAMES = [part.name for part in PARTS]
Offsets: Any = namedtuple("Offsets", _NAMES)  # type: ignore[misc]  # its names come from the table


class Layout:
    """Where every part of a tally stands in its row.

    Parameters
    ----------
    families : sequence of str
        The families that are computed.
    sizes : mapping
        The lengths of ``scale``, ``threshold``, ``sigma`` and ``bin``.
    """

    def __init__(self, families: Sequence[str], sizes: Mapping[str, int]) -> None:
        sizes = {**sizes, "moment": MOMENT_FIELDS}
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        segments = []
        at = 0
        for part in PARTS:
            if part.family is None or part.family in families:
                shape = tuple(sizes[dim] for dim in part.dims)
                self._places[part.name] = (at, shape)
                segments.append((at, at + prod(shape), part.merge))
                at += prod(shape)
        self.fields = at
        self.segments = np.array(segments, np.int64)
        self.offsets = Offsets(*(self._places[p.name][0] if p.name in self._places else -1 for p in PARTS))

    def empty(self, count: int) -> np.ndarray:
        """Return `count` tallies of nothing: the identity of merging."""
        tallies = np.zeros((count, self.fields))
        for start, stop, kind in self.segments:
            if kind in (MINIMUM, MAXIMUM):
                tallies[:, start:stop] = np.inf if kind == MINIMUM else -np.inf
        return tallies

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def part(self, tallies: np.ndarray, name: str) -> np.ndarray:
        """Return a view of one part of `tallies` (..., fields), of shape (..., *part)."""
        at, shape = self._places[name]
        return tallies[..., at : at + prod(shape)].reshape(tallies.shape[:-1] + shape)

    @property
    def labels(self) -> list[str]:
        """A name for each field: ``weight_max/0``, ``score_histogram/17``."""
        return [
            "/".join([name, *map(str, index)])
            for name, (_, shape) in self._places.items()
            for index in np.ndindex(*shape)
        ]


@kernel
def merge_into(a, b, segments):
    """Merge the tally `b`, of later blocks, into `a`."""
    for k in range(segments.shape[0]):
        start, stop, kind = segments[k]
        if kind == SUM:
            for i in range(start, stop):
                a[i] += b[i]
        elif kind == MINIMUM:
            for i in range(start, stop):
                a[i] = min(a[i], b[i])
        elif kind == MAXIMUM:
            for i in range(start, stop):
                a[i] = max(a[i], b[i])
        else:
            for i in range(start, stop, MOMENT_FIELDS):
                merge_moments(a[i : i + MOMENT_FIELDS], b[i : i + MOMENT_FIELDS])


@kernel
def merge_tree(tallies, segments):
    """Merge the rows of `tallies` in aligned pairs; the result stands in row 0.

    A right child that does not exist leaves its parent equal to the left child.
    """
    width = 1
    while width < tallies.shape[0]:
        for i in range(0, tallies.shape[0] - width, 2 * width):
            merge_into(tallies[i], tallies[i + width], segments)
        width *= 2


@inner
def _copy(source, out):
    for i in range(out.shape[0]):
        out[i] = source[i]


@kernel
def leave_one_out(groups, segments):
    """Return for every row of `groups` (at least two) the merged tally of all the others."""
    count = groups.shape[0]
    before = groups.copy()  # row g: groups 0 .. g
    after = groups.copy()  # row g: groups g .. the last
    for g in range(1, count):
        _copy(before[g - 1], before[g])
        merge_into(before[g], groups[g], segments)
        h = count - 1 - g
        merge_into(after[h], after[h + 1], segments)
    result = np.empty_like(groups)
    _copy(after[1], result[0])
    _copy(before[count - 2], result[count - 1])
    for g in range(1, count - 1):
        _copy(before[g - 1], result[g])
        merge_into(result[g], after[g + 1], segments)
    return result


Node = tuple[int, int, np.ndarray]  # first block, blocks, tally


class TreeNodes:
    """The nodes of the merge tree that are kept: aligned groups of full blocks, then the right edge.

    Parameters
    ----------
    group_blocks : int
        Blocks in a group, a power of two; nodes are merged up to this size.
    segments : array
        Of the layout.

    Attributes
    ----------
    nodes : list of Node
        In order. A short last block stands alone with 0 blocks: it must be drawn again when the run
        is extended.
    """

    def __init__(self, group_blocks: int, segments: np.ndarray) -> None:
        self.group_blocks = group_blocks
        self._segments = segments
        self.nodes: list[Node] = []

    def push(self, first: int, blocks: int, tally: np.ndarray) -> None:
        """Add the next node, and merge it with its left neighbour while the two are an aligned pair."""
        while self.nodes and 0 < blocks < self.group_blocks:
            left_first, left_blocks, left = self.nodes[-1]
            if left_blocks != blocks or left_first % (2 * blocks):
                break
            self.nodes.pop()
            merge_into(left, tally, self._segments)
            first, blocks, tally = left_first, 2 * blocks, left
        self.nodes.append((first, blocks, tally))

    def groups(self) -> np.ndarray:
        """Return the groups' tallies, one a row; what stands right of the last whole group is one more."""
        whole = [tally for _, blocks, tally in self.nodes if blocks == self.group_blocks]
        edge = [tally for _, blocks, tally in self.nodes if blocks < self.group_blocks]
        if edge:
            last = edge[-1].copy()
            for tally in reversed(edge[:-1]):  # the tree's own order: the right edge folds from its end
                left = tally.copy()
                merge_into(left, last, self._segments)
                last = left
            whole.append(last)
        return np.stack(whole)
