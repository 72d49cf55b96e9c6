"""The numbers that gradients are sent in: bf16, or 8 bits with a scale for each block.

In TensorFlow; training/optim/coding_torch.py has the same numbers, and says what they are.
"""

from __future__ import annotations

import time
from functools import cache

import tensorflow as tf

from howdah.training.comm.base import BLOCK, LEAST_SCALE, SCALE_OF_ONE, Comm, wire_bytes


def to_bf16(values: tf.Tensor) -> tf.Tensor:
    """float32 [..., n] in bf16, as uint8 [..., n, 2]."""
    return tf.bitcast(tf.cast(values, tf.bfloat16), tf.uint8)


def from_bf16(sent: tf.Tensor) -> tf.Tensor:
    """What `to_bf16` has made, as float32 again."""
    return tf.cast(tf.bitcast(sent, tf.bfloat16), tf.float32)


def bf16_sum(comm: Comm, number: int, message: tf.Tensor) -> tf.Tensor:
    """The sum of a message over all ranks, sent in bf16 and added in float32 in their order:
    training/optim/messages_torch.py says how.

    Args:
        message: float32 [elements].
    """
    parts_NL = _parts(message, comm.size, 1)
    received = from_bf16(comm.begin_exchange(number, to_bf16(parts_NL)).wait())
    total = 0.0
    for rank in range(comm.size):  # its own part is not rounded
        total += parts_NL[rank] if rank == comm.rank else received[rank]
    sums = from_bf16(comm.begin_gather(number, to_bf16(total)).wait())
    return tf.reshape(sums, [-1])[: message.shape[0]]


def held_shape(elements: int, ranks: int) -> tuple[int, int]:
    """(ranks, length of a part) of what int8 holds back of a message."""
    return ranks, -(-elements // (ranks * BLOCK)) * BLOCK


def int8_sum(comm: Comm, number: int, message: tf.Tensor, held: tf.Variable) -> tf.Tensor:
    """The sum of a message over all ranks, sent in int8: `bf16_sum` with error feedback.

    Args:
        held: float32 `held_shape`: what has been held back so far, of the sum in this rank's row,
            of this rank's gradient in the others.
    """
    size, rank = message.shape[0], comm.rank
    parts_NL = _parts(message, comm.size, BLOCK) + held
    whole, scales, rest_NL = _code()(parts_NL)
    bytes_NB = [comm.size, wire_bytes(held.shape[1])]
    received = comm.begin_exchange(number, _wire(whole, scales)).wait()
    received = tf.ensure_shape(received, bytes_NB)
    total_L = _sum()(parts_NL[rank], *_read(received), tf.one_hot(rank, comm.size))
    whole, scales, rest_1L = _code()(total_L[None])
    held.assign(tf.concat([rest_NL[:rank], rest_1L, rest_NL[rank + 1 :]], 0))
    gathered = comm.begin_gather(number, _wire(whole, scales)[0]).wait()
    gathered = tf.ensure_shape(gathered, bytes_NB)
    return tf.reshape(_decode()(*_read(gathered)), [-1])[:size]


def whole_sum(comm: Comm, number: int, message: tf.Tensor, held: tf.Variable) -> tf.Tensor:
    """The sum of a message and of what has been held back of it, in float32."""
    message += tf.reshape(held, [-1])[: message.shape[0]]
    held.assign(tf.zeros(held.shape))
    return comm.begin_sum(number, message).wait()


def seconds(numbers: str) -> float:
    """Seconds that this processor takes to code a number in "bf16" or "int8" once and to read it
    twice, as a step does; 0 for "none", and about 0 on a GPU."""
    if numbers == "none" or tf.config.get_visible_devices("GPU"):
        return 0.0
    values, count, durations = tf.reshape(tf.linspace(-1.0, 1.0, 2**20), [1, -1]), 2**20, []
    for _ in range(4):  # the first compiles
        begun = time.perf_counter()
        if numbers == "bf16":
            sent = to_bf16(values)
            from_bf16(sent), from_bf16(sent)
        else:
            whole, scales, _ = _code()(values)
            _decode()(whole, scales), _decode()(whole, scales)
        durations.append(time.perf_counter() - begun)
    return min(durations) / count


def _parts(message: tf.Tensor, ranks: int, multiple: int) -> tf.Tensor:
    """float32 [ranks, length]: the part of each rank; the last is filled up with zeros."""
    size = message.shape[0]
    length = -(-size // (ranks * multiple)) * multiple
    return tf.reshape(tf.pad(message, [[0, length * ranks - size]]), [ranks, length])


def _wire(whole: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """uint8 [parts, bytes], from int8 [parts, blocks, BLOCK] and bf16 [parts, blocks]."""
    parts = whole.shape[0]
    sent = tf.reshape(tf.bitcast(whole, tf.uint8), [parts, -1])
    return tf.concat([sent, tf.reshape(tf.bitcast(scales, tf.uint8), [parts, -1])], 1)


def _read(wire: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What `_wire` has joined."""
    parts, blocks = wire.shape[0], wire.shape[1] // wire_bytes(BLOCK)
    whole = tf.reshape(tf.bitcast(wire[:, : blocks * BLOCK], tf.int8), [parts, blocks, BLOCK])
    scales = tf.bitcast(tf.reshape(wire[:, blocks * BLOCK :], [parts, blocks, 2]), tf.bfloat16)
    return whole, scales


def _compile(function):
    """The function as one pass over memory; a GPU's host may lack the compiler."""
    on_gpu = bool(tf.config.get_visible_devices("GPU"))
    return tf.function(function, autograph=False, jit_compile=not on_gpu)


@cache
def _code():
    def code(values_PL: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(int8 [parts, blocks, BLOCK], bf16 [parts, blocks], what is rounded off)."""
        blocks = tf.reshape(values_PL, [values_PL.shape[0], -1, BLOCK])
        scales = tf.cast(tf.reduce_max(tf.abs(blocks), 2) * SCALE_OF_ONE, tf.bfloat16)
        # A maximum need not be NaN if a number is.
        finite = tf.reduce_all(tf.math.is_finite(blocks), 2)
        scales = tf.where(finite, scales, tf.constant(float("nan"), tf.bfloat16))
        scale = tf.cast(scales, tf.float32)
        inverse = tf.where(scale > LEAST_SCALE, 1 / scale, 0.0)
        rounded = tf.round(blocks * inverse[..., None])
        rest = tf.reshape(blocks - rounded * scale[..., None], values_PL.shape)
        return tf.cast(rounded, tf.int8), scales, rest

    return _compile(code)


@cache
def _decode():
    return _compile(_values)


def _values(whole: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """float32 [parts, length]."""
    values = tf.cast(whole, tf.float32) * tf.cast(scales, tf.float32)[..., None]
    return tf.reshape(values, [whole.shape[0], -1])


@cache
def _sum():
    def total(mine_L: tf.Tensor, whole: tf.Tensor, scales: tf.Tensor, here_N) -> tf.Tensor:
        """The sum in the order of the ranks; `here_N` is 1 at this rank, whose row is not read."""
        values_NL, sums_L = _values(whole, scales), tf.zeros_like(mine_L)
        for rank in range(whole.shape[0]):
            sums_L += tf.where(here_N[rank] > 0, mine_L, values_NL[rank])
        return sums_L

    return _compile(total)
