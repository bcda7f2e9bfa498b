"""Drawing one side's vectors, a tile of tokens at a time, stored as (element, token).

Tokens are contiguous, so that the loop over them vectorises at any d_k, and the tile is the right
operand of the score product as it stands.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import overload

from sim.jit import inner, kernel
from sim.laws import LAWS
from sim.philox import philox4x32

__all__ = ["GIVEN", "LAW_CODES", "Side", "draw_side", "fill_words", "padded"]

LAW_CODES = {name: code for code, name in enumerate(LAWS)}
GIVEN = -1  # in the place of a law's code: the vectors are not drawn, they are there


class Side(NamedTuple):
    """One side's law, (mean, std, the law's parameter) in the precision of the draw, and its vectors if given."""

    law: int
    numbers: np.ndarray
    given: np.ndarray  # (tokens, d_k), of no length where the vectors are drawn


@inner
def padded(d_k):
    """Return `d_k` rounded up to the four elements that one counter gives."""
    return 4 * ((d_k + 3) // 4)


def _fill(law, out, first, trial, tensor, key, mean, std, shape):
    """Write the elements of tokens `first` ... into `out`, of shape (padded(d_k), tokens).

    Parameters
    ----------
    law : int
        A value of :data:`LAW_CODES`.
    trial, tensor : uint32
        The last two numbers of the counter; `key` is the pair of uint32 of the cell.
    mean, std, shape : float
        In the precision of `out`.
    """
    raise NotImplementedError("compiled code only")


@inner
def fill_words(words, element, first, trial, tensor, key):
    """Write the four words of each token's counter `element` into `words`, of shape (4, tokens)."""
    for t in range(words.shape[1]):
        counter = (element, np.uint32(first + t), trial, tensor)
        words[0, t], words[1, t], words[2, t], words[3, t] = philox4x32(counter, key)


def _filler(law):
    """Return the loop that fills a tile by one law: mean + std z."""

    @inner
    def fill_by_law(out, first, trial, tensor, key, mean, std, shape):
        # Words first, elements after: one loop would run at the width of the words' 64-bit products
        # (a normal 1.75 ns, so 1.31, AVX2).
        words = np.empty((4, out.shape[1]), np.uint32)
        for e in range(out.shape[0] // 4):
            fill_words(words, np.uint32(e), first, trial, tensor, key)
            for t in range(out.shape[1]):
                a, b, c, d = law(words[0, t], words[1, t], words[2, t], words[3, t], shape)
                out[4 * e, t] = mean + std * a
                out[4 * e + 1, t] = mean + std * b
                out[4 * e + 2, t] = mean + std * c
                out[4 * e + 3, t] = mean + std * d

    return fill_by_law


def _switch(fillers, code=0):
    """Return ``if law == 0: ... elif law == 1: ...`` over the table, as nested compiled functions."""
    head = fillers[0]
    if len(fillers) == 1:

        def last(law, out, first, trial, tensor, key, mean, std, shape):
            head(out, first, trial, tensor, key, mean, std, shape)

        return last

    rest = numba.njit(_switch(fillers[1:], code + 1))

    def choose(law, out, first, trial, tensor, key, mean, std, shape):
        if law == code:
            head(out, first, trial, tensor, key, mean, std, shape)
        else:
            rest(law, out, first, trial, tensor, key, mean, std, shape)

    return choose


@overload(_fill)
def _fill_by_precision(law, out, first, trial, tensor, key, mean, std, shape):
    precision = "float32" if out.dtype == types.float32 else "float64"
    return _switch([_filler(getattr(entry, precision)) for entry in LAWS.values()])


@inner
def _copy_given(given, first, out):
    for e in range(given.shape[1]):
        for t in range(out.shape[1]):
            out[e, t] = given[first + t, e]


@kernel
def draw_side(side, out, first, trial, tensor, key):
    """Write the tokens `first` ... of one side into `out`, of shape (padded(d_k), tokens)."""
    if side.law == GIVEN:
        _copy_given(side.given, first, out)
    else:
        _fill(side.law, out, first, np.uint32(trial), tensor, key, side.numbers[0], side.numbers[1], side.numbers[2])
