"""Reading an array that a user gives: real, finite and at least two-dimensional, or refused in one message.

A file is checked by its header before memory is taken for it, and nothing in it is ever run: pickles are refused.
"""

from __future__ import annotations

import io
import math
import os
import stat
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import ml_dtypes
import numpy as np
from safetensors import safe_open

from sim.errors import InputError, suggest

__all__ = ["as_real", "check_finite", "read_array"]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))
_ALLOWED = "float16, bfloat16, float32, float64 and integers"
_HINTS = {
    "b": "a mask is no vector; convert it with .astype('float32') if it is meant as 0 and 1",
    "c": "give its real part, or another real form",
    "O": "Python objects are no numbers, and a pickle is never loaded; convert it with .astype('float32')",
    "U": "give the array itself, neither text nor the name of a file",
    "V": "NumPy's own files forget what bfloat16 is; save it as float32, or as .safetensors",
    "fields": "give one of the fields",
}
_CONVERT = "convert it with .astype('float32')"

# What the format's names stand for in NumPy. The narrower floats (F8_E4M3, F4, ...) are left out: they are refused.
_SAFETENSORS = {
    "F16": np.dtype(np.float16),
    "BF16": _BFLOAT16,
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
    "BOOL": np.dtype(bool),
    **{f"{letter}{8 * size}": np.dtype(f"{letter.lower()}{size}") for letter in "IU" for size in (1, 2, 4, 8)},
}
_SUFFIXES = (".npy", ".npz", ".safetensors")
# How many bytes one byte of a zip member can become: deflate spends at least 2 bits on 258 bytes.
_RATIO = {ZIP_STORED: 1, ZIP_DEFLATED: 1032}
_HEAD = 1 << 14  # bytes; NumPy takes no header of more than 10 000
_CHUNK = 1 << 20  # bytes read at once
_LISTED = 8  # keys named in a message
_LENGTH = 160  # letters of what a file or a library says


def read_array(source: str, what: str) -> np.ndarray:
    """Return the array in a file as floats.

    Parameters
    ----------
    source : str
        ``FILE``, or ``FILE:KEY`` for one array of several; FILE ends in .npy, .npz or .safetensors. What exists as a
        whole is a file, whatever colons it has.
    what : str
        The option that named it, for the message.

    Returns
    -------
    array : numpy.ndarray
        As :func:`as_real` gives it.

    Raises
    ------
    InputError
        If there is no such array, if it cannot be read whole, or if it is not what :func:`as_real` takes.
    """
    path, key = _split(source)
    name = f"{what}: {_plain(source)}"
    suffix = _file_kind(path, name)
    try:
        if suffix == ".npz":
            array = _read_npz(path, key, name)
        elif suffix == ".safetensors":
            array = _read_safetensors(path, key, name)
        else:
            if key is not None:
                raise InputError(
                    f"{name} names the array {_plain(key)}, but a .npy file holds one alone: give {_plain(path)}"
                )
            with open(path, "rb") as file:
                array = _read_npy(file, os.fstat(file.fileno()).st_size, name)
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{name} does not fit in memory: give a part of it") from error
    except OSError as error:
        _refuse_file(name, error)
    except Exception as error:
        # A stranger's file goes through zipfile, zlib, NumPy's parser and the safetensors library here, and each of
        # them fails in its own many ways.
        raise InputError(f"{name} is damaged, or no {suffix} file ({_reason(error)}): write it again") from error
    return as_real(array, name)


def as_real(array: Any, name: str) -> np.ndarray:
    """Return an array of finite floats with at least two dimensions.

    Parameters
    ----------
    array : array_like
        float16, float32 and float64 stay what they are, bfloat16 becomes float32, which holds it exactly, and integers
        become float64. Booleans are refused: where vectors are expected, they are a mask given by mistake.
    name : str
        What the user calls it, for the message.

    Returns
    -------
    array : numpy.ndarray
        In native byte order; the given array itself where nothing had to change.

    Raises
    ------
    InputError
        If it is not such an array.
    """
    if np.ma.is_masked(array):
        raise InputError(f"{name} has masked entries: all must count; fill them, as array.filled(0)")
    try:
        given = np.asarray(array)
    except Exception as error:  # whatever the object's own conversion raises
        raise InputError(f"{name} is not an array of numbers ({_reason(error)}): give a NumPy array") from error
    _check_form(given.dtype, given.shape, name)
    try:
        real = given.astype(_real_type(given.dtype), copy=False)
        check_finite(real, name)
    except MemoryError as error:
        raise InputError(f"{name} does not fit in memory as floats: give a part of it") from error
    return real


