"""Arrays in files and in memory: each is read to the bit, or refused in one message that names it."""

import os
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

from sim import arrays
from sim.arrays import as_real, check_finite, read_array
from sim.errors import InputError
from tests.array_files import FLOATS, Q, npy, npz, refused, safetensors_saying, tensor


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# What is read


@pytest.mark.parametrize("descr", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_floats_stay_what_they_are(tmp_path, descr, order, version):
    path = tmp_path / "q.npy"
    path.write_bytes(npy(np.asarray(Q.astype(descr), order=order), version))
    read = read_array(str(path), "--query")
    assert read.dtype in FLOATS
    assert read.dtype.isnative
    assert read.dtype.itemsize == int(descr[2:])
    np.testing.assert_array_equal(read, Q.astype(descr))


@pytest.mark.parametrize("descr", ["i1", "u1", "<i2", ">u2", "<i4", "<u4", ">i8", "<u8"])
def test_integers_become_double(tmp_path, descr):
    whole = np.array([[0, 1, 100], [7, 8, np.iinfo(descr).max]], dtype=descr)
    np.save(tmp_path / "q.npy", whole)
    read = read_array(f"{tmp_path}/q.npy", "--query")
    assert read.dtype == np.float64
    np.testing.assert_array_equal(read, whole.astype(np.float64))
    if not descr.startswith(">"):
        save_file({"q": whole}, tmp_path / "q.safetensors")
        np.testing.assert_array_equal(read_array(f"{tmp_path}/q.safetensors", "--query"), read)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_each_format_reads_alike(tmp_path, dtype):
    given = Q.astype(dtype)
    np.save(tmp_path / "a.npy", given)
    np.savez(tmp_path / "b.npz", q=given)
    np.savez_compressed(tmp_path / "c.npz", q=given)
    (tmp_path / "c.npz").rename(tmp_path / "c.NPZ")
    save_file({"q": given}, tmp_path / "d.safetensors")
    for name in ("a.npy", "b.npz", "c.NPZ", "d.safetensors", "b.npz:q", "d.safetensors:q"):
        read = read_array(f"{tmp_path}/{name}", "--query")
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, given)


def test_an_array_of_many_pieces_is_read_whole(tmp_path):
    given = np.random.default_rng(1).standard_normal((3, 1000, 200))  # 4.8 MB: more than one piece
    np.save(tmp_path / "q.npy", given)
    np.savez_compressed(tmp_path / "q.npz", given)
    np.testing.assert_array_equal(read_array(f"{tmp_path}/q.npy", "--query"), given)
    np.testing.assert_array_equal(read_array(f"{tmp_path}/q.npz", "--query"), given)


def test_bfloat16_becomes_single_exactly(tmp_path):
    words = np.arange(2**16, dtype=np.uint16)
    words = words[words & 0x7F80 != 0x7F80].reshape(-1, 16)  # all that is finite
    save_file({"q": words.view(ml_dtypes.bfloat16)}, tmp_path / "q.safetensors")
    read = read_array(f"{tmp_path}/q.safetensors", "--query")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read.view(np.uint32), words.astype(np.uint32) << 16)
    np.testing.assert_array_equal(as_real(words.view(ml_dtypes.bfloat16), "query"), read)


def test_one_of_several_is_chosen_by_its_key(tmp_path):
    several = {"layer0/q": Q, "layer0/k": Q + 1, "a:b": Q + 2}
    (tmp_path / "x.npz").write_bytes(npz({f"{key}.npy": npy(array) for key, array in several.items()}))
    save_file(several, tmp_path / "x.safetensors")
    for file in ("x.npz", "x.safetensors"):
        for key, array in several.items():
            np.testing.assert_array_equal(read_array(f"{tmp_path}/{file}:{key}", "--key"), array)


