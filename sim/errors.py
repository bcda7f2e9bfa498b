"""Input errors: one readable message that names the field, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["InputError", "RunInterrupted", "suggest"]


class InputError(ValueError):
    """The input was wrong; the message is complete as it stands (exit code 2)."""


class RunInterrupted(Exception):
    """A run was asked to stop before it had finished; nothing was written."""


def suggest(given: object, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest allowed name, or an empty string."""
    near = get_close_matches(str(given), list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