def check_finite(array: np.ndarray, name: str) -> None:
    """Raise :class:`~sim.errors.InputError` if an entry is NaN or infinite."""
    finite = np.isfinite(array)
    bad = finite.size - np.count_nonzero(finite)
    if bad:
        first = tuple(int(i) for i in np.unravel_index(np.argmin(finite), finite.shape))
        entries = "1 entry that is" if bad == 1 else f"{bad} entries that are"
        raise InputError(
            f"{name} has {entries} NaN or infinite, the first [{', '.join(map(str, first))}] = {array[first]}: "
            f"all {finite.size} must be finite; mend or leave out the rows that hold them"
        )


def _real_type(dtype: np.dtype) -> np.dtype | None:
    """Return the type of float that such entries become, if there is one."""
    if dtype == _BFLOAT16:
        return _FLOATS[1]
    if dtype.kind in "iu":
        return _FLOATS[2]
    return next((real for real in _FLOATS if dtype == real or dtype.newbyteorder() == real), None)


def _check_form(dtype: np.dtype, shape: Sequence[int], name: str) -> None:
    """Refuse what is known to be wrong before any entry is seen."""
    if _real_type(dtype) is None:
        raise _wrong_type(dtype.name, "fields" if dtype.names else dtype.kind, name)
    if len(shape) < 2:
        raise InputError(
            f"{name} has the shape {_shown(shape)}: at least 2 dimensions are needed, the last two being tokens "
            "and d_k; reshape it, as array.reshape(tokens, d_k)"
        )
    if min(shape) < 1:
        raise InputError(f"{name} has the shape {_shown(shape)}: every dimension must be at least 1; give it entries")


def _wrong_type(given: str, kind: str, name: str) -> InputError:
    return InputError(f"{name} holds {given}: allowed are {_ALLOWED}; {_HINTS.get(kind, _CONVERT)}")


def _check_memory(dtype: np.dtype, shape: Sequence[int], name: str) -> None:
    """Refuse an array that takes more than half of the memory, counting its copy as floats where it needs one."""
    real = _real_type(dtype)
    copy = real.itemsize if real is not None and real != dtype else 0
    needed, memory = math.prod(shape) * (dtype.itemsize + copy), _memory()
    if 2 * needed > memory:
        raise InputError(
            f"{name} has the shape {_shown(shape)} and would take {needed / 2**30:.3g} GiB of memory: "
            f"half of this machine's {memory / 2**30:.3g} GiB are allowed; give a part of it"
        )


def _memory() -> int:
    """Return the machine's memory in bytes; where the system does not say, more than any array takes."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _plain(text: str) -> str:
    """Return the text as it is, or quoted if it would not stay on one line."""
    return text if text.isprintable() else repr(text)


def _cut(text: str) -> str:
    """Return the text on one line, and no more of it than a message bears."""
    line = _plain(" ".join(text.split()))
    return line if len(line) <= _LENGTH else line[: _LENGTH - 1] + "…"


def _reason(error: Exception) -> str:
    return _cut(f"{type(error).__name__}: {error}")


def _shown(shape: Sequence[int]) -> str:
    """Return the shape as text; no array has more than 64 dimensions, but a header may say so."""
    return _cut(str(tuple(shape)))


def _split(source: str) -> tuple[str, str | None]:
    """Return the file and the key, of which either may have colons: the longest part that is a file is the file."""
    if os.path.exists(source):
        return source, None
    colons = [i for i, letter in enumerate(source) if letter == ":"]
    for i in reversed(colons):
        if os.path.isfile(source[:i]):
            return source[:i], source[i + 1 :]
    if colons and source[: colons[-1]].lower().endswith(_SUFFIXES):
        return source[: colons[-1]], source[colons[-1] + 1 :]
    return source, None


def _file_kind(path: str, name: str) -> str:
    """Return the extension, once `path` is known to be a file that can be opened without waiting."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        _refuse_file(name, error)
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise InputError(f"{name} cannot be a file's name ({error}): give {_kinds('a file')}") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{name} is a directory: give {_kinds('a file in it')}")
    if not stat.S_ISREG(mode):
        raise InputError(f"{name} is no regular file, but a pipe or a device: give {_kinds('a file')}")
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        has = f"the extension {_plain(suffix)}" if suffix else "no extension"
        raise InputError(f"{name} has {has}: give {_kinds('a file')}")
    return suffix


