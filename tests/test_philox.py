"""Random words: known answers, and an oracle in Python's integers."""

import numpy as np
import pytest

from sim.philox import KEY, QUERY, philox4x32
from tests import oracle

ONES = 0xFFFFFFFF
# From the paper's own code: Random123, kat_vectors, "philox4x32 10".
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(counter, key):
    found = philox4x32(tuple(np.uint32(c) for c in counter), tuple(np.uint32(k) for k in key))
    return tuple(int(word) for word in found)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert words(counter, key) == answer
    assert oracle.philox(counter, key) == answer


def test_any_counter_and_key_gives_the_oracles_words():
    random = np.random.default_rng(0)
    for _ in range(2000):
        numbers = random.integers(2**32, size=6)
        numbers[random.random(6) < 0.2] = random.choice([0, 1, 2**31, ONES])
        counter, key = tuple(numbers[:4].tolist()), tuple(numbers[4:].tolist())
        assert words(counter, key) == oracle.philox(counter, key)


def test_neighbouring_counters_and_keys_share_no_word():
    base = ((5, 7, 11, 0), (13, 17))
    seen = set(words(*base))
    for place in range(6):
        numbers = [*base[0], *base[1]]
        numbers[place] += 1
        found = words(numbers[:4], numbers[4:])
        assert len(set(found) | seen) == len(seen) + 4
        seen |= set(found)


def test_query_and_key_are_tensors_0_and_1():
    assert (int(QUERY), int(KEY)) == (0, 1)
