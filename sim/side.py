"""Sides: the validated fields of the vectors, query or key, and of the projection that makes both."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from sim.kinds import Choice
from sim.laws import LAWS
from sim.reading import Real, Record, Table, Whole, canonical, in_range, read_choice, read_name
from sim.structure import DEPENDENT, INITS, NORMALIZE, WITHIN

__all__ = ["NONE", "Projection", "Rotation", "Side", "Tokens", "or_none"]

Attention = Literal["cross", "self"]
NONE = Choice("none")


def or_none(given: object) -> object:
    """Return None for the name that stands for no table."""
    return None if given == "none" else given


class Tokens(Table):
    """Correlation `rho` between the vectors of one side."""

    rho: Annotated[Real, Field(ge=0, le=1)] = Field(description="a number from 0 to 1")


class Rotation(Table):
    """Rotary position embedding: plane j of components 2j, 2j+1 turns by ``base^(-2j/d_k)`` a token."""

    base: Annotated[Real, Field(gt=1), AfterValidator(in_range)] = Field(
        default=10000.0, description="a finite number above 1"
    )


class Projection(Table):
    """Projection of tokens of width `d_model` through W_Q and W_K, drawn for each trial.

    Attributes
    ----------
    init : str
        How the weights are drawn: of :data:`sim.structure.INITS`.
    d_model : int
        Width of a token.
    attention : {"cross", "self"}
        Whether queries and keys are of tokens of their own, or of the same.
    tied : bool
        Whether W_Q and W_K are one matrix.
    bias_std : float
        Standard deviation of the normal biases.
    """

    init: Annotated[str, PlainValidator(lambda given: read_name(given, list(INITS)))] = Field(
        description=f"one of {', '.join(INITS)}"
    )
    d_model: Whole = Field(ge=1, le=2**20, description=f"a whole number from 1 to {2**20}")
    attention: Annotated[Attention, PlainValidator(lambda given: read_name(given, get_args(Attention)))] = "cross"
    tied: bool = Field(default=False, strict=True, description="true or false")
    bias_std: Annotated[Real, Field(ge=0), AfterValidator(in_range)] = Field(
        default=0.0, description="a finite number of at least 0"
    )


class Side(Record):
    """The vectors of one side, query or key: each element is ``mean + std * z`` with z from the law and structure.

    Under a projection, all up to `std` is of the tokens that are projected.

    Attributes
    ----------
    law, dependent, within : Choice
        The law of an element, and the structure of a vector: of :data:`sim.laws.LAWS`, :data:`sim.structure.DEPENDENT`
        and :data:`sim.structure.WITHIN`.
    tokens : Tokens or None
        Correlation between vectors.
    mean, std : float
        Of every element.
    normalize : Choice
        Of :data:`sim.structure.NORMALIZE`.
    rotation : Rotation or None
        By the vector's place.
    """

    law: Annotated[Choice, PlainValidator(lambda given: read_choice(given, LAWS))] = Field(
        default=Choice("gaussian"), description="a law"
    )
    dependent: Annotated[Choice, PlainValidator(lambda given: read_choice(given, DEPENDENT))] = NONE
    within: Annotated[Choice, PlainValidator(lambda given: read_choice(given, WITHIN))] = NONE
    tokens: Annotated[Tokens | None, BeforeValidator(or_none)] = Field(
        default=None, description="a table of rho, or none"
    )
    mean: Annotated[Real, AfterValidator(in_range)] = Field(default=0.0, description="a finite number")
    std: Annotated[Real, Field(ge=0), AfterValidator(in_range)] = Field(
        default=1.0, description="a finite number of at least 0"
    )
    normalize: Annotated[Choice, PlainValidator(lambda given: read_choice(given, NORMALIZE))] = NONE
    rotation: Annotated[Rotation | None, BeforeValidator(or_none)] = Field(
        default=None, description="a table of base, or none"
    )

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults; tokens that do not correlate are none."""
        given = super().given
        if self.tokens and self.tokens.rho == 0:
            del given["tokens"]
        return given

    def draw_fields(self) -> dict[str, Any]:
        """Return the canonical form, defaults left out."""
        return {name: canonical(value) for name, value in self.given.items()}