def _kinds(what: str) -> str:
    return f"{what} that ends in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"


def _refuse_file(name: str, error: OSError) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        raise InputError(f"{name}: there is no such file; give FILE, or FILE:KEY for one array of several") from error
    why = _cut(error.strerror or str(error))
    raise InputError(f"{name} cannot be read ({why}): give a file that is whole and that you may read") from error


def _chosen(key: str | None, keys: Sequence[str], path: str, name: str) -> str:
    """Return the key of the array that is meant."""
    if key is None and len(keys) == 1:
        return keys[0]
    if not keys:
        raise InputError(f"{name} holds no arrays: write it again, as numpy.savez or safetensors do")
    if key is not None and key in keys:
        return key
    listed = ", ".join(_cut(k) for k in keys[:_LISTED])
    more = f", … ({len(keys)} in all)" if len(keys) > _LISTED else ""
    there = f"KEY is one of {listed}{more}"
    if key is None:
        raise InputError(f"{name} holds {len(keys)} arrays: name one of them, as {_plain(path)}:KEY; {there}")
    raise InputError(f"{name}: there is no array {_cut(key)} in the file; {there}{suggest(key, keys)}")


def _read_npy(file: IO[bytes], size: int, name: str) -> np.ndarray:
    """Return the array in an open .npy file, or zip member, of `size` bytes."""
    head = file.read(_HEAD)
    header = io.BytesIO(head)
    version = np.lib.format.read_magic(header)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version[0]}.{version[1]} of the format is unknown")
    # Version 3 is version 2 but for the encoding of the names of fields, and fields are refused.
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2 is as good as any
        stored_shape, fortran, dtype = read_header(header)
    shape = tuple(int(n) for n in stored_shape)  # True passes for 1 with NumPy
    _check_form(dtype, shape, name)
    start, length = header.tell(), math.prod(shape) * dtype.itemsize
    if start + length != size:
        raise InputError(
            f"{name} is damaged or was not written to its end: its header says {dtype.name} of shape {_shown(shape)}, "
            f"which is {length} bytes, but {max(size - start, 0)} follow; write it again"
        )
    _check_memory(dtype, shape, name)
    data = np.empty(length, np.uint8)
    rest, chunk = data.data, head[start : start + length]
    while rest:
        if not chunk:
            raise EOFError("the data end early")
        rest[: len(chunk)] = chunk
        rest = rest[len(chunk) :]
        chunk = file.read(min(len(rest), _CHUNK))
    return data.view(dtype).reshape(shape, order="F" if fortran else "C")


def _read_npz(path: str, key: str | None, name: str) -> np.ndarray:
    """Return one array of a zip file of .npy files."""
    with ZipFile(path) as archive:
        ends = ".npy"
        members = {m.filename.removesuffix(ends): m for m in archive.infolist() if m.filename.endswith(ends)}
        member = members[_chosen(key, list(members), path, name)]
        ratio = _RATIO.get(member.compress_type)
        if ratio is None:
            raise InputError(
                f"{name} is compressed by method {member.compress_type}: save it with numpy.savez_compressed"
            )
        if member.file_size > ratio * min(member.compress_size, os.path.getsize(path)):
            raise InputError(
                f"{name} is damaged: it claims to hold {member.file_size} bytes, more than {member.compress_size} "
                "compressed bytes can stand for; write it again"
            )
        with archive.open(member) as file:
            return _read_npy(file, member.file_size, name)


def _read_safetensors(path: str, key: str | None, name: str) -> np.ndarray:
    """Return one tensor; the others are not read. The library itself holds shapes and offsets against the file."""
    with safe_open(path, framework="numpy") as file:
        chosen = _chosen(key, list(file.keys()), path, name)
        header = file.get_slice(chosen)
        code, shape = header.get_dtype(), header.get_shape()
        dtype = _SAFETENSORS.get(code)
        if dtype is None:
            raise _wrong_type(code, code, name)
        _check_form(dtype, shape, name)
        _check_memory(dtype, shape, name)
        return file.get_tensor(chosen)
