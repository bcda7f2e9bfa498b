"""The one place where Numba is set up: how kernels are compiled, and a disk cache that cannot go stale.

Numba's cache looks only at the file of the outermost function, so an edit in an imported function
would go unseen. The cache folder is therefore named by a digest of all that is compiled.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.extending import overload, register_jitable

from sim.provenance import PACKAGE, kernel_digest

__all__ = [
    "PRECISIONS",
    "by_precision",
    "device",
    "ensure_compiled",
    "entry",
    "inner",
    "is_compiled",
    "kernel",
    "mark_compiled",
    "owner",
    "part",
    "reduction",
    "shared",
]

PRECISIONS = ("float32", "float64")  # that kernels compute in
_KEEP_DAYS = 30
# Named one by one: `nnan` and `ninf`, which "fast" would add, break infinities and NaN.
_ELEMENTWISE = {"contract", "nsz"}


def _cache_folder() -> Path:
    try:
        root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        kernels = Path(root) / "attention-sim" / "kernels"
        folder = kernels / _folder_name()
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # the date of last use
        _forget_old(kernels)
        probe = folder / f".{os.getpid()}"
        probe.write_bytes(b"")  # a folder that is there may still be read-only
        probe.unlink()
    except (OSError, RuntimeError):  # no home, or one that cannot be written: compile for this process alone
        root = tempfile.mkdtemp(prefix="attention-sim-kernels-")
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = root  # for the process that compiles
        folder = Path(root) / "attention-sim" / "kernels" / _folder_name()
        folder.mkdir(parents=True)
    return folder


def _folder_name() -> str:
    return f"{kernel_digest()}-numba{numba.__version__}"


def _forget_old(kernels: Path) -> None:
    limit = time.time() - _KEEP_DAYS * 86400
    for folder in kernels.iterdir():
        if folder.stat().st_mtime < limit:
            shutil.rmtree(folder, ignore_errors=True)


numba.config.CACHE_DIR = str(_cache_folder())


def _prefer_wide_vectors() -> None:
    # LLVM halves its vectors on processors with AVX-512, for the sake of code that uses them rarely. Loops over
    # scores use little else: whole cells run 5 to 20 % faster with the full width.
    if numba.config.CPU_FEATURES is None and numba.config.CPU_NAME is None:
        try:
            features = llvm.get_host_cpu_features().flatten()
        except RuntimeError:  # the processor does not say; Numba then does without, too
            return
        numba.config.CPU_NAME = llvm.get_host_cpu_name()
        numba.config.CPU_FEATURES = ",".join([features, "-prefer-256-bit"])


if platform.machine() in ("x86_64", "AMD64"):
    _prefer_wide_vectors()


# Set in the process that compiles the entry point for others. There no other function is ever called from
# Python, and Numba's wrappers for such calls, which unpack a hundred arrays each, cost a quarter of the time.
_COMPILES_FOR_OTHERS = "ATTENTION_SIM_COMPILES_FOR_OTHERS"
_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if _COMPILES_FOR_OTHERS in os.environ else {}

# No reference is counted to arrays that the caller holds anyway, nor to slices of them. To count sixty arrays, in every
# function that they pass through, was two thirds of all code to compile.
_BORROWS = {"_nrt": False}


def device(function: Callable[..., Any]) -> Any:
    """A scalar formula, inlined into whatever calls it: a CPU loop or a CUDA kernel alike."""
    return numba.njit(inline="always", error_model="numpy", **_WRAPPERS)(function)


def inner(function: Callable[..., Any]) -> Any:
    """An inner loop over arrays whose steps are independent, or whose sums are to keep their order."""
    return numba.njit(error_model="numpy", fastmath=_ELEMENTWISE, **_BORROWS, **_WRAPPERS)(function)


def reduction(function: Callable[..., Any]) -> Any:
    """An inner loop whose sums may be taken in another order, so that they vectorise.

    Only for loops with a single term added to each sum: in longer expressions the order is the compiler's
    choice, which could change from one compilation to the next, and with it the last bit.
    """
    return numba.njit(error_model="numpy", fastmath=_ELEMENTWISE | {"reassoc"}, **_BORROWS, **_WRAPPERS)(function)


def by_precision(single: Callable[..., Any], double: Callable[..., Any]) -> Any:
    """Return a function of one number for compiled CPU code: `single` of a float32, `double` of a float64."""

    def choose(x):
        raise NotImplementedError("compiled code only")

    @overload(choose, inline="always")
    def _choose(x):
        return (lambda x: single(x)) if x == types.float32 else (lambda x: double(x))

    return choose


def part(function: Callable[..., Any]) -> Any:
    """A part of one or two kernels: compiled in them, not on its own and then once more with each.

    LLVM optimises all that a function calls along with it, so every level of calls costs the time of all below.
    """
    return numba.njit(inline="always", error_model="numpy", **_WRAPPERS)(function)


def shared(function: Callable[..., Any]) -> Any:
    """A function that Python calls as it stands, and kernels compiled."""
    return register_jitable(function)


def kernel(function: Callable[..., Any]) -> Any:
    """A function with strict arithmetic that makes no arrays, runs without the GIL and is held in the disk cache."""
    return numba.njit(nogil=True, cache=not _WRAPPERS, error_model="numpy", **_BORROWS, **_WRAPPERS)(function)


def owner(function: Callable[..., Any]) -> Any:
    """A kernel that makes arrays, and so has to count references."""
    return numba.njit(nogil=True, cache=not _WRAPPERS, error_model="numpy", _nrt=True, **_WRAPPERS)(function)


def entry(function: Callable[..., Any]) -> dict[str, Any]:
    """A kernel that Python calls with all others behind it, for each precision: compiled once, in a process of its own.

    They differ in their names alone, by which Numba's disk cache keeps apart what two processes write at a time.
    """
    entries = {}
    for precision in PRECISIONS:
        named = FunctionType(function.__code__, function.__globals__, f"{function.__name__}_{precision}")
        named.__qualname__ = named.__name__
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, **_BORROWS)
        entries[precision] = compiled(named)
    return entries


_COMPILING = threading.Lock()


def _mark(precision: str) -> Path:
    # Numba keeps the kernels by the place of their sources, too.
    place = f"{numba.config.CPU_NAME} {numba.config.CPU_FEATURES} {platform.machine()} {PACKAGE}"
    digest = hashlib.blake2b(place.encode(), digest_size=4).hexdigest()
    return Path(numba.config.CACHE_DIR) / f"{precision}-{digest}-{sys.implementation.cache_tag}.compiled"


def is_compiled(precision: str) -> bool:
    """Return whether the kernels of one precision are in the cache, of this copy of the sources on this processor."""
    return _mark(precision).exists()


def mark_compiled(precision: str) -> None:
    """Note that the kernels of one precision are in the cache."""
    _mark(precision).touch()


def ensure_compiled(precision: str) -> None:
    """Let a process of its own compile the entry point in one precision, unless one did so before; the other beside it.

    Where a kernel is compiled, LLVM links the inner loops as they were compiled by themselves, while in the cache they
    are optimised once more as parts of their caller, and then add in another order. All that compute shall load the
    same code.
    """
    if numba.config.DISABLE_JIT or _WRAPPERS:
        return
    with _COMPILING:  # threads that come in meanwhile wait
        if not is_compiled(precision):
            beside = PRECISIONS if (os.cpu_count() or 1) > 1 else (precision,)
            processes = [_compiler_of(each) for each in beside if not is_compiled(each)]
            try:
                for process in processes:
                    process.wait()
            finally:  # those that are left on Ctrl-C
                for process in processes:
                    process.kill()


def _compiler_of(precision: str) -> subprocess.Popen[bytes]:
    # The garbage collector would find nothing in what Numba keeps, at 4 % of the time.
    statement = f"import gc; gc.disable(); from sim.cpu import compile_into_cache; compile_into_cache({precision!r})"
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, _COMPILES_FOR_OTHERS: "1"}
    # Where it fails, this process compiles, and fails with the reason or does without the same last bits.
    command, quiet = [sys.executable, "-c", statement], subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
