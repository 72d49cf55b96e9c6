"""What TensorFlow raises for a lost rank becomes RankLost, whatever words it comes in."""

from __future__ import annotations

import pytest

from training import env
from training.comm import RankLost


@pytest.fixture()
def tf():
    env.prepare("tensorflow")
    import tensorflow

    return tensorflow


@pytest.fixture()
def comm(tf):
    """The translation alone, without a world."""
    from training.comm_tf import HorovodTfComm

    found = object.__new__(HorovodTfComm)
    found.rank, found.size = 0, 2
    return found


@pytest.mark.parametrize(
    "message",
    [
        "Horovod has been shut down. This was caused by an exception on one of the ranks",
        "Graph execution error:\n\nDetected at node howdah.gradient.0 defined at (most recent call"
        " last):\nRead error [127.0.0.1]:5002: Connection reset by peer\n"
        "\t [[{{node howdah.gradient.0}}]]",
        "[/build/gloo/transport/tcp/pair.cc:633] Read error: Connection reset by peer",
    ],
)
def test_a_failed_collective_is_a_lost_rank(tf, comm, message):
    with pytest.raises(RankLost), comm._typed():
        raise tf.errors.UnknownError(None, None, message)


def test_another_operator_s_error_stays_what_it_is(tf, comm):
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes"), comm._typed():
        raise tf.errors.InvalidArgumentError(None, None, "the shapes do not fit")
