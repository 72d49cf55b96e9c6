"""`pip install 'howdah[torch]'` into a fresh environment, without a compiler: two ranks train."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.runs.training_runs import SETTINGS
from tests.runs.training_runs import _nested as nested

BUILDS = re.compile(
    r"(cc|c\+\+|cpp|gcc|g\+\+|clang.*|.*-(gcc|g\+\+|cpp|ld)(-\d+)?|(gcc|g\+\+|cpp)-\d+|cmake|make|gmake"
    r"|ninja|java.*|ld(\..*)?|as|mpi.*|orte.*|ompi.*|horovodrun)"
)
"""Programs that compile, link, or belong to MPI or Horovod; Java."""


@pytest.fixture
def path(tmp_path) -> str:
    """PATH: the system's programs, but for what builds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for name in os.listdir(directory):
            if BUILDS.fullmatch(name) is None and not (folder / name).is_symlink():
                (folder / name).symlink_to(os.path.join(directory, name))
    for name in ("gcc", "g++", "cc", "cmake", "mpirun", "horovodrun", "java"):
        assert shutil.which(name, path=str(folder)) is None, name
    return str(folder)


@pytest.mark.full  # fetches PyTorch from the package index
@pytest.mark.mpi
@pytest.mark.timeout(1800)
def test_two_ranks_train_with_what_pip_installs(tmp_path, path, tiny_dataset, tiny_model_dir):
    # From sources, as a user has them: the wheel for a cluster's nodes names no dependencies.
    sources = tmp_path / "sources"
    shutil.copytree(ROOT, sources, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    keep = ("HOME", "LANG", "TMPDIR")
    env = {name: value for name, value in os.environ.items()
           if name in keep or name.startswith(("PIP_", "SSL_"))}  # fmt: skip
    env |= {"PATH": f"{home}/bin{os.pathsep}{path}", "CUDA_VISIBLE_DEVICES": "",
            "HOWDAH_CACHE": str(tmp_path / "cache")}  # fmt: skip

    def run(*argv: str) -> str:
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    try:
        run("pip", "install", f"{sources}[torch]")
        names = {one["name"] for one in json.loads(run("pip", "list", "--format", "json"))}
        assert "torch" in names and not names & {
            "horovod",
            "tensorflow",
            "pyspark",
            "optuna",
            "ray",
        }
        values = SETTINGS | {
            "run.directory": str(tmp_path / "run"), "data.dataset": tiny_dataset.path,
            "model.base": tiny_model_dir, "training.framework": "torch",
        }  # fmt: skip
        config = tmp_path / "run.yaml"
        config.write_text(json.dumps(nested(values)))  # JSON is YAML
        run("howdah", "doctor", "--launcher", "torchrun")
        run("howdah", "train", "--config", str(config), "--np", "2")
        made = json.loads(Path(tmp_path / "run" / "run.json").read_text())
        assert (made["status"], made["steps"], made["world_size"]) == ("finished", 10, 2)
        assert made["attempts"][-1]["comm"] == "torch.distributed (gloo)"
    finally:
        shutil.rmtree(home)  # several gigabytes
