"""Reading what a user gave: a value comes back clean, or is refused in one message.

A reader of one value raises :class:`RefusedError`; :func:`validated` reads a whole table through a pydantic
model, whose fields say what is allowed in their descriptions, and names the field as the user wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from reprlib import Repr
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from sim.errors import InputError, suggest
from sim.kinds import Choice, Kind, Parameter, short_form

__all__ = [
    "Path",
    "Real",
    "Record",
    "RefusedError",
    "Table",
    "Whole",
    "canonical",
    "canonical_json",
    "dotted",
    "in_range",
    "label",
    "not_allowed",
    "read_choice",
    "read_name",
    "read_real",
    "read_whole",
    "repeated",
    "show",
    "unknown_key",
    "validated",
]

Path = tuple[str, ...]
Whole = Annotated[int, Strict()]
Real = Annotated[float, Strict(), AllowInfNan(False), AfterValidator(lambda x: x + 0.0)]  # -0.0 becomes 0.0

_REAL: TypeAdapter[float] = TypeAdapter(Real)
_WHOLE: TypeAdapter[int] = TypeAdapter(Whole)
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
_Model = TypeVar("_Model", bound=BaseModel)


def show(value: object) -> str:
    """Return a short ``repr``, whatever the user gave."""
    try:
        return _REPR.repr(value).replace("\n", " ")
    except ValueError:  # Python refuses to print an integer of more than 4300 digits
        return "a number too long to print"


def dotted(path: Path) -> str:
    """Return the path as the user knows it: ``key.mean``."""
    return ".".join(part if part.isidentifier() and len(part) <= 80 else show(part) for part in path)


def not_allowed(given: object, allowed: str, hint: str = "") -> str:
    """Return the message for a wrong value, from behind the field's name."""
    if isinstance(given, (list, tuple)):
        hint = "; a list may not stand here"
    return f" = {show(given)} is not allowed: it must be {allowed}{hint}"


def unknown_key(path: Path, names: Sequence[str]) -> str:
    """Return the message for a key that does not exist."""
    where = f"[{dotted(path[:-1])}]" if path[1:] else "a sweep"
    return f"{dotted(path)} is unknown: {where} takes {', '.join(names) or 'nothing'}{suggest(path[-1], names)}"


class RefusedError(ValueError):
    """A reader's verdict: the message from behind the field's name, and how far below the field it is."""

    def __init__(self, message: str, below: Path = ()) -> None:
        super().__init__(message)
        self.below = below


def read_name(given: object, names: Sequence[str], instead: str = "") -> str:
    """Return `given` if it is one of `names`; `instead` says what else would have been right."""
    if isinstance(given, str) and given in names:
        return given
    hint = suggest(given, names) if isinstance(given, str) else ""
    raise RefusedError(not_allowed(given, f"one of {', '.join(names)}{instead}", hint))


def read_real(given: object, allowed: str) -> float:
    """Return `given` as a float if it is a finite number."""
    try:
        return _REAL.validate_python(given)
    except ValidationError:
        raise RefusedError(not_allowed(given, allowed)) from None


def read_whole(given: object, allowed: str) -> int:
    """Return `given` if it is a whole number."""
    try:
        return _WHOLE.validate_python(given)
    except ValidationError:
        raise RefusedError(not_allowed(given, allowed)) from None


def in_range(value: float) -> float:
    """Return `value` if it is 0 or of a size that keeps scores in range.

    Up to here the scores stay within single precision, and the squares of their fourth powers, of which the
    errors are made, within double precision.
    """
    if value != 0 and not 1e-9 <= abs(value) <= 1e9:
        raise RefusedError(not_allowed(value, "0, or between 1e-9 and 1e9 in size"))
    return value


def read_choice(given: object, registry: Mapping[str, Kind], instead: str = "") -> Choice:
    """Return the choice that a name or a table ``{kind = ..., parameters}`` stands for.

    Parameters
    ----------
    given : str, mapping or Choice
        What the user wrote.
    registry : mapping of name to Kind
        What there is to choose from, and which parameters each kind takes.
    instead : str
        What else the field may be, for the message.

    Raises
    ------
    RefusedError
        If the name is unknown, or a parameter unknown, missing or out of range.
    """
    if isinstance(given, Choice):
        given = {"kind": given.kind, **dict(given.parameters)}
    if not isinstance(given, Mapping):
        kind = read_name(given, list(registry), f" or a table {{kind = ...}}{instead}")
        given = {}
    elif "kind" not in given:
        raise RefusedError(f" is missing: it must be one of {', '.join(registry)}", ("kind",))
    else:
        try:
            kind = read_name(given["kind"], list(registry))
        except RefusedError as refusal:
            raise RefusedError(str(refusal), ("kind",)) from None
    return Choice(kind, *_read_parameters(kind, registry[kind], {k: v for k, v in given.items() if k != "kind"}))


_Pairs = tuple[tuple[str, Any], ...]


