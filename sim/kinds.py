"""Things chosen by name, with parameters: laws, structures, score functions and scale rules.

A registry maps a name to an entry that says which parameters it takes; a :class:`Choice` is one
such name with its parameters filled in, as it stands in a cell of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Choice", "Kind", "Parameter", "number_label", "short_form", "short_forms"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kind: its default (None: it must be given) and what it may be.

    `accepts` looks at a finite number, unless `read` says how else to read what was given: it returns the clean value,
    or raises :class:`sim.reading.RefusedError`.
    """

    default: Any
    allowed: str
    accepts: Callable[[Any], bool] = lambda value: True
    read: Callable[[object], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What every registry entry has: the parameters it takes, by name."""

    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def number_label(value: float) -> str:
    """Return the shortest text that reads back as `value`: ``3``, ``0.125``, ``1e-05``."""
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


@dataclass(frozen=True)
class Choice:
    """A kind by name with all its parameters.

    Attributes
    ----------
    kind : str
        The name in its registry.
    parameters : tuple of (str, value) pairs
        Every parameter, defaults filled in, in the registry's order: numbers, names, or choices themselves.
    registry_defaults : tuple of (str, value) pairs
        Those that the label and the canonical form leave out where they are equal.
    """

    kind: str
    parameters: tuple[tuple[str, Any], ...] = ()
    registry_defaults: tuple[tuple[str, Any], ...] = ()

    def get(self, name: str, absent: Any = None) -> Any:
        """Return a parameter's value, or `absent` if the kind has no such parameter."""
        return dict(self.parameters).get(name, absent)

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        defaults = dict(self.registry_defaults)
        return {name: value for name, value in self.parameters if defaults.get(name) != value}

    @property
    def label(self) -> str:
        """The short form: ``gaussian``, ``student_t(df=3)``."""
        return short_form(self.kind, self.given)

    @property
    def canonical(self) -> str | dict[str, Any]:
        """The form that is hashed and stored: the bare name, or a table without the defaults."""
        given = {name: v.canonical if isinstance(v, Choice) else v for name, v in self.given.items()}
        return {"kind": self.kind, **given} if given else self.kind


def short_form(name: str, given: Mapping[str, Any]) -> str:
    """Return a name with parameters as text: ``softcap(cap=50, after=sqrt_dk)``, or the bare name without any."""
    inside = ", ".join(f"{key}={_text(value)}" for key, value in given.items())
    return f"{name}({inside})" if inside else name


def _text(value: Any) -> str:
    if isinstance(value, Choice):
        return value.label
    if isinstance(value, bool):
        return str(value).lower()
    return number_label(value) if isinstance(value, (int, float)) else str(value)


def short_forms(text: str) -> list[str | float | dict[str, Any]]:
    """Return what a line of short forms stands for: ``none, 0.125, softcap(cap=50, after=sqrt_dk)``.

    Names stay names, numbers become numbers, and a name with parameters becomes a table ``{kind = ..., ...}``; the
    inverse of :attr:`Choice.label`. What a name may be is for the field's own reader to say.
    """
    return [_read_short_form(part) for part in _split(text)] if text.strip() else []


def _split(text: str) -> list[str]:
    """Return the parts between the commas that stand outside all parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _read_short_form(text: str) -> str | float | dict[str, Any]:
    name, opened, inside = text.partition("(")
    if not opened or not inside.endswith(")"):
        return _number(text)
    table: dict[str, Any] = {}
    for pair in _split(inside[:-1]):
        if pair:
            key, _, value = pair.partition("=")
            table[key.strip()] = _read_short_form(value.strip())
    return table | {"kind": name.strip()}


def _number(text: str) -> str | float:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text
