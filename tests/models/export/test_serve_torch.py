"""Serving with PyTorch, in a process of its own (tests/support/models/serving_contract.py)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.models.exported import base_of, write_export
from tests.support.models.serving_contract import ServingContract


class TestServing(ServingContract):
    framework = "torch"


@pytest.mark.parametrize("policy", [None, "ACTIVE"])
def test_threads_that_wait_do_not_spin(policy, tmp_path):
    """Unless the user says so. A program that it starts has its own setting."""
    path = write_export(tmp_path / "export", base_of(str(tmp_path / "base"), "distilbert"))
    script = (
        "import os, sys; from howdah.models.opened.opened import open_model;"
        "open_model(sys.argv[1], framework='torch', threads=2).scores(['of the']);"
        "print(os.environ.get('OMP_WAIT_POLICY'))"
    )
    settings = {"OMP_DISPLAY_ENV": "true", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, path],
        env=os.environ | settings | ({} if policy is None else {"OMP_WAIT_POLICY": policy}),
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(policy)
    lines = [line for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    assert lines and all((policy or "PASSIVE") in line for line in lines), done.stderr[-2000:]
