"""fp16 whose gradients are never finite: the run fails, as in fp32, and says what it skipped.

No GPU is at hand: the loops run on a CPU with the loss scale of fp16, and gradients whose norm is
reported as infinite.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from howdah.errors import TrainingError
from howdah.models.runs.metrics_log import read_metrics
from howdah.training.checkpoint.state import TrainState
from tests import ROOT
from tests.runs.training_runs import SETTINGS, _nested
from tests.support.by_default import either
from tests.training.run.test_run import STEP, open_run

_RUN = """
import sys
from howdah.training.optim import loss_scale

loss_scale._FIRST = 4.0
framework, path = sys.argv[1:]
if framework == "torch":
    from howdah.training import loop_torch as loop
    from howdah.training.optim.gradients_torch import FlatGradients
    FlatGradients.norm = lambda self, comm: float("inf")
else:
    from howdah.training import loop_tf as loop
    from howdah.training.optim.steps_tf import Steps
    reduce = Steps.reduce
    Steps.reduce = lambda self, **how: reduce(self, **how) + float("inf")
kept = loss_scale.LossScale
loop.LossScale = lambda state, on: kept(state, on=True)
from howdah.training.__main__ import main
sys.exit(main(["--config", path]))
"""


@pytest.mark.parametrize("framework", either("torch"))
def test_a_run_that_skips_every_step_fails_at_a_scale_of_1(
    framework, tmp_path, tiny_dataset, tiny_model_dir
):
    directory = str(tmp_path / "run")
    values = SETTINGS | {
        "run.directory": directory, "data.dataset": tiny_dataset.path,
        "model.base": tiny_model_dir, "training.framework": framework,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps(_nested(values)))
    done = subprocess.run(
        [sys.executable, "-c", _RUN, framework, str(tmp_path / "run.yaml")], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == TrainingError.exit_code, done.stdout
    assert "the gradient's norm is not finite" in done.stdout
    assert "skipped 2" in done.stdout  # scales 4 and 2; a third one cannot be halved
    assert [line["skipped_steps"] for line in read_metrics(directory)] == [1, 2]
    assert not os.path.exists(os.path.join(directory, "export"))


def test_steps_that_fp16_skips_are_counted_in_metrics_and_run_json(tmp_path):
    run = open_run(str(tmp_path / "run"), io.StringIO(), training={"logging_steps": 1})
    state = TrainState()
    run.begin(state, total_steps=2)
    for skipped in (0, 1):
        state.step, state.skipped_steps = state.step + 1, skipped
        run.step_done(state, loss=1.0, **STEP)
    assert run.metrics.summary(state)["skipped_steps"] == 1
    run.close("finished")
    lines = read_metrics(str(tmp_path / "run"))
    assert [line["skipped_steps"] for line in lines] == [0, 1]