def test_only_the_chosen_array_must_be_right(tmp_path):
    save_file({"q": Q, "e": np.full((2, 2), np.nan), "one": Q[0, 0]}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(read_array(f"{tmp_path}/x.safetensors:q", "--query"), Q)


@pytest.mark.parametrize("name", ["C:q.npy", "a:b.npy", "q.npy:x.npy", ":.npy"])
def test_a_name_may_have_colons(name):
    np.save("q.npy", Q + 1)
    np.save(name, Q)
    np.testing.assert_array_equal(read_array(name, "--query"), Q)
    np.savez("C:q.npz", q=Q, k=Q + 1)
    np.testing.assert_array_equal(read_array("C:q.npz:k", "--query"), Q + 1)


# What is refused: the file


def test_what_is_no_file_is_refused(tmp_path):
    there = "; give FILE, or FILE:KEY for one array of several"
    assert refused("no.npy") == f": there is no such file{there}"
    assert refused("no.npz:q") == f": there is no such file{there}"
    assert refused("C:\\no.npy") == f": there is no such file{there}"
    assert refused("") == f": there is no such file{there}"
    (tmp_path / "d.npy").mkdir()
    assert refused("d.npy") == " is a directory: give a file in it that ends in .npy, .npz or .safetensors"
    os.mkfifo("p.npy")
    assert refused("p.npy").startswith(" is no regular file, but a pipe or a device: give a file")
    assert refused("q.txt", b"1 2") == " has the extension .txt: give a file that ends in .npy, .npz or .safetensors"
    assert refused("q", b"1 2") == " has no extension: give a file that ends in .npy, .npz or .safetensors"
    assert refused("x" * 5000 + ".npy").startswith(" cannot be read (File name too long)")
    assert refused("q.npy/x.npy", b"", "q.npy").startswith(" cannot be read (Not a directory)")


@pytest.mark.parametrize("name", ["a\0.npy", "a\n.npy", "\ud800.npy"])
def test_a_name_is_shown_on_one_line(name):
    with pytest.raises(InputError, match=f"^--key: {re.escape(repr(name))}.*: ") as caught:
        read_array(name, "--key")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError("of no number")])
def test_a_file_that_may_not_be_read_is_refused(monkeypatch, error):
    def closed(*_):
        raise error

    monkeypatch.setattr(arrays, "open", closed, raising=False)
    assert refused("q.npy", npy(Q)) == (
        f" cannot be read ({error.strerror or error}): give a file that is whole and that you may read"
    )


def test_the_key_must_be_there():
    several = {f"layer{i}": Q for i in range(12)}
    listed = ", ".join(f"layer{i}" for i in sorted(range(12), key=str)[:8]) + ", … (12 in all)"
    for file, content in [
        ("x.npz", npz({f"{key}.npy": npy(Q) for key in sorted(several)} | {"readme.txt": b"hello"})),
        ("x.safetensors", save(several)),
    ]:
        assert refused(file, content) == f" holds 12 arrays: name one of them, as {file}:KEY; KEY is one of {listed}"
        assert refused(f"{file}:layr0") == (
            f": there is no array layr0 in the file; KEY is one of {listed}; did you mean 'layer0'?"
        )
        assert refused(f"{file}:").startswith(": there is no array  in the file; KEY is one of layer0, ")
    assert refused("q.npy:x", npy(Q), "q.npy") == (" names the array x, but a .npy file holds one alone: give q.npy")
    empty = " holds no arrays: write it again, as numpy.savez or safetensors do"
    assert refused("x.npz", npz({"readme.txt": b"hello"})) == empty
    assert refused("x.safetensors", save({})) == empty
    long = refused("x.safetensors", save({"a" * 5000: Q, "b\n": Q}))
    assert len(long) < 300
    assert long.endswith("a…, b")


# What is refused: the entries


ALLOWED = ": allowed are float16, bfloat16, float32, float64 and integers; "
WRONG_TYPES = [
    (np.ones((2, 2), bool), "bool", "a mask is no vector"),
    (np.ones((2, 2), np.complex64), "complex64", "give its real part"),
    (np.array([["a", "b"]]), "str32", "give the array itself"),
    (np.array([[b"a", b"b"]]), "bytes8", "convert it with"),
    (np.ones((2, 2), "f4,f4"), "void64", "give one of the fields"),
    (np.ones((2, 2), "M8[s]"), "datetime64[s]", "convert it with"),
    (np.ones((2, 2), "V2"), "void16", "NumPy's own files forget what bfloat16 is"),
]
if np.dtype(np.longdouble).itemsize > 8:
    WRONG_TYPES.append(
        (np.ones((2, 2), np.longdouble), np.dtype(np.longdouble).name, "convert it with .astype('float32')")
    )


@pytest.mark.parametrize(("array", "name", "hint"), WRONG_TYPES)
def test_other_types_are_refused(array, name, hint):
    content = npy(array)
    assert refused("q.npy", content).startswith(f" holds {name}{ALLOWED}{hint}")
    assert refused("q.npz", npz({"q.npy": content})).startswith(f" holds {name}{ALLOWED}{hint}")
    with pytest.raises(InputError, match=f"^query holds {re.escape(name + ALLOWED + hint)}"):
        as_real(array, "query")


