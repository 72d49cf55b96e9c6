"""A step for which one rank lacks memory is done again by all, in smaller micro-batches.

The error is a simulated one (tests/runs/short_of_memory.py).
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.runs.training_runs import train

_AGAIN = r"out of memory with .* tokens: step (\d+) is done again with at most (\d+)"
FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("np_", "kind", "where", "more"),
    [
        pytest.param(1, "", "forward", {}, id="alone"),
        pytest.param(
            2, "torchrun", "backward", {"limit.overlap": True}, id="sums-under-way",
            marks=pytest.mark.mpi,
        ),
        pytest.param(
            2, "mpirun", "backward", {"limit.overlap": True}, id="horovod",
            marks=[pytest.mark.mpi, FULL],
        ),
        pytest.param(
            2, "torchrun", "forward", {"training.parallel.shard": "optimizer"}, id="divided",
            marks=[pytest.mark.mpi, FULL],
        ),
    ],
)  # fmt: skip
def test_the_step_begins_again_in_smaller_parts(
    tmp_path, tiny_dataset, tiny_model_dir, np_, kind, where, more
):
    def run(name: str, most: int, module: str):
        return train(
            str(tmp_path / name), dataset=tiny_dataset.path, base=tiny_model_dir, np_=np_,
            kind=kind, module=module,
            settings={"training.per_device_max_tokens": most, "training.global_batch_size": 48,
                      "training.max_steps": 4} | more,
            env={"SHORT_OF_MEMORY": json.dumps({"rank": np_ - 1, "tokens": 240, "in": where})},
        )  # fmt: skip

    short = run("short", 4096, "tests.runs.short_of_memory")
    again = re.findall(_AGAIN, short.log())
    assert again and {step for step, _ in again} == {"1"}
    small = run("small", int(again[-1][1]), "howdah.training")
    assert short.losses() == small.losses()
    ours, theirs = short.tensors(4), small.tensors(4)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_row_that_does_not_fit_is_an_error(tmp_path, tiny_dataset, tiny_model_dir):
    done = train(
        str(tmp_path / "run"), dataset=tiny_dataset.path, base=tiny_model_dir, check=False,
        module="tests.runs.short_of_memory",
        env={"SHORT_OF_MEMORY": json.dumps({"rank": 0, "tokens": 8, "in": "forward"})},
    )  # fmt: skip
    assert done.returncode == 6 and "Traceback" not in done.output
    assert "there is not enough memory for a micro-batch" in done.output
    assert "set training.gradient_checkpointing, or use a device with more memory" in done.output
