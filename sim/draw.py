"""Elements by a law, a tile of tokens at a time, stored as (element, token).

Tokens are contiguous, so that the loop over them vectorises at any d_k, and the tile is the right
operand of the score product as it stands.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import overload

from sim.jit import inner, kernel
from sim.laws import LAWS
from sim.philox import philox4x32

__all__ = ["LAW_CODES", "SECOND_WORDS", "START", "fill", "fill_words", "padded"]

# Typed, as Numba would compile what takes them once more for every literal.
LAW_CODES = {name: np.int64(code) for code, name in enumerate(LAWS)}
START = np.int64(0)  # the first element, the first token
SECOND_WORDS = np.uint32(2**16)  # between a tensor's first four words of a counter and its second four


@inner
def padded(d_k):
    """Return `d_k` rounded up to the four elements that one counter gives."""
    return 4 * ((d_k + 3) // 4)


def _fill(law, out, element, first, trial, tensor, key, numbers):
    raise NotImplementedError("compiled code only")


@inner
def fill_words(words, element, first, trial, tensor, key):
    """Write the four words of each token's counter `element` into `words`, of shape (4, tokens)."""
    for t in range(words.shape[1]):
        counter = (element, np.uint32(first + t), trial, tensor)
        words[0, t], words[1, t], words[2, t], words[3, t] = philox4x32(counter, key)


def _filler(entry, law):
    """Return the loop that fills a tile by one law, its transform `law`: mean + std z."""

    # Words first, elements after: one loop would run at the width of the words' 64-bit products
    # (a normal 1.75 ns, so 1.31, AVX2).
    @inner
    def fill_by_four(out, element, first, trial, tensor, key, numbers):
        mean, std, constants = numbers[0], numbers[1], (numbers[2], numbers[3], numbers[4])
        words = np.empty((4, out.shape[1]), np.uint32)
        for e in range(out.shape[0] // 4):
            fill_words(words, np.uint32(element + e), first, trial, tensor, key)
            for t in range(out.shape[1]):
                a, b, c, d = law(words[0, t], words[1, t], words[2, t], words[3, t], constants)
                out[4 * e, t] = mean + std * a
                out[4 * e + 1, t] = mean + std * b
                out[4 * e + 2, t] = mean + std * c
                out[4 * e + 3, t] = mean + std * d

    @inner
    def fill_by_eight(out, element, first, trial, tensor, key, numbers):
        mean, std, constants = numbers[0], numbers[1], (numbers[2], numbers[3], numbers[4])
        words, more = np.empty((4, out.shape[1]), np.uint32), np.empty((4, out.shape[1]), np.uint32)
        for e in range(out.shape[0] // 4):
            fill_words(words, np.uint32(element + e), first, trial, tensor, key)
            fill_words(more, np.uint32(element + e), first, trial, np.uint32(tensor + SECOND_WORDS), key)
            for t in range(out.shape[1]):
                a, b, c, d = law(
                    words[0, t], words[1, t], words[2, t], words[3, t],
                    more[0, t], more[1, t], more[2, t], more[3, t],
                    constants,
                )  # fmt: skip
                out[4 * e, t] = mean + std * a
                out[4 * e + 1, t] = mean + std * b
                out[4 * e + 2, t] = mean + std * c
                out[4 * e + 3, t] = mean + std * d

    return fill_by_four if entry.words == 4 else fill_by_eight


def _switch(fillers, code=0):
    """Return ``if law == 0: ... elif law == 1: ...`` over the table, as nested compiled functions."""
    head = fillers[0]
    if len(fillers) == 1:

        def last(law, out, element, first, trial, tensor, key, numbers):
            head(out, element, first, trial, tensor, key, numbers)

        return last

    rest = numba.njit(inline="always")(_switch(fillers[1:], code + 1))

    def choose(law, out, element, first, trial, tensor, key, numbers):
        if law == code:
            head(out, element, first, trial, tensor, key, numbers)
        else:
            rest(law, out, element, first, trial, tensor, key, numbers)

    return choose


@overload(_fill)
def _fill_by_precision(law, out, element, first, trial, tensor, key, numbers):
    precision = "float32" if out.dtype == types.float32 else "float64"
    return _switch([_filler(entry, getattr(entry, precision)) for entry in LAWS.values()])


@kernel
def fill(law, out, element, first, trial, tensor, key, numbers):
    """Write four elements from `element` on, and so forth, of the tokens `first` ... into `out`.

    Parameters
    ----------
    law : int
        A value of :data:`LAW_CODES`.
    out : real (a multiple of 4, tokens)
    element, first : int
        The first two numbers of the counter: `element` counts fours.
    trial, tensor : uint32
        The last two; `key` is the pair of uint32 of the cell.
    numbers : real (5,)
        Mean, standard deviation and the law's three constants.
    """
    _fill(law, out, element, first, np.uint32(trial), tensor, key, numbers)