def test_other_types_of_safetensors_are_refused():
    types = [("F8_E4M3", 1), ("F8_E5M2", 1), ("F8_E8M0", 1), ("C64", 8), ("BOOL", 1)]
    for code, size in types:
        said = {"C64": "complex64", "BOOL": "bool"}.get(code, code)
        content = safetensors_saying({"q": tensor(code, [2, 6], 12 * size)}, bytes(12 * size))
        assert refused("q.safetensors", content).startswith(f" holds {said}{ALLOWED}")
    assert refused("q.safetensors", safetensors_saying({"q": tensor("F4", [2, 4], 4)}, bytes(4))).startswith(
        " holds F4"
    )


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self):
        return open, ("sprung", "w")


def test_a_pickle_is_never_loaded(tmp_path):
    traps = np.array([[Trap(), Trap()]], dtype=object)
    content = npy(traps)
    says = f" holds object{ALLOWED}Python objects are no numbers, and a pickle is never loaded; convert it with"
    assert refused("q.npy", content).startswith(says)
    assert refused("q.npz", npz({"q.npy": content})).startswith(says)
    for bare in (pickle.dumps(Trap()), pickle.dumps(traps, protocol=0)):
        assert " is damaged, or no .npy file (ValueError: the magic string" in refused("q.npy", bare)
        assert " is damaged, or no .npz file (" in refused("q.npz", npz({"q.npy": bare}))
        assert " is damaged, or no .safetensors file (" in refused("q.safetensors", bare)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (
            np.float32(1),
            r" has the shape \(\): at least 2 dimensions are needed, the last two being tokens and d_k; reshape",
        ),
        (np.ones(3), r" has the shape \(3,\): at least 2 dimensions are needed"),
        (np.ones((0, 3)), r" has the shape \(0, 3\): every dimension must be at least 1; give it entries"),
        (np.ones((2, 0, 3), np.int8), r" has the shape \(2, 0, 3\): every dimension must be at least 1"),
    ],
)
def test_too_few_dimensions_or_entries_are_refused(array, says):
    assert re.match(says, refused("q.npy", npy(np.asarray(array))))
    assert re.match(says, refused("q.npz", npz({"q.npy": npy(np.asarray(array))})))
    assert re.match(says, refused("q.safetensors", save({"q": np.asarray(array)})))
    with pytest.raises(InputError, match=f"^query{says}"):
        as_real(array, "query")


def test_entries_must_be_finite():
    bad = Q.astype(np.float16)
    bad[1, 0, 2], bad[1, 2, 0] = -np.inf, np.nan
    says = (
        " has 2 entries that are NaN or infinite, the first [1, 0, 2] = -inf: all 24 must be finite; mend or leave out"
    )
    assert refused("q.npy", npy(bad)).startswith(says)
    assert refused("q.npy", npy(np.asfortranarray(bad))).startswith(says)
    assert refused("q.safetensors", save({"q": bad.astype(ml_dtypes.bfloat16)})).startswith(says)
    bad[1, 0, 2] = 0
    assert refused("q.npz:q", npz({"q.npy": npy(bad)}), "q.npz").startswith(
        " has 1 entry that is NaN or infinite, the first [1, 2, 0] = nan"
    )
    with pytest.raises(
        InputError, match=r"^key has 1 entry that is NaN or infinite, the first \[1, 2, 0\] = nan: all 24"
    ):
        check_finite(bad, "key")


# Arrays in memory


def test_an_array_in_memory_is_taken_as_it_is():
    assert as_real(Q, "query") is Q
    swapped = as_real(Q.astype(">f4"), "query")
    assert swapped.dtype == np.float32
    assert swapped.dtype.isnative
    np.testing.assert_array_equal(swapped, Q)
    assert as_real([[1, 2], [3, 4]], "query").dtype == np.float64
    assert as_real(np.ma.array(Q, mask=False), "query").dtype == np.float32
    view = Q[:, ::2]
    assert as_real(view, "query") is view


class Elsewhere:
    """Like a tensor on another device."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("copy it to host memory\nfirst")


def test_what_is_no_array_is_refused():
    with pytest.raises(
        InputError, match=r"^key is not an array of numbers \(TypeError: copy it to host memory first\): give"
    ):
        as_real(Elsewhere(), "key")
    with pytest.raises(InputError, match=r"^key is not an array of numbers \(ValueError: "):
        as_real([[1, 2], [3]], "key")
    with pytest.raises(InputError, match=r"^key holds object: "):
        as_real(None, "key")
    with pytest.raises(InputError, match=r"^key holds str160: .*; give the array itself, neither text nor the name"):
        as_real("q.npy", "key")
    with pytest.raises(InputError, match=r"^key has masked entries: all must count; fill them"):
        as_real(np.ma.array(Q, mask=Q > 1), "key")
