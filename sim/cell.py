"""A cell: one point of the sweep grid, as validated plain scalars, and the key of its random words."""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import AfterValidator, Field, PlainValidator, model_validator

from sim.kinds import Choice
from sim.laws import LAWS
from sim.reading import (
    Real,
    Record,
    RefusedError,
    Whole,
    canonical,
    canonical_json,
    in_range,
    read_choice,
    read_name,
)

__all__ = ["PRECISIONS", "Cell", "Side", "visible_keys"]

Precision = Literal["float32", "float64"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def visible_keys(n_queries: int, n_keys: int, causal: bool) -> np.ndarray:
    """Return how many keys each query sees; causal rows end at their own place, aligned at the last key."""
    if causal:
        return np.arange(n_keys - n_queries + 1, n_keys + 1, dtype=np.int64)
    return np.full(n_queries, n_keys, np.int64)


class Side(Record):
    """The vectors of one side, query or key: each element is ``mean + std * z`` with z from the law."""

    law: Annotated[Choice, PlainValidator(lambda given: read_choice(given, LAWS))] = Field(
        default=Choice("gaussian"), description="a law"
    )
    mean: Annotated[Real, AfterValidator(in_range)] = Field(default=0.0, description="a finite number")
    std: Annotated[Real, Field(ge=0), AfterValidator(in_range)] = Field(
        default=1.0, description="a finite number of at least 0"
    )

    @property
    def shape(self) -> float:
        """The law's parameter, 0 where it has none."""
        return next((float(value) for _, value in self.law.parameters), 0.0)

    def draw_fields(self) -> dict[str, Any]:
        """Return the canonical form, defaults left out."""
        fields = {name: canonical(getattr(self, name)) for name in type(self).model_fields}
        defaults = {name: canonical(field.default) for name, field in type(self).model_fields.items()}
        return {name: value for name, value in fields.items() if value != defaults[name]}


class Cell(Record):
    """One point of the sweep grid: all that one kernel needs to know, apart from what is measured.

    Attributes
    ----------
    seed, d_k, n_queries, n_keys : int
        The seed, the length of a vector and the numbers of vectors.
    causal : bool
        Whether query i sees only the keys up to its own place, the last query all of them.
    precision : {"float32", "float64"}
        In which the vectors are drawn and the scores computed.
    query, key : Side
        How the vectors are distributed.
    """

    seed: Whole = Field(default=0, ge=0, lt=2**63, description=f"a whole number from 0 to {2**63 - 1}")
    d_k: Whole = Field(ge=1, le=2**20, description=f"a whole number from 1 to {2**20}")
    n_queries: Whole = Field(ge=1, lt=2**31, description=f"a whole number from 1 to {2**31 - 1}")
    n_keys: Whole = Field(ge=1, lt=2**31, description=f"a whole number from 1 to {2**31 - 1}")
    causal: bool = Field(default=False, strict=True, description="true or false")
    precision: Annotated[Precision, PlainValidator(lambda given: read_name(given, PRECISIONS))] = "float32"
    query: Side = Field(default=Side(), description="a table of law, mean, std")
    key: Side = Field(default=Side(), description="a table of law, mean, std")

    @model_validator(mode="after")
    def _ordered(self) -> Cell:
        if self.causal and self.n_queries > self.n_keys:
            raise RefusedError(
                f" = True is not allowed: of n_queries = {self.n_queries} and n_keys = {self.n_keys} the first queries "
                f"would see no key; give at least as many keys as queries",
                ("causal",),
            )
        return self

    @property
    def visible(self) -> np.ndarray:
        """How many keys each query sees: the first of them, in order; of shape (n_queries,)."""
        return visible_keys(self.n_queries, self.n_keys, self.causal)

    def draw_fields(self) -> dict[str, Any]:
        """Return the fields that shape Q and K in canonical form.

        Defaults are left out (a side of defaults as a whole), so that a field that a later version adds
        changes nothing where it is not used. The seed and the counts are always there.
        """
        counts = {"seed": self.seed, "d_k": self.d_k, "n_queries": self.n_queries, "n_keys": self.n_keys}
        sides = {"query": self.query.draw_fields(), "key": self.key.draw_fields()}
        return counts | {name: fields for name, fields in sides.items() if fields}

    @property
    def is_resolved(self) -> bool:
        """Whether numbers of the cell's precision can tell its scores apart: their mean may be far from 0."""
        (mu, sigma), (nu, tau) = ((side.mean, side.std) for side in (self.query, self.key))
        std = math.sqrt(self.d_k * ((sigma * tau) ** 2 + (mu * tau) ** 2 + (nu * sigma) ** 2))
        step = {"float32": 2.0**-23, "float64": 2.0**-52}[self.precision]
        return std == 0 or abs(self.d_k * mu * nu) * step <= std

    def philox_key(self) -> tuple[int, int]:
        """Return the two 32-bit words of the generator's key: a hash of :meth:`draw_fields`."""
        digest = hashlib.blake2b(canonical_json(self.draw_fields()).encode(), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
