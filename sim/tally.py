"""Tallies: what a block counts, as one flat row of float64 that merges with another, and counts in bins.

A tally is a row of fields laid out by :data:`PARTS`; counts are exact up to 2^53. Rows merge in
aligned pairs, a binary tree over the block index, so that any split of the blocks gives the same bits.
Histograms are thousands of whole numbers, whose order of adding never matters: they stand in a row of their
own, one for each node of the tree rather than for each block.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sim.jit import inner, kernel, owner
from sim.moments import MOMENT_FIELDS, merge_moments

__all__ = [
    "FAMILIES",
    "PARTNERS",
    "PARTS",
    "ROUNDED",
    "Layout",
    "Node",
    "Part",
    "TreeNodes",
    "aligned_runs",
    "leave_one_out",
    "merge_into",
    "merge_tree",
]

FAMILIES = ("scores", "distribution", "weights", "jacobian", "spectrum", "gradients", "numerics")

# Parts of a family that only some sweeps have: those with pairs of queries and keys, and those that round.
PARTNERS, ROUNDED = "weights of partners", "numerics of rounding"

SUM, MINIMUM, MAXIMUM, MOMENTS, BINS = range(5)


@dataclass(frozen=True)
class Part:
    """A run of fields of one kind; `dims` are names of sizes, the family None is always kept.

    Those that merge as BINS stand in the row of bins, all others in the tally's own row.
    """

    name: str
    family: str | None
    merge: int
    dims: tuple[str, ...] = ()


PARTS = (
    Part("trials", None, SUM),
    Part("rows", None, SUM),
    Part("lost_rows", None, SUM, ("scale",)),  # with an infinite score, and so without a softmax
    Part("score_moments", "scores", MOMENTS, ("scale", "moment")),
    Part("score_min", "scores", MINIMUM, ("scale",)),
    Part("score_max", "scores", MAXIMUM, ("scale",)),
    Part("score_trial_max", "scores", SUM, ("scale",)),
    Part("score_row_variance", "scores", SUM, ("scale",)),
    Part("varied_rows", "scores", SUM, ("scale",)),  # those of more than one key, which have a variance
    Part("score_within_sigma", "scores", SUM, ("sigma",)),
    Part("score_histogram", "distribution", BINS, ("bin",)),  # of raw scores, with the two open ends
    Part("weight_max", "weights", SUM, ("scale",)),
    Part("weight_entropy", "weights", SUM, ("scale",)),
    Part("weight_effective_keys", "weights", SUM, ("scale",)),
    Part("weight_sum_squares", "weights", SUM, ("scale",)),
    Part("saturated", "weights", SUM, ("scale", "threshold")),
    Part("partner_weight", PARTNERS, SUM, ("scale",)),
    Part("partner_top", PARTNERS, SUM, ("scale",)),
    Part("partner_rows", PARTNERS, SUM, ("scale",)),
    Part("jacobian_frobenius", "jacobian", SUM, ("scale",)),
    Part("jacobian_frobenius_sq", "jacobian", SUM, ("scale",)),
    Part("jacobian_trace", "jacobian", SUM, ("scale",)),
    Part("vanished", "jacobian", SUM, ("scale", "gradient_threshold")),
    Part("frobenius_sizes", "jacobian", BINS, ("scale", "size")),  # bins of :mod:`sim.sizes`
    Part("jacobian_spectral", "spectrum", SUM, ("scale",)),
    Part("gradient_score_sq", "gradients", SUM, ("scale",)),  # sums over rows, over rows and over keys
    Part("gradient_query_sq", "gradients", SUM, ("scale",)),
    Part("gradient_key_sq", "gradients", SUM, ("scale",)),
    Part("gradient_query_sizes", "gradients", BINS, ("scale", "size")),
    Part("exp_overflows", "numerics", SUM, ("scale", "dtype")),
    Part("score_overflows", "numerics", SUM, ("dtype",)),
    Part("scores", "numerics", SUM),
    Part("zero_weights", ROUNDED, SUM, ("scale",)),
    Part("rounded_weights", ROUNDED, SUM, ("scale",)),
    Part("zero_jacobians", ROUNDED, SUM, ("scale",)),
)

# Where each part starts in its row, -1 when its family is left out: the kernels' view of a layout.
_NAMES = [part.name for part in PARTS]
Offsets: Any = namedtuple("Offsets", _NAMES)  # type: ignore[misc]  # its names come from the table


class Layout:
    """Where every part of a tally stands in its row, and where its bins do in theirs.

    Parameters
    ----------
    families : sequence of str
        The families that are computed.
    sizes : mapping
        The lengths of the parts' dimensions.
    """

    def __init__(self, families: Sequence[str], sizes: Mapping[str, int]) -> None:
        sizes = {**sizes, "moment": MOMENT_FIELDS}
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        segments = []
        self.fields = self.bin_fields = 0
        for part in PARTS:
            if part.family is not None and part.family not in families:
                continue
            shape = tuple(sizes[dim] for dim in part.dims)
            if part.merge == BINS:
                self._places[part.name] = (self.bin_fields, shape)
                self.bin_fields += prod(shape)
            else:
                self._places[part.name] = (self.fields, shape)
                segments.append((self.fields, self.fields + prod(shape), part.merge))
                self.fields += prod(shape)
        self.segments = np.array(segments, np.int64)
        self.offsets = Offsets(*(self._places[p.name][0] if p.name in self._places else -1 for p in PARTS))

    def empty(self, count: int) -> np.ndarray:
        """Return `count` tallies of nothing: the identity of merging."""
        tallies = np.zeros((count, self.fields))
        for start, stop, kind in self.segments:
            if kind in (MINIMUM, MAXIMUM):
                tallies[:, start:stop] = np.inf if kind == MINIMUM else -np.inf
        return tallies

    def empty_bins(self, count: int) -> np.ndarray:
        """Return `count` rows of bins without a count."""
        return np.zeros((count, self.bin_fields), np.int64)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def part(self, rows: np.ndarray, name: str) -> np.ndarray:
        """Return a view of one part of `rows` (..., fields) of tallies or of bins, of shape (..., *part)."""
        at, shape = self._places[name]
        return rows[..., at : at + prod(shape)].reshape(rows.shape[:-1] + shape)

    @property
    def labels(self) -> list[str]:
        """A name for each field of a tally: ``weight_max/0``."""
        return [
            "/".join([part.name, *map(str, index)])
            for part in PARTS
            if part.name in self and part.merge != BINS
            for index in np.ndindex(*self._places[part.name][1])
        ]

    @property
    def bin_parts(self) -> dict[str, list[int]]:
        """Where each part begins in the row of bins, and its shape: ``{"score_histogram": [0, 258]}``."""
        return {
            part.name: [self._places[part.name][0], *self._places[part.name][1]]
            for part in PARTS
            if part.name in self and part.merge == BINS
        }


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


@owner
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


class Node(NamedTuple):
    """A node of the merge tree; a short last block has 0 `blocks`, as it must be drawn again by a longer run."""

    first: int
    blocks: int
    tally: np.ndarray
    bins: np.ndarray


def aligned_runs(first: int, count: int, group_blocks: int, is_short: bool) -> Iterator[tuple[int, int]]:
    """Split the blocks `first` ... into the largest aligned nodes within them.

    Yields
    ------
    at, size : int
        Position from `first`, and number of blocks; ``is_short`` says that the last block is, and stands alone.
    """
    full = count - is_short
    at = 0
    while at < full:
        aligned = (first + at) & -(first + at) or group_blocks
        size = min(group_blocks, aligned, 1 << ((full - at).bit_length() - 1))
        yield at, size
        at += size
    if is_short:
        yield full, 1


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
        In order.
    """

    def __init__(self, group_blocks: int, segments: np.ndarray) -> None:
        self.group_blocks = group_blocks
        self._segments = segments
        self.nodes: list[Node] = []

    def push(self, node: Node) -> None:
        """Add the next node, and merge it with its left neighbour while the two are an aligned pair."""
        while self.nodes and 0 < node.blocks < self.group_blocks:
            left = self.nodes[-1]
            if left.blocks != node.blocks or left.first % (2 * node.blocks):
                break
            node = self._merged(self.nodes.pop(), node)
        self.nodes.append(node)

    def _merged(self, left: Node, right: Node) -> Node:
        """Merge `right` into `left`, whose arrays are used up."""
        merge_into(left.tally, right.tally, self._segments)
        np.add(left.bins, right.bins, out=left.bins)
        return left._replace(blocks=left.blocks + right.blocks)

    def groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the groups' tallies and bins, one a row; what stands right of the last whole group is one more."""
        whole = [node for node in self.nodes if node.blocks == self.group_blocks]
        edge = [node for node in self.nodes if node.blocks < self.group_blocks]
        if edge:
            last = edge[-1]
            for node in reversed(edge[:-1]):  # the tree's own order: the right edge folds from its end
                last = self._merged(node._replace(tally=node.tally.copy(), bins=node.bins.copy()), last)
            whole.append(last)
        return np.stack([node.tally for node in whole]), np.stack([node.bins for node in whole])
