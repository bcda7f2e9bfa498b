"""Files of arrays that are damaged or lie: read or refused, in bounded time and memory, and nothing else."""

import os
import re
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from sim import arrays
from sim.arrays import read_array
from sim.errors import InputError
from tests.array_files import FLOATS, Q, npy, npy_saying, npz, refused, safetensors_saying, tensor


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# Damage


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"1", b"version https://git-lfs.github.com/spec/v1\n", bytes(100)])
def test_what_is_of_another_kind_is_refused(suffix, content):
    assert re.match(rf" is damaged, or no {suffix} file \(\w+: .*\): write it again$", refused(f"q{suffix}", content))


def test_a_file_that_ends_early_or_late_is_refused():
    given = npy(Q)
    says = (
        " is damaged or was not written to its end: its header says float32 of shape (2, 3, 4), which is 96 bytes, but "
    )
    assert refused("q.npy", given[:-1]) == f"{says}95 follow; write it again"
    assert refused("q.npy", given + given) == f"{says}{96 + len(given)} follow; write it again"
    assert refused("q.npz", npz({"q.npy": given[:-96]})) == f"{says}0 follow; write it again"
    assert " is damaged, or no .npy file (ValueError: " in refused("q.npy", given[:50])
    assert " is damaged, or no .npz file (BadZipFile: " in refused("q.npz", npz({"q.npy": given})[:-1])
    assert " is damaged, or no .safetensors file (SafetensorError: " in refused("q.safetensors", save({"q": Q})[:-1])


def test_a_damaged_zip_is_refused():
    whole = npz({"q.npy": npy(Q)}, zipfile.ZIP_STORED)
    at = whole.index(Q.tobytes())
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    assert "(BadZipFile: Bad CRC-32 for file 'q.npy')" in refused("q.npz", flipped)
    locked = bytearray(whole)
    locked[6] |= 1
    locked[whole.index(b"PK\1\2") + 8] |= 1
    assert "(RuntimeError: File " in refused("q.npz", bytes(locked))
    packed = npz({"q.npy": npy(Q)}, zipfile.ZIP_BZIP2)
    assert refused("q.npz", packed) == " is compressed by method 12: save it with numpy.savez_compressed"


# Headers that lie


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("(2, 3, 10**9)", r"damaged, or no .npy file"),  # no literal
        (
            "(2, 3, 1000000000)",
            r"shape \(2, 3, 1000000000\), which is 24000000000 bytes, but 96 follow; write it again$",
        ),
        (f"({2**62}, {2**62}, 4)", r"which is 3402823669\d* bytes, but 96 follow; write it again$"),
        (f"({2**64}, 0)", r"every dimension must be at least 1; give it entries$"),
        ("(-2, -3, 4)", r"has the shape \(-2, -3, 4\): every dimension must be at least 1"),
        ("(-24, 1)", r"every dimension must be at least 1"),
        ("24", r"damaged, or no .npy file \(ValueError: shape is not valid: 24\)"),
        ("(2, 3.0, 4)", r"damaged, or no .npy file"),
        ("(24,)" + " " * 12000, r"damaged, or no .npy file \(ValueError: Header info length \(\d+\) is large"),
        ("(" * 3000, r"damaged, or no .npy file"),
        ("(0x" + "f" * 9000 + ", 1)", r"damaged, or no .npy file"),
        (f"({'1, ' * 69}24)", r"damaged, or no .npy file"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_before_memory_is_taken(shape, says):
    tracemalloc.start()
    try:
        for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
            content = npy_saying(shape, version=version)
            assert re.search(says, refused("q.npy", content))
            assert re.search(says.replace("npy", "npz"), refused("q.npz", npz({"q.npy": content})))
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


def test_other_headers_that_cannot_be_are_refused():
    assert "version 4.0 of the format is unknown" in refused("q.npy", npy_saying("(2, 3, 4)", version=b"\x04\x00"))
    huge = b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1000)
    assert "damaged, or no .npy file (ValueError: " in refused("q.npy", huge)
    assert "damaged, or no .npy file" in refused("q.npy", npy_saying("(2, 3, 4)", descr="'<f3'"))
    for header in (
        {"q": tensor("F32", [2**40, 2**40], 96)},
        {"q": tensor("F32", [-4, 6], 96)},
        {"q": tensor("F32", [4, 7], 96)},
        {"q": tensor("F99", [4, 6], 96)},
        {"q": tensor("F32", [4, 6], 0, 96)},
        {"q": tensor("F32", [4, 6], 10**12)},
        {"q": tensor("F32", [1] * 70 + [24], 96)},
        [],
    ):
        assert "damaged, or no .safetensors file (" in refused("q.safetensors", safetensors_saying(header))
    assert "every dimension must be at least 1" in refused(
        "q.safetensors", safetensors_saying({"q": tensor("F32", [2**63, 0], 0)}, b"")
    )


def lying(content: bytes, size: int, packed: int | None = None) -> bytes:
    """Return a zip file whose directory states other sizes for its first member."""
    at = content.index(b"PK\1\2")
    old = struct.unpack("<II", content[at + 20 : at + 28])[0]
    return content[: at + 20] + struct.pack("<II", old if packed is None else packed, size) + content[at + 28 :]


