"""Two ranks on each of two nodes send compressed gradients in two levels, by Horovod.

By torch.distributed: test_torchrun.py, with hosts that are network namespaces. In one process:
test_messages_torch.py, test_coding_tf.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from howdah.core.processes import LIMITS
from tests.runs.training_runs import NO_DROPOUT, train

pytestmark = [pytest.mark.mpi, pytest.mark.full]


@pytest.mark.parametrize("numbers", ["bf16", "int8"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_nodes_sum_is_rounded_and_not_each_ranks_gradient(
    tmp_path, tiny_dataset, tiny_model_dir, framework, numbers
):
    def losses(name, np_, **limits):
        made = train(
            str(tmp_path / name), dataset=tiny_dataset.path, base=tiny_model_dir, np_=np_,
            kind="two hosts", framework=framework, env={LIMITS: json.dumps(limits)},
            settings=NO_DROPOUT | {"training.gradient_compression": numbers},
        )  # fmt: skip
        assert made.run_json()["attempts"][-1]["world_size"] == np_
        return made.losses()

    one, two_levels = losses("one", 1), losses("two-levels", 4)
    np.testing.assert_allclose(two_levels, one, atol=2e-3, rtol=0)
    one_level = losses("one-level", 4, levels=False)
    np.testing.assert_allclose(one_level, one, atol=2e-3, rtol=0)
    assert two_levels != one_level
