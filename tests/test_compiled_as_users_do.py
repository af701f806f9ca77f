"""Tests compile quickly rather than well; these numbers are of programs compiled as users compile them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = (
    "tests/worlds/test_objective.py::test_terms_and_gradients_equal_those_of_loops_over_a_ragged_batch"
    "[encoder-encoder-state-False-none]",
    "tests/estimators/test_conformance.py::test_with_enough_data_the_truth_lies_in_the_interval[fqe-graph]",
    "tests/estimators/test_conformance.py::test_with_enough_data_the_truth_lies_in_the_interval[ff-linear]",
)


@pytest.mark.parametrize("test", NUMBERS, ids=lambda test: test.rpartition("[")[2].rstrip("]"))
def test_numbers_hold_in_programs_compiled_as_users_do(test):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTEST_ADDOPTS")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--numprocesses=0", "-p", "no:cacheprovider", test],
        env={**environment, "COMPILE_AS_USERS_DO": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