def test_a_zip_that_lies_of_its_sizes_is_refused():
    claimed = 4 * 10**9
    header = npy_saying("(1000000000, 1)", data=b"")
    member = npy_saying("(1000000000, 1)")
    size = len(header) + claimed
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = npz({"q.npy": member}, compression)
        assert f" is damaged: it claims to hold {size} bytes, more than " in refused("q.npz", lying(packed, size))
        assert f" is damaged: it claims to hold {size} bytes, more than " in refused("q.npz", lying(packed, size, size))
    few = npz({"q.npy": npy_saying("(1000, 1)", data=bytes(400))})
    stated = len(npy_saying("(1000, 1)", data=bytes(4000)))
    assert "damaged, or no .npz file (" in refused("q.npz", lying(few, stated))
    many = npz({"q.npy": npy_saying("(1000, 1)", data=bytes(8000))})
    assert "damaged, or no .npz file (BadZipFile: Bad CRC-32" in refused("q.npz", lying(many, stated))


def test_what_takes_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(arrays, "_memory", lambda: 8 << 20)
    bomb = npz({"q.npy": npy(np.zeros((1024, 2048), np.float32))})
    assert len(bomb) < 20_000
    tracemalloc.start()
    says = " has the shape (1024, 2048) and would take 0.00781 GiB of memory: half of this machine's 0.00781 GiB"
    assert refused("q.npz", bomb).startswith(f"{says} are allowed; give a part of it")
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()
    bytes_ = np.ones((512, 1024), np.int8)  # half a MiB, and 4 as floats
    assert " and would take 0.00439 GiB of memory" in refused("q.npy", npy(bytes_))
    assert " and would take 0.00439 GiB of memory" in refused("q.safetensors", save({"q": bytes_}))
    Path("q.npy").write_bytes(npy(bytes_[:256]))
    assert read_array("q.npy", "--query").shape == (256, 1024)


def test_memory_that_runs_out_is_told(monkeypatch):
    def out(*_):
        raise MemoryError

    monkeypatch.setattr(arrays, "check_finite", out)
    assert refused("q.npy", npy(Q)) == " does not fit in memory as floats: give a part of it"
    monkeypatch.setattr(arrays, "_read_npy", out)
    assert refused("q.npy", npy(Q)) == " does not fit in memory: give a part of it"


def test_the_machine_has_memory(monkeypatch):
    assert arrays._memory() > 2**28
    monkeypatch.delattr(os, "sysconf")
    assert arrays._memory() > 2**60


# Whatever stands in a file


def broken(rng: np.random.Generator, whole: bytes) -> bytes:
    """Return the file with bytes changed, most often near an end, where the headers are, or with a part cut out."""
    content = bytearray(whole)
    way = rng.integers(4)
    if way == 0:
        return bytes(content[: rng.integers(len(content))])
    if way == 1:
        start, end = sorted(rng.integers(len(content), size=2))
        return bytes(content[:start] + content[end:])
    for _ in range(rng.integers(1, 4)):
        reach = min(len(content), int(rng.choice([16, 130, len(content)])))
        at = int(rng.integers(reach))
        at = at if rng.random() < 0.6 else len(content) - 1 - at
        content[at] = rng.choice(
            [rng.integers(256), content[at] ^ (1 << rng.integers(8)), rng.choice([*b"0123456789"])]
        )
    return bytes(content)


SEVERAL = {"q": Q, "k": Q.astype(np.float16)}
WHOLE = {
    "q.npy": npy(Q.astype(">f8")),
    "v3.npy": npy(np.asfortranarray(Q), (3, 0)),
    "q.npz:q": npz({f"{key}.npy": npy(array) for key, array in SEVERAL.items()}),
    "stored.npz:k": npz({f"{key}.npy": npy(array) for key, array in SEVERAL.items()}, zipfile.ZIP_STORED),
    "q.safetensors:k": save({**SEVERAL, "b": Q.astype(ml_dtypes.bfloat16)}),
    "zeros.npz": npz({"q.npy": npy(np.zeros((400, 500)))}),
}


def outcome(source: str) -> str:
    """Read it, and return "read" or "refused"."""
    try:
        array = read_array(source, "--query")
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return "refused"
    assert array.dtype in FLOATS
    assert array.ndim >= 2
    assert np.isfinite(array).all()
    return "read"


@pytest.mark.parametrize("source", WHOLE)
def test_a_broken_file_is_read_or_refused(source):
    """Nothing else happens: no other exception, no long wait, no memory beyond what so small a file can hold."""
    file, whole = Path(source.split(":")[0]), WHOLE[source]
    file.write_bytes(whole)
    assert outcome(source) == "read"
    rng = np.random.default_rng(7)
    seen, longest = [], 0.0
    tracemalloc.start()
    try:
        for _ in range(500):
            file.write_bytes(broken(rng, whole))
            start = time.monotonic()
            seen.append(outcome(source))
            longest = max(longest, time.monotonic() - start)
        assert tracemalloc.get_traced_memory()[1] < 32e6
    finally:
        tracemalloc.stop()
    assert longest < 5
    assert seen.count("refused") > 50
    if source.endswith("npy"):
        assert seen.count("read") > 20


def test_a_broken_array_in_a_whole_zip_is_read_or_refused():
    rng = np.random.default_rng(8)
    seen = set()
    for _ in range(500):
        Path("q.npz").write_bytes(npz({"q.npy": broken(rng, npy(Q))}))
        seen.add(outcome("q.npz"))
    assert seen == {"read", "refused"}
