"""Elements by a law, a tile of tokens at a time, stored as (element, token).

Tokens are contiguous, so that the loop over them vectorises at any d_k, and the tile is the right
operand of the score product as it stands.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from sim.jit import inner, owner, part, shared
from sim.laws import LAWS
from sim.philox import philox4x32

__all__ = ["LAW_CODES", "SECOND_FOUR", "START", "fill", "fill_words", "padded"]

# Typed, as Numba would compile what takes them once more for every literal.
LAW_CODES = {name: np.int64(code) for code, name in enumerate(LAWS)}
START = np.int64(0)  # the first element, the first token
_HAS_SECOND_FOUR = np.array([entry.words == 8 for entry in LAWS.values()])
SECOND_FOUR = np.uint32(2**16)  # between a tensor's first four words of a counter and its second four


@shared
def padded(d_k):
    """Return `d_k` rounded up to the four elements that one counter gives."""
    return 4 * ((d_k + 3) // 4)


def _elements(law, words, out, e, numbers):
    """Write the rows 4e ... 4e + 3 of `out`, of shape (a multiple of 4, tokens).

    Parameters
    ----------
    law : int
        A value of :data:`LAW_CODES`.
    words : uint32 array (8, tokens)
        Of each token's counter; the last four for the laws that need them.
    numbers : array (5,)
        Mean, standard deviation and the law's constants, in the precision of `out`.
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


@owner
def fill(law, out, element, first, trial, tensor, key, numbers):
    """Write mean + std z of the tokens `first` ... into `out`.

    Parameters
    ----------
    law : int64
        A value of :data:`LAW_CODES`.
    out : real (a multiple of 4, tokens)
        The elements 4 `element` ...
    element, first : int64
        The first two numbers of the counter.
    trial, tensor : uint32
        The last two; `key` is the pair of uint32 of the cell.
    numbers : real (5,)
        Mean, standard deviation and the law's three constants.
    """
    # Words first, elements after: one loop would run at the width of the words' 64-bit products
    # (a normal 1.75 ns, so 1.31, AVX2).
    words = np.empty((8, out.shape[1]), np.uint32)
    four, second_four = words[:4], words[4:]
    for e in range(out.shape[0] // 4):
        fill_words(four, np.uint32(element + e), first, trial, tensor, key)
        if _HAS_SECOND_FOUR[law]:
            fill_words(second_four, np.uint32(element + e), first, trial, np.uint32(tensor + SECOND_FOUR), key)
        _elements(law, words, out, e, numbers)
