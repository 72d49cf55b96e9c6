"""TensorFlow's errors of a lost rank become RankLost, whatever their message."""

from __future__ import annotations

import pytest

from howdah.process import env
from howdah.training.comm.base import RankLost


@pytest.fixture()
def tf():
    env.prepare("tensorflow")
    import tensorflow

    return tensorflow


@pytest.fixture()
def comm(tf):
    """A Comm that translates errors, without a world."""
    from howdah.training.comm.horovod_tf import HorovodTfComm

    made = object.__new__(HorovodTfComm)
    made.rank, made.size = 0, 2
    return made


@pytest.mark.parametrize(
    "before, cause, after",
    [
        ("", "Horovod has been shut down. This was caused by an exception on one of the ranks", ""),
        ("Graph execution error:\n\nDetected at node howdah.gradient.0 defined at (most recent call"
         " last):\n  File \"training.py\", line 3, in <module>\n",
         "Read error [127.0.0.1]:5002: Connection reset by peer",
         "\n\n\t [[{{node howdah.gradient.0}}]]\n0 derived errors ignored."),
        ("", "[/build/gloo/transport/tcp/pair.cc:633] Read error: Connection reset by peer", ""),
    ],
)  # fmt: skip
def test_a_failed_collective_raises_rank_lost_with_its_cause(tf, comm, before, cause, after):
    with pytest.raises(RankLost) as error, comm._typed():
        raise tf.errors.UnknownError(None, None, before + cause + after)
    assert error.value.got == cause


def test_another_operator_s_error_is_raised_unchanged(tf, comm):
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes"), comm._typed():
        raise tf.errors.InvalidArgumentError(None, None, "the shapes do not fit")


@pytest.mark.parametrize("on_gpu", [False, True])
def test_rows_of_many_ranks_are_added_in_the_order_of_the_ranks(tf, on_gpu):
    # Both ways of adding, on the CPU: the GPU's adds no id twice in one call.
    import numpy as np

    from howdah.training.comm.base import SoloComm
    from howdah.training.optim.gradients_tf import Gradients

    sent = []

    class ThreeRanks(SoloComm):
        size = 3

        def reduce_gradients(self, gradients):
            return list(gradients)

        def reduce_rows(self, ids_U, values_UD):
            sent.extend(ids_U.numpy() if tf.executing_eagerly() else [])
            # In float32 (1 + 2**25) - 2**25 is 0, and (-2**25 + 2**25) + 1 is 1: the order shows.
            others = tf.constant([1, 7, 9, 7], tf.int64)
            rows = tf.constant([5.0, 2.0**25, 6.0, -(2.0**25)])[:, None] * tf.ones([1, 4])
            return tf.concat([ids_U, others], 0), tf.concat([values_UD, rows], 0)

    named = {"words": tf.Variable(tf.zeros([12, 4])), "bias": tf.Variable(tf.zeros([3]))}
    gradients = Gradients(named, words="words")
    gradients._on_gpu = on_gpu
    gradients.arrange(None, sparse_embeddings=True)
    slices = tf.IndexedSlices(tf.ones([3, 4]), tf.constant([7, 3, 3]))
    for _ in range(2):
        gradients.add([slices, tf.ones([3])], first=True)
        gradients.reduce(ThreeRanks())
        table = np.zeros(12)
        table[[1, 3, 9]] = 5, 2, 6
        assert gradients.sums["words"].numpy()[:, 0].tolist() == table.tolist()
        norm = np.sqrt(4 * (table**2).sum() + 3)
        assert float(gradients.norm(ThreeRanks())) == pytest.approx(norm)
    if on_gpu:  # own rows are sent in the order of their ids
        assert sent == [3, 7, 3, 7]
    step = tf.function(lambda: gradients.reduce(ThreeRanks()), autograph=False)
    step()  # as training runs it, traced
