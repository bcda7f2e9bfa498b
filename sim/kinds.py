"""Things chosen by name, with parameters: laws, scale rules, later structures and score functions.

A registry maps a name to an entry that says which parameters it takes; a :class:`Choice` is one
such name with its parameters filled in, as it stands in a cell of a sweep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Choice", "Kind", "Parameter", "number_label", "short_forms"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kind: its default (None: it must be given) and what it may be."""

    default: float | None
    allowed: str
    accepts: Callable[[float], bool]


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
        Every parameter, defaults filled in, in the registry's order.
    registry_defaults : tuple of (str, value) pairs
        Those that the label and the canonical form leave out where they are equal.
    """

    kind: str
    parameters: tuple[tuple[str, Any], ...] = ()
    registry_defaults: tuple[tuple[str, Any], ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        defaults = dict(self.registry_defaults)
        return {name: value for name, value in self.parameters if defaults.get(name) != value}

    @property
    def label(self) -> str:
        """The short form: ``gaussian``, ``student_t(df=3)``."""
        given = self.given
        if not given:
            return self.kind
        inside = ", ".join(f"{n}={number_label(v) if isinstance(v, (int, float)) else v}" for n, v in given.items())
        return f"{self.kind}({inside})"

    @property
    def canonical(self) -> str | dict[str, Any]:
        """The form that is hashed and stored: the bare name, or a table without the defaults."""
        given = self.given
        return {"kind": self.kind, **given} if given else self.kind


def short_forms(text: str) -> list[str | float | dict[str, Any]]:
    """Return what a line of short forms stands for: ``none, 0.125, softcap(cap=50, after=sqrt_dk)``.

    Names stay names, numbers become numbers, and a name with parameters becomes a table ``{kind = ..., ...}``; the
    inverse of :attr:`Choice.label`. What a name may be is for the field's own reader to say.
    """
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    return [_short_form(part) for part in parts] if text.strip() else []


def _short_form(text: str) -> str | float | dict[str, Any]:
    written = re.fullmatch(r"([^()]*)\(([^()]*)\)", text)
    if not written:
        return _number(text)
    pairs = (pair.partition("=") for pair in written[2].split(",") if pair.strip())
    return {name.strip(): _number(value.strip()) for name, _, value in pairs} | {"kind": written[1].strip()}


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
