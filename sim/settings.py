"""Settings: the fields of a sweep that every cell shares and that shape none."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from sim.errors import InputError
from sim.kinds import Choice
from sim.reading import (
    Real,
    Record,
    RefusedError,
    Whole,
    not_allowed,
    read_name,
    repeated,
)
from sim.scales import read_scale
from sim.tally import FAMILIES

__all__ = ["Histogram", "Settings", "folder_name"]


def _listed(given: object) -> list[Any]:
    """Return a list; a scalar is a list of one."""
    if isinstance(given, (list, tuple)):
        if not given:
            raise RefusedError(" is empty: give at least one")
        return list(given)
    return [given]


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if again := repeated(values):
        raise RefusedError(f" has {again} twice: each may stand there once")
    return values


_T = TypeVar("_T")
Listed = Annotated[tuple[_T, ...], BeforeValidator(_listed), AfterValidator(_distinct)]


def _read_folder_name(given: object) -> str:
    """Return the name if a folder can have it on every system, as datasets travel."""
    if not isinstance(given, str):
        problem = "text"
    elif not given or given != given.strip():
        problem = "not empty, without spaces around it"
    elif not given.isprintable() or set(given) & set('/\\:*?"<>|'):
        problem = 'without / \\ : * ? " < > | and control characters'
    elif given.startswith(".") or given.endswith("."):
        problem = "without a dot at either end"
    elif len(given.encode()) > 100:
        problem = "at most 100 characters long (bytes of UTF-8)"
    else:
        return given
    raise RefusedError(not_allowed(given, f"{problem}, as it names a folder"))


def folder_name(given: str, field: str) -> str:
    """Return the name of a folder of results as it is, or raise an InputError that begins with `field`."""
    try:
        return _read_folder_name(given)
    except RefusedError as refusal:
        raise InputError(f"{field}{refusal}") from None


class Histogram(Record):
    """Where the histogram of the raw scores lies."""

    low: Real = Field(description="a finite number below histogram.high")
    high: Real = Field(description="a finite number above histogram.low")
    bins: Whole = Field(default=256, ge=1, le=4096, description="a whole number from 1 to 4096")

    @model_validator(mode="after")
    def _ordered(self) -> Histogram:
        if not self.low < self.high:
            raise RefusedError(not_allowed(self.high, f"above histogram.low = {self.low}"), ("high",))
        for name, edge in (("low", self.low), ("high", self.high)):
            if abs(edge) > 1e30:
                raise RefusedError(not_allowed(edge, "at most 1e30 in size"), (name,))
        if self.high - self.low < 1e-30:  # bins per unit of score would leave single precision
            raise RefusedError(not_allowed(self.high, f"at least 1e-30 above histogram.low = {self.low}"), ("high",))
        return self


class Settings(Record):
    """The fields of a sweep that shape no cell."""

    name: Annotated[str, PlainValidator(_read_folder_name)] = "sweep"
    trials: Whole = Field(default=1000, ge=1, lt=2**32, description=f"a whole number from 1 to {2**32 - 1}")
    scale: Listed[Annotated[Choice | float, PlainValidator(read_scale)]] = Field(
        default=("none", "sqrt_dk", "dk"), validate_default=True
    )
    observables: Annotated[
        Listed[Annotated[str, PlainValidator(lambda given: read_name(given, FAMILIES))]],
        AfterValidator(lambda chosen: tuple(family for family in FAMILIES if family in chosen)),
    ] = tuple(family for family in FAMILIES if family != "spectrum")  # it costs several passes
    histogram: Histogram | None = Field(default=None, description="a table of low, high, bins")
    threshold: Listed[Annotated[Real, Field(gt=0, le=1)]] = Field(
        default=(0.9, 0.99, 0.999), description="a number above 0 and at most 1, or a list of such"
    )
    gradient_threshold: Listed[Annotated[Real, Field(gt=0, le=1)]] = Field(
        default=(0.1, 0.01, 0.001), description="a number above 0 and at most 1, or a list of such"
    )
    quantile: Listed[Annotated[Real, Field(gt=0, lt=1)]] = Field(
        default=(0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99), description="a number between 0 and 1, or a list of such"
    )
