"""A cell: one point of the sweep grid, as validated plain scalars, and the key of its random words."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Annotated, Any, Literal, NoReturn, cast, get_args

import numpy as np
from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from sim.kinds import Choice
from sim.reading import Record, RefusedError, Whole, canonical, canonical_json, label, read_choice, read_name, show
from sim.side import NONE, Projection, Rotation, Side, Tokens, or_none
from sim.structure import PAIR, SCORES

__all__ = ["PRECISIONS", "SCALE_AT", "Cell", "Projection", "Rotation", "Side", "Tokens", "visible_keys"]

Precision = Literal["float32", "float64", "float16", "bfloat16"]
ScaleAt = Literal["scores", "query", "both"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
SCALE_AT: tuple[str, ...] = get_args(ScaleAt)


def visible_keys(n_queries: int, n_keys: int, causal: bool) -> np.ndarray:
    """Return how many keys each query sees; causal rows end at their own place, aligned at the last key."""
    if causal:
        return np.arange(n_keys - n_queries + 1, n_keys + 1, dtype=np.int64)
    return np.full(n_queries, n_keys, np.int64)


_SIDE = f"a table of {', '.join(Side.model_fields)}"


class Cell(Record):
    """One point of the sweep grid: all that one kernel needs to know, apart from what is measured.

    Attributes
    ----------
    seed, d_k, n_queries, n_keys : int
        The seed, the length of a vector (None where scores are drawn without vectors) and the numbers of vectors.
    causal : bool
        Whether query i sees only the keys up to its own place, the last query all of them.
    precision : {"float32", "float64", "float16", "bfloat16"}
        In which the vectors are drawn and the scores computed; the last two emulate hardware that rounds to them.
    scale_at : {"scores", "query", "both"}
        What the scale multiplies: the scores, the queries, or queries and keys by its square root each.
    query, key : Side
        How the vectors are distributed.
    pair : Choice
        Dependence between the sides, of :data:`sim.structure.PAIR`.
    projection : Projection or None
        What makes queries and keys of tokens.
    score : Choice
        The score function, of :data:`sim.structure.SCORES`.
    """

    seed: Whole = Field(default=0, ge=0, lt=2**63, description=f"a whole number from 0 to {2**63 - 1}")
    # None of scores without vectors alone, which _check_score sees to; all that has vectors takes it for a number.
    d_k: Whole = Field(default=cast(int, None), ge=1, le=2**20, description=f"a whole number from 1 to {2**20}")
    n_queries: Whole = Field(ge=1, lt=2**31, description=f"a whole number from 1 to {2**31 - 1}")
    n_keys: Whole = Field(ge=1, lt=2**31, description=f"a whole number from 1 to {2**31 - 1}")
    causal: bool = Field(default=False, strict=True, description="true or false")
    precision: Annotated[Precision, PlainValidator(lambda given: read_name(given, PRECISIONS))] = "float32"
    scale_at: Annotated[ScaleAt, PlainValidator(lambda given: read_name(given, SCALE_AT))] = "scores"
    query: Side = Field(default=Side(), description=_SIDE)
    key: Side = Field(default=Side(), description=_SIDE)
    pair: Annotated[Choice, PlainValidator(lambda given: read_choice(given, PAIR))] = NONE
    projection: Annotated[Projection | None, BeforeValidator(or_none)] = Field(
        default=None, description=f"a table of {', '.join(Projection.model_fields)}, or none"
    )
    score: Annotated[Choice, PlainValidator(lambda given: read_choice(given, SCORES))] = Choice("dot")

    @model_validator(mode="after")
    def _combinable(self) -> Cell:
        for check in (_check_counts, _check_score, _check_projection, _check_sides):
            check(self)
        return self

    @property
    def visible(self) -> np.ndarray:
        """How many keys each query sees: the first of them, in order; of shape (n_queries,)."""
        return visible_keys(self.n_queries, self.n_keys, self.causal)

    @property
    def has_vectors(self) -> bool:
        """Whether there are queries and keys; else the scores themselves are drawn."""
        return SCORES[self.score.kind].of_vectors

    @property
    def width(self) -> int:
        """The length of what the law and all up to the mean act on: d_model under a projection, else d_k."""
        return self.projection.d_model if self.projection else self.d_k

    @property
    def computes_in(self) -> str:
        """The type that vectors and scores are held in: of the narrow ones, float32 with their values."""
        return "float64" if self.precision == "float64" else "float32"

    @property
    def is_rounded(self) -> bool:
        """Whether the precision is narrower than what holds its values."""
        return self.precision != self.computes_in

    def draw_fields(self) -> dict[str, Any]:
        """Return the fields that shape Q and K, or the scores drawn in their place, in canonical form.

        Defaults are left out (a side of defaults as a whole), so that a field that a later version adds
        changes nothing where it is not used. The seed and the counts are always there.
        """
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("seed", "d_k", "n_queries", "n_keys")}
        if not self.has_vectors:
            del fields["d_k"]
        sides = {"query": self.query.draw_fields(), "key": self.key.draw_fields()}
        fields |= {name: side for name, side in sides.items() if side}
        between = {"pair": self.pair, "projection": self.projection}
        fields |= {name: canonical(value) for name, value in between.items() if value not in (NONE, None)}
        if draws := SCORES[self.score.kind].draws:
            kept = tuple(pair for pair in self.score.parameters if pair[0] in draws)
            fields["score"] = replace(self.score, parameters=kept).canonical
        return fields

    @property
    def is_resolved(self) -> bool:
        """Whether numbers of the cell's precision can tell its scores apart: their mean may be far from 0.

        Known of dot products of vectors without structure; all else, and the low precisions that are there to show
        what rounding does, is taken to be resolved.
        """
        step = {"float32": 2.0**-23, "float64": 2.0**-52}.get(self.precision)
        if step is None or not self._is_plain:
            return True
        (mu, sigma), (nu, tau) = ((side.mean, side.std) for side in (self.query, self.key))
        std = math.sqrt(self.d_k * ((sigma * tau) ** 2 + (mu * tau) ** 2 + (nu * sigma) ** 2))
        return std == 0 or abs(self.d_k * mu * nu) * step <= std

    @property
    def _is_plain(self) -> bool:
        sides = self.query.given.keys() | self.key.given.keys()
        return (
            self.pair == NONE and not self.projection and self.score.kind == "dot" and sides <= {"law", "mean", "std"}
        )

    def philox_key(self) -> tuple[int, int]:
        """Return the two 32-bit words of the generator's key: a hash of :meth:`draw_fields`."""
        digest = hashlib.blake2b(canonical_json(self.draw_fields()).encode(), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _refuse(path: str, reason: str) -> NoReturn:
    raise RefusedError(f" {reason}", tuple(path.split(".")))


def _check_counts(cell: Cell) -> None:
    if cell.causal and cell.n_queries > cell.n_keys:
        _refuse(
            "causal",
            f"= True is not allowed: of n_queries = {cell.n_queries} and n_keys = {cell.n_keys} the first queries "
            f"would see no key; give at least as many keys as queries",
        )


def _check_score(cell: Cell) -> None:
    """Refuse what a score function cannot be combined with."""
    kind = cell.score.kind
    if not cell.has_vectors:
        given = cell.model_fields_set & {"d_k", "query", "key"} | cell.given.keys() & {"pair", "projection", "scale_at"}
        for name in ("d_k", "query", "key", "pair", "projection", "scale_at"):
            if name in given:
                _refuse(
                    name,
                    f"is not allowed with score = {cell.score.label!r}: its scores are drawn themselves, without "
                    f"queries and keys; leave it out, or give another score",
                )
    elif cell.d_k is None:
        _refuse("d_k", "is missing: give a whole number or a list of them")
    if cell.scale_at != "scores" and kind != "dot":
        _refuse(
            "scale_at",
            f"= {cell.scale_at!r} is not allowed with score = {cell.score.label!r}: only a dot product is the same "
            f"when its vectors are scaled; leave scale_at out, or give score = 'dot'",
        )


# All that tokens are made of, before they are projected.
_OF_TOKENS = ("law", "dependent", "within", "tokens", "mean", "std")


def _check_projection(cell: Cell) -> None:
    """Refuse what a projection cannot be combined with."""
    made = cell.projection
    if not made:
        return
    if made.tied and made.init == "t5":
        _refuse(
            "projection.tied",
            "= True is not allowed with init = 't5', which scales W_Q and W_K differently; leave tied out, or give "
            "another init",
        )
    if made.attention != "self":
        return
    if cell.pair != NONE:
        _refuse(
            "pair",
            f"= {cell.pair.label!r} is not allowed with projection.attention = 'self', where queries and keys are of "
            f"the same tokens already; leave pair out, or give attention = 'cross'",
        )
    if cell.n_queries != cell.n_keys:
        _refuse(
            "projection.attention",
            f"= 'self' is not allowed with n_queries = {cell.n_queries} and n_keys = {cell.n_keys}: queries and keys "
            f"are of the same tokens; give n_tokens, or attention = 'cross'",
        )
    for name in _OF_TOKENS:
        if cell.query.given.get(name) != cell.key.given.get(name):
            query, key = (show(label(getattr(side, name))) for side in (cell.query, cell.key))
            _refuse(
                "projection.attention",
                f"= 'self' is not allowed with query.{name} = {query} and key.{name} = {key}: queries and "
                f"keys are of the same tokens; describe them in [vectors], or give attention = 'cross'",
            )


def _check_sides(cell: Cell) -> None:
    """Refuse what a side's structure cannot be combined with."""
    if not cell.has_vectors:
        return
    for name, side in (("query", cell.query), ("key", cell.key)):
        _check_within(name, side, cell)
        _check_length(name, side, cell)
        if side.rotation and cell.d_k % 2:
            _refuse(
                f"{name}.rotation",
                f"is not allowed with d_k = {cell.d_k}: it turns components in pairs; give an even d_k, or leave the "
                f"rotation out",
            )


def _check_within(name: str, side: Side, cell: Cell) -> None:
    kind = side.within.kind
    width = f"projection.d_model = {cell.width}" if cell.projection else f"d_k = {cell.width}"
    if kind == "outliers" and (count := side.within.get("count")) > cell.width:
        _refuse(
            f"{name}.within.count",
            f"= {count} is not allowed with {width}: it must be at most the number of components",
        )
    if kind == "equicorrelated" and (rho := side.within.get("rho")) * (cell.width - 1) <= -1:
        _refuse(
            f"{name}.within.rho",
            f"= {rho:g} is not allowed with {width}: it must be above {-1 / (cell.width - 1):.6g}, at which the sum of "
            f"the components no longer varies",
        )


def _check_length(name: str, side: Side, cell: Cell) -> None:
    """Refuse to normalize vectors that are certain to have no length."""
    if side.normalize != NONE:
        path, what = f"{name}.normalize", side.normalize
    elif cell.score.kind == "cosine":
        path, what = "score", cell.score
    else:
        return
    if side.std == side.mean == 0 and not (cell.projection and cell.projection.bias_std):
        _refuse(
            path,
            f"= {what.label!r} is not allowed with {name} mean 0 and std 0: the vectors are zero, without a "
            f"direction; give a std above 0",
        )
    if what.kind == "layer" and cell.d_k == 1:
        _refuse(
            path,
            f"= {what.label!r} is not allowed with d_k = 1: less its mean a single component is zero; give a d_k of at "
            f"least 2, or another normalize",
        )
    if what.kind == "layer" and side.std == 0 and not cell.projection:
        _refuse(
            path,
            f"= {what.label!r} is not allowed with {name} std 0: less their mean the equal components are zero; give a "
            f"std above 0, or another normalize",
        )
