"""Which kinds of keys a query meets in a block of scores, and how many of each stand in a row.

A query's keys are of three kinds at the most: its partner (the key paired with it, or its own token), the partners of
other queries, and all others. Keys of one kind are alike, so that the moments of a block are those of a mixture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.cell import Cell, visible_keys
from sim.theory.sources import Vector, side_source

__all__ = ["Rows", "TokenPairs", "token_pairs"]

Array = np.ndarray


@dataclass(frozen=True)
class Rows:
    """Classes of rows that hold the same numbers of keys.

    Attributes
    ----------
    counts : array (kinds, classes)
        Visible keys of each kind in a row.
    weights : array (classes,)
        How many rows are of each class.
    """

    counts: Array
    weights: Array

    @property
    def keys(self) -> Array:
        """Visible keys of a row of each class."""
        return self.counts.sum(axis=0)

    @property
    def shares(self) -> Array:
        """The share of the block's scores by kind and class."""
        counts = self.counts * self.weights
        return counts / counts.sum()


@dataclass(frozen=True)
class TokenPairs:
    """A query and the kinds of its keys; under a projection, the tokens of both.

    Attributes
    ----------
    query : Vector
    keys, others : tuple of Vector
        A key of each kind, and another of the same kind in the same row.
    rows : Rows
    """

    query: Vector
    keys: tuple[Vector, ...]
    others: tuple[Vector, ...]
    rows: Rows

    @property
    def are_independent(self) -> bool:
        """Whether every key is independent of the query, and all keys are alike."""
        return len(self.keys) == 1 and not self.query.has_part_of(self.keys[0])


def token_pairs(cell: Cell) -> TokenPairs:
    """Return the query and the kinds of keys of a cell, before projection, normalization and rotation."""
    attends_itself = cell.projection is not None and cell.projection.attention == "self"
    rho = float(cell.pair.get("rho")) if cell.pair.kind != "none" else 0.0
    queries = [_drawn(cell, "query", i) for i in range(3)]
    keys = [_drawn(cell, "key", i) for i in range(3)]
    if attends_itself:
        kinds = [(queries[0], queries[0]), (queries[1], queries[2])]
    elif cell.pair.kind == "paired" and rho:
        paired = [_sum(rho, query, math.sqrt(1 - rho**2), key) for query, key in zip(queries, keys, strict=True)]
        kinds = [(paired[0], paired[0]), (paired[1], paired[2]), (keys[1], keys[2])]
    elif cell.pair.kind == "shared" and rho:
        common, own = math.sqrt(rho), math.sqrt(1 - rho)
        queries = [_sum(common, {"shared": 1.0}, own, query) for query in queries]
        shared = [_sum(common, {"shared": 1.0}, own, key) for key in keys]
        kinds = [(shared[1], shared[2])]
    else:
        kinds = [(keys[1], keys[2])]
    rows = _rows(cell, len(kinds))
    present = [i for i in range(len(kinds)) if rows.counts[i].any()]
    side = "query" if attends_itself else "key"
    return TokenPairs(
        query=_vector(cell, "query", queries[0]),
        keys=tuple(_vector(cell, side, kinds[i][0]) for i in present),
        others=tuple(_vector(cell, side, kinds[i][1]) for i in present),
        rows=Rows(rows.counts[present], rows.weights),
    )


Weights = dict[str, float]


def _drawn(cell: Cell, side: str, i: int) -> Weights:
    """Return the weights of one side's i-th standardised vector: what all share, and its own."""
    tokens = (cell.query if side == "query" else cell.key).tokens
    rho = tokens.rho if tokens else 0.0
    weights = {f"{side} common": math.sqrt(rho), f"{side} {i}": math.sqrt(1 - rho)}
    return {name: weight for name, weight in weights.items() if weight}


def _sum(p: float, a: Weights, r: float, b: Weights) -> Weights:
    weights = {name: p * a.get(name, 0.0) + r * b.get(name, 0.0) for name in {**a, **b}}
    return {name: weight for name, weight in weights.items() if weight}


def _vector(cell: Cell, name: str, weights: Weights) -> Vector:
    side = cell.query if name == "query" else cell.key
    of_query, of_key = side_source(cell.query, cell.width), side_source(cell.key, cell.width)
    sources = {name: of_key if name.startswith("key") else of_query for name in weights}
    scaled = {name: side.std * weight for name, weight in weights.items() if side.std}
    return Vector(cell.width, side.mean, sources, scaled)


def _rows(cell: Cell, kinds: int) -> Rows:
    """Return how many keys of each kind the rows hold: all of one kind, or partner and others, or all three."""
    rows = np.arange(cell.n_queries) if cell.causal else np.array([0, cell.n_queries - 1])
    keys = visible_keys(cell.n_queries, cell.n_keys, cell.causal) if cell.causal else np.full(2, cell.n_keys)
    partners = min(cell.n_queries, cell.n_keys)
    has_partner = (rows < partners).astype(int)
    if kinds == 1:
        counts = [keys]
    elif kinds == 2:
        counts = [has_partner, keys - has_partner]
    else:
        related = np.minimum(partners, keys) - has_partner
        counts = [has_partner, related, keys - has_partner - related]
    if cell.causal:
        return Rows(np.array(counts), np.ones(cell.n_queries))
    weights = np.array([partners, cell.n_queries - partners]) if kinds > 1 else np.array([cell.n_queries, 0])
    return Rows(np.array(counts)[:, weights > 0], weights[weights > 0])