def _read_parameters(name: str, kind: Kind, given: Mapping[Any, object]) -> tuple[_Pairs, _Pairs]:
    """Return every parameter of the kind, and the defaults."""
    takes = list(kind.parameters)
    for key in given:
        if key not in takes:
            message = f" is unknown: {name} takes {', '.join(takes) or 'no parameters'}{suggest(key, takes)}"
            raise RefusedError(message, (str(key),))
    filled: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for key, parameter in kind.parameters.items():
        if parameter.default is not None:
            defaults[key] = _read_parameter(parameter, parameter.default)
        elif key not in given:
            raise RefusedError(f" is missing: {name} needs {key}, {parameter.allowed}", (key,))
        try:
            filled[key] = _read_parameter(parameter, given[key]) if key in given else defaults[key]
        except RefusedError as refusal:
            raise RefusedError(str(refusal), (key, *refusal.below)) from None
    return tuple(filled.items()), tuple(defaults.items())


def _read_parameter(parameter: Parameter, given: object) -> Any:
    value = parameter.read(given) if parameter.read else read_real(given, parameter.allowed)
    if not parameter.accepts(value):
        raise RefusedError(not_allowed(given, parameter.allowed))
    return value


class Record(BaseModel):
    """What all validated tables have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        fields = type(self).model_fields
        written = {name: getattr(self, name) for name in fields if name in self.model_fields_set}  # others are defaults
        return {name: value for name, value in written.items() if value != fields[name].default}


class Table(Record):
    """A table inside a cell that has no kinds to choose from: ``tokens = {rho = 0.5}``."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults; all of them where none does, as the table is there."""
        return super().given or dict(self)

    @property
    def label(self) -> str:
        """The short form: ``tokens(rho=0.5)``."""
        return short_form(type(self).__name__.lower(), self.given)

    @property
    def canonical(self) -> dict[str, Any]:
        """The form that is hashed and stored: a table without the defaults."""
        return self.given


def validated(model: type[_Model], fields: Mapping[str, Any], written_as: Mapping[str, str] | None = None) -> _Model:
    """Return ``model(**fields)``, or raise one readable message.

    Parameters
    ----------
    model : pydantic model
        Whose fields carry descriptions: what is allowed, in words.
    fields : mapping
        Plain values.
    written_as : mapping, optional
        What the user wrote where it is not the field's own name: ``{"query": "vectors"}``.

    Raises
    ------
    InputError
        For the first error; a misspelt key comes first, as it tends to cause the others.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        _explain(model, error, written_as or {})


def _explain(model: type[BaseModel], error: ValidationError, written_as: Mapping[str, str]) -> NoReturn:
    errors = error.errors(include_url=False)
    misspelt = [e for e in errors if e["type"] in ("extra_forbidden", "invalid_key")]
    first = (misspelt or errors)[0]
    # Positions in a list are left out: the value itself is shown.
    path = tuple(part for part in first["loc"] if isinstance(part, str))
    raise InputError(_message(model, first, path, written_as)) from None


def _message(model: type[BaseModel], error: ErrorDetails, path: Path, written_as: Mapping[str, str]) -> str:
    """Say what is wrong at `path` of the model; empty where it is the fields together."""

    def as_written(path: Path) -> Path:
        return (*(written_as.get(part, part) for part in path[:1]), *path[1:])

    written = as_written(path)
    if error["type"] == "extra_forbidden":
        return unknown_key(written, list(_model_at(model, path[:-1]).model_fields))
    if error["type"] == "invalid_key":
        return f"{dotted(written)}: the key {show(error['input'])} is unknown: keys are words"
    refusal = error.get("ctx", {}).get("error")
    if isinstance(refusal, RefusedError):
        return dotted(as_written((*path, *refusal.below))) + str(refusal)
    allowed = _model_at(model, path[:-1]).model_fields[path[-1]].description or "left out"
    if error["type"] == "missing":
        return f"{dotted(written)} is missing: it must be {allowed}"
    return dotted(written) + not_allowed(error["input"], allowed)


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        model = next(t for t in _types(model.model_fields[part].annotation) if issubclass(t, BaseModel))
    return model


def _types(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself: ``Histogram | None``."""
    return getattr(annotation, "__args__", (annotation,))


def repeated(values: Iterable[Any]) -> str | None:
    """Return the first value that stands there twice, as text: laws by their labels."""
    seen = set()
    for value in map(label, values):
        if value in seen:
            return show(value)
        seen.add(value)
    return None


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def label(value: Any) -> Any:
    """Return the coordinate value of one value: a choice or a table by its short form."""
    if value is None:
        return "none"
    return value.label if isinstance(value, (Choice, Table)) else value


def canonical(value: Any) -> Any:
    """Return the JSON-able form of one value: a choice or a table as the name or table that it is stored as."""
    if value is None:
        return "none"
    return value.canonical if isinstance(value, (Choice, Table)) else value
