"""The environments that training ships: two ranks reduce by Gloo where there is glibc alone."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import tarfile
import time

import pytest

from howdah.packaging import package
from tests.packaging.test_package import bare_root
from tests.runs.network import gloo_ranks

# Gigabytes each; and where no Horovod without MPI is kept yet, it is compiled first.
pytestmark = [pytest.mark.mpi, pytest.mark.full]

_RANK = """
import importlib, json, os, sys
framework = sys.argv[1]
from howdah.process import env
env.prepare(framework, threads=1)
short = {"torch": "torch", "tensorflow": "tf"}[framework]
importlib.import_module("howdah.training.loop_" + short)
import howdah.training.evaluation.evaluate, howdah.serving.report.report
import howdah.models.export.export
import howdah.jobs.driver.driver, howdah.jobs.agent.agent, howdah.cli
import skein
from howdah.training.comm import backends
import numpy as np
comm = backends.init(framework)
total = comm.sum(np.array([1.0 + comm.rank])).tolist()

from howdah.config import loader as config
from howdah.data.family import DISTILBERT
model_module = importlib.import_module("howdah.models.forward.forward_" + short)
small = DISTILBERT.complete({"dim": 24, "hidden_dim": 48, "n_layers": 1, "vocab_size": 90})
shapes = DISTILBERT.encoder_shapes(small)
weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
sections = config.from_dict({})
net = model_module.build(
    small, weights, num_labels=3, training=sections.training, model=sections.model
)
ids = np.ones((2, 8), np.int32)
logits = model_module.forward_fn(net)(ids, ids)
foreign = sorted(m.__file__ for m in list(sys.modules.values())
                 if os.path.isabs(getattr(m, "__file__", None) or "")  # torch makes some up
                 and not m.__file__.startswith(sys.argv[2]))
with open("/proc/self/maps") as file:
    libraries = {line.split()[-1] for line in file if ".so" in line}
with open(os.path.join(sys.prefix, "howdah-environment.json")) as file:
    here = json.load(file)
print("FOUND", json.dumps({
    "sum": total, "logits": list(logits.shape), "backend": comm.backend,
    "foreign": foreign, "kind": here["kind"],
    "both": sorted({"torch", "tensorflow"} & set(sys.modules)),
    "mpi": sorted(name for name in libraries if "libmpi" in name),
    "libraries": sorted(libraries), "glibc": here["glibc"],
}))
comm.barrier()
comm.shutdown()
"""
_PYTHON = os.path.basename(sysconfig.get_path("stdlib"))  # python3.11


@pytest.fixture
def emptied(tmp_path):
    """A directory whose gigabytes do not outlive the test."""
    yield tmp_path / "root"
    shutil.rmtree(tmp_path / "root", ignore_errors=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_two_ranks_reduce_with_glibc_alone(framework, emptied, tmp_path):
    lines = []
    started = time.monotonic()
    made = package.environment(framework, progress=lines.append)
    again = time.monotonic()
    assert package.environment(framework) == made
    print(f"{made.size / 2**20:,.0f} MiB in {again - started:.0f} s,"
          f" found again in {time.monotonic() - again:.1f} s")  # fmt: skip
    assert made.name.endswith(".tar") and made.glibc
    place = emptied / "env"
    with tarfile.open(made.path) as archive:
        archive.extractall(place, filter="data")
    names = {path.name for path in (place / "lib" / _PYTHON / "site-packages").iterdir()}
    other = {"torch": "tensorflow", "tensorflow": "torch"}[framework]
    assert framework in names and other not in names and "triton" not in names
    shutil.copy(package.wheel(str(tmp_path)).path, emptied / "howdah.whl")
    (emptied / "rank.py").write_text(_RANK)
    inside, front = bare_root(emptied)
    argv = [*front, f"{inside}/env/bin/python", f"{inside}/rank.py", framework, f"{inside}/"]
    env = {"PYTHONPATH": f"{inside}/howdah.whl", "CUDA_VISIBLE_DEVICES": "",
           "PYTHONFAULTHANDLER": "1", "PATH": os.environ["PATH"]}  # fmt: skip
    rendezvous = gloo_ranks.Rendezvous()
    try:
        done = gloo_ranks.run([argv] * 2, env, rendezvous)
    finally:
        rendezvous.close()
    for code, text in done:
        assert code == 0, text[-4000:]
        line = next(line for line in text.splitlines() if line.startswith("FOUND "))
        result = json.loads(line.removeprefix("FOUND "))
        assert result["logits"] == [2, 3]
        assert result["sum"] == [3.0] and result["backend"] == "horovod (gloo)"
        assert result["kind"] == framework and result["both"] == [framework]
        assert result["foreign"] == [] and result["mpi"] == []
        assert result["glibc"] == made.glibc
