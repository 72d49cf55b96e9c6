"""int8 numbers in TensorFlow, with the compiler that the steps use."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from howdah.training.comm.base import Comm, Ended
from howdah.training.optim import coding_tf
from howdah.training.optim.gradients_tf import Gradients


class Twins(Comm):
    """Rank 0 of two ranks that have the same gradients."""

    rank, size, local_rank, local_size, backend = 0, 2, 0, 2, "twins"

    def begin_sum(self, number, message):
        return Ended(message + tf.roll(message, message.shape[0] // 2, 0))

    def begin_exchange(self, number, parts_NB):
        return Ended(parts_NB)  # rank 1 sends of the first half what rank 0 does of the second

    def begin_gather(self, number, part_B):
        return Ended(tf.stack([part_B, part_B]))

    def reduce_gradients(self, gradients):
        raise NotImplementedError

    sum = gather = reduce_rows = _broadcast = shutdown = reduce_gradients


def same_halves(seed: int, size: int = 4096) -> np.ndarray:
    half = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    return np.concatenate([half, half])


def steps_of(values, *, whole_at: int) -> list[np.ndarray]:
    """The sums of some steps, whose gradients are `values(step)`; the last one sends the whole."""
    gradients = Gradients({"w": tf.Variable(tf.zeros([8192]))}, words="words")
    gradients.arrange(None, sparse_embeddings=False, compression="int8")
    reduce = {
        whole: tf.function(lambda w=whole: gradients.reduce(Twins(), whole=w))
        for whole in (False, True)
    }
    sums = []
    for step in range(whole_at + 1):
        gradients.add([tf.constant(values(step))], first=True)
        reduce[step == whole_at]()
        sums.append(gradients.sums["w"].numpy())
        if not np.isfinite(sums[-1]).all():
            gradients.forget()
    return sums


@pytest.mark.parametrize(("ranks", "lengths"), [(2, [2**20] * 4), (4, [2**21] * 2)])
def test_messages_of_a_small_world_are_short(ranks, lengths):
    class World(Twins):
        size, local_size = ranks, 1

    named = {str(number): tf.Variable(tf.zeros([2**19])) for number in range(8)}
    parts = Gradients(named, words="words")._messages(World())
    assert [sum(one.shape.num_elements() for one in part) for part in parts] == lengths


def test_what_is_rounded_off_is_held_back_until_a_step_sends_the_whole():
    sums = steps_of(same_halves, whole_at=5)
    exact = [2 * same_halves(step) for step in range(6)]
    assert 0 < np.abs(sums[0] - exact[0]).max() < 4 * 5 / 127
    np.testing.assert_allclose(sum(sums), sum(exact), atol=2e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_stays_none_and_is_not_held_back(bad):
    def values(step: int) -> np.ndarray:
        flat = np.ones(8192, np.float32)
        flat[[7, 7 + 4096]] = bad if step == 1 else 1.0
        return flat

    first, second, third, _ = steps_of(values, whole_at=3)
    assert not np.isfinite(second[7])
    np.testing.assert_allclose(first, 2.0, rtol=0.02)
    np.testing.assert_allclose(third, 2.0, rtol=0.02)


def test_a_block_s_numbers_are_multiples_of_its_scale():
    values = tf.constant(same_halves(3)[None] * 1e-20)
    whole, scales, rest = coding_tf._code()(values)
    blocks = tf.reshape(values, whole.shape).numpy()
    assert np.abs(whole.numpy()).max() <= 127
    assert (np.abs(whole.numpy()).max(2) >= 125).all()
    decoded = whole.numpy() * np.float32(scales)[..., None]
    np.testing.assert_array_equal(blocks - decoded, tf.reshape(rest, whole.shape).numpy())
    zeros = coding_tf._code()(tf.zeros([1, 128]))
    assert not any(np.float32(part).any() for part in zeros)
