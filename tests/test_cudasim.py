"""The shared words, laws and row formulas in CUDA kernels, in Numba's simulator: no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sim.laws import LAWS
from tests import cudasim_kernel as grids
from tests import oracle
from tests.measuring import each_row

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Return what the kernels wrote; the simulator is chosen when Numba is imported, so in a process of its own."""
    path = tmp_path_factory.mktemp("cudasim") / "grids.npz"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests" / "cudasim_kernel.py"), str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return np.load(path)


def places():
    return [(token, quad) for token in range(grids.TOKENS) for quad in range(grids.QUADS)]


def test_words_are_the_cpus_to_the_bit(simulated):
    for token, quad in places():
        expected = oracle.philox((quad, token, grids.TRIAL, 1), grids.CELL_KEY)
        assert tuple(simulated["words"][token, quad].tolist()) == expected


def test_elements_are_the_cpus(simulated):
    for law, elements in zip(LAWS, simulated["elements"], strict=True):
        for token in range(grids.TOKENS):
            expected = oracle.vector(law, 4 * grids.QUADS, token, grids.TRIAL, 1, grids.CELL_KEY)
            np.testing.assert_allclose(elements[token].ravel(), expected, rtol=1e-6, atol=2e-6, err_msg=law)


def test_rows_are_the_cpus(simulated):
    names = ["weight_max", "weight_entropy", "weight_effective_keys", "weight_sum_squares"]
    names += ["jacobian_trace", "jacobian_frobenius_sq"]
    found = each_row(grids.scores_of_rows(), grids.FACTORS)
    for i, name in enumerate(names):
        np.testing.assert_allclose(
            simulated["rows"][..., i], found[name], rtol=1e-5, atol=1e-28, err_msg=name
        )  # terms at 2^-120
