"""Files of arrays for the tests: whole ones, ones whose headers say something else, and how they are refused."""

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sim.arrays import read_array
from sim.errors import InputError

Q = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7
FLOATS = {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)}


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def npy_saying(shape: str, descr: str = "'<f4'", data: bytes = bytes(96), version: bytes = b"\x01\x00") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header + data


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def safetensors_saying(header: object, data: bytes = bytes(96)) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], end: int, start: int = 0) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def refused(source: str, content: bytes | None = None, file: str | None = None) -> str:
    """Write the file, read it, and return the message from behind the file's name."""
    if content is not None:
        Path(file or source).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_array(source, "--query")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"--query: {source}")
    return text.removeprefix(f"--query: {source}")
