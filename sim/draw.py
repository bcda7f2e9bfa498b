"""Drawing one side's vectors, a tile of tokens at a time, stored as (element, token).

Tokens are contiguous, so that the loop over them vectorises at any d_k, and the tile is the right
operand of the score product as it stands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from sim.jit import inner, kernel, part
from sim.laws import LAWS
from sim.philox import philox4x32

__all__ = ["GIVEN", "LAW_CODES", "SECOND_FOUR", "Side", "draw_side", "fill_words", "padded"]

LAW_CODES = {name: code for code, name in enumerate(LAWS)}
GIVEN = -1  # in the place of a law's code: the vectors are not drawn, they are there
_HAS_SECOND_FOUR = np.array([entry.words == 8 for entry in LAWS.values()])
SECOND_FOUR = np.uint32(2**16)  # between a tensor's first four words of a counter and its second four


class Side(NamedTuple):
    """One side's law, (mean, std, the law's three constants) in the precision of the draw, and its vectors if given."""

    law: int
    numbers: np.ndarray
    given: np.ndarray  # (tokens, d_k), of no length where the vectors are drawn


@inner
def padded(d_k):
    """Return `d_k` rounded up to the four elements that one counter gives."""
    return 4 * ((d_k + 3) // 4)


def _elements(law, words, out, e, numbers):
    """Write the elements 4e ... 4e + 3 of all tokens into `out`, of shape (padded(d_k), tokens).

    Parameters
    ----------
    law : int
        A value of :data:`LAW_CODES`.
    words : uint32 array (8, tokens)
        Of each token's counter; the last four for the laws that need them.
    numbers : array (5,)
        Of :class:`Side`, in the precision of `out`.
    """
    raise NotImplementedError("compiled code only")


@inner
def fill_words(words, element, first, trial, tensor, key):
    """Write the four words of each token's counter `element` into `words`, of shape (4, tokens)."""
    for t in range(words.shape[1]):
        counter = (element, np.uint32(first + t), trial, tensor)
        words[0, t], words[1, t], words[2, t], words[3, t] = philox4x32(counter, key)


def _transformer(law):
    """Return the loop over tokens of one law, its transform `law`: mean + std z."""

    @inner
    def transform(words, out, e, numbers):
        mean, std, constants = numbers[0], numbers[1], (numbers[2], numbers[3], numbers[4])
        for i in range(0, 4, 2):
            for t in range(out.shape[1]):
                x, y = law(words[i, t], words[i + 1, t], words[i + 4, t], words[i + 5, t], constants)
                out[4 * e + i, t] = mean + std * x
                out[4 * e + i + 1, t] = mean + std * y

    return transform


def _switch(transformers, code=0):
    """Return ``if law == 0: ... elif law == 1: ...`` over the table, as functions inlined into one another."""
    head = transformers[0]
    if len(transformers) == 1:

        def last(law, words, out, e, numbers):
            head(words, out, e, numbers)

        return last

    rest = part(_switch(transformers[1:], code + 1))

    def choose(law, words, out, e, numbers):
        if law == code:
            head(words, out, e, numbers)
        else:
            rest(law, words, out, e, numbers)

    return choose


@overload(_elements)
def _elements_by_precision(law, words, out, e, numbers):
    precision = "float32" if out.dtype == types.float32 else "float64"
    return _switch([_transformer(getattr(entry, precision)) for entry in LAWS.values()])


@part
def _fill(side, out, first, trial, tensor, key):
    # Words first, elements after: one loop would run at the width of the words' 64-bit products
    # (a normal 1.75 ns, so 1.31, AVX2).
    words, numbers = np.empty((8, out.shape[1]), np.uint32), side.numbers
    four, second_four = words[:4], words[4:]
    for e in range(out.shape[0] // 4):
        fill_words(four, np.uint32(e), first, trial, tensor, key)
        if _HAS_SECOND_FOUR[side.law]:
            fill_words(second_four, np.uint32(e), first, trial, np.uint32(tensor + SECOND_FOUR), key)
        _elements(side.law, words, out, e, numbers)


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
        _fill(side, out, first, np.uint32(trial), tensor, key)
