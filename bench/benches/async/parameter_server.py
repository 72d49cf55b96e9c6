"""Two ways to train one small model with two workers, over gloo: synchronous all-reduce, and an
asynchronous parameter server. Real processes, real messages; each calls `record` of what it did.

The model is an MLP (64-128-10) on scikit-learn's digits. A gradient takes GRADIENT_SECONDS by the
clock, the straggler's `slow` times as much: the arithmetic (a third of a millisecond) is done, and
the rest of the time waited, so that processes which share a core stand for machines of their own.

Every update's weights are kept with their time and evaluated afterwards: judging costs no time that
is measured.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist

GRADIENT_SECONDS = 0.050
BATCH = 32
"""Rows of a gradient."""
LEARNING_RATE = 0.1
"""For each gradient of BATCH rows: all-reduce, which takes two at once, sums them."""
_HIDDEN, _PIXELS, _CLASSES = 128, 64, 10
_TEST_ROWS = 360
_STOP = -1.0


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(train rows, labels, test rows, labels): 1,437 and 360 of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    order = np.random.default_rng(0).permutation(len(dataset.target))
    rows, labels = dataset.data[order].astype(np.float32) / 16.0, dataset.target[order]
    return rows[_TEST_ROWS:], labels[_TEST_ROWS:], rows[:_TEST_ROWS], labels[:_TEST_ROWS]


def first_weights(seed: int) -> torch.Tensor:
    """float32[P]: both layers' weights and biases, flat."""
    rng = np.random.default_rng(seed)
    shapes = ((_PIXELS, _HIDDEN), (_HIDDEN,), (_HIDDEN, _CLASSES), (_CLASSES,))
    parts = [rng.standard_normal(shape) / np.sqrt(shape[0]) * (len(shape) > 1) for shape in shapes]
    return torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32))


def loss_of(flat_P: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the model with these weights."""
    sizes = (_PIXELS * _HIDDEN, _HIDDEN, _HIDDEN * _CLASSES, _CLASSES)
    first, first_bias, second, second_bias = torch.split(flat_P, sizes)
    hidden = torch.relu(rows @ first.view(_PIXELS, _HIDDEN) + first_bias)
    logits = hidden @ second.view(_HIDDEN, _CLASSES) + second_bias
    return torch.nn.functional.cross_entropy(logits, labels)


class _Worker:
    """Gradients of a worker's own random batches."""

    def __init__(self, number: int, seed: int, slow: float) -> None:
        rows, labels, _, _ = digits()
        self._rows, self._labels = torch.from_numpy(rows), torch.from_numpy(labels)
        self._rng = np.random.default_rng([seed, number])
        self._seconds = GRADIENT_SECONDS * slow

    def gradient(self, flat_P: torch.Tensor) -> torch.Tensor:
        """Takes as long as this worker's gradients do."""
        began = time.perf_counter()
        batch = torch.from_numpy(self._rng.integers(0, len(self._labels), BATCH))
        weights = flat_P.clone().requires_grad_()
        loss_of(weights, self._rows[batch], self._labels[batch]).backward()
        time.sleep(max(0.0, self._seconds - (time.perf_counter() - began)))
        return weights.grad


def _join(rank: int, world: int, meet: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    dist.barrier()


def _record(path: str, seconds: list[float], weights: list[torch.Tensor], **more: object) -> None:
    np.savez(path + ".npz", seconds=np.array(seconds), weights=torch.stack(weights).numpy())
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(more, file)


def all_reduce(rank: int, meet: str, seed: int, slow: float, updates: int, path: str) -> None:
    """Each of two workers: `updates` times the sum of both gradients."""
    _join(rank, 2, meet)
    worker = _Worker(rank, seed, slow if rank == 1 else 1.0)
    flat_P = first_weights(seed)
    seconds, kept = [0.0], [flat_P.clone()]
    began = time.perf_counter()
    for _ in range(updates):
        total = worker.gradient(flat_P)
        dist.all_reduce(total)  # both enter, once an update
        flat_P -= LEARNING_RATE * total
        seconds.append(time.perf_counter() - began)
        kept.append(flat_P.clone())
    if rank == 0:
        _record(path, seconds, kept, by=[0, 1] * updates, staleness=[0] * (2 * updates))


def parameter_server(rank: int, meet: str, seed: int, slow: float, updates: int, path: str) -> None:
    """Rank 0 has the weights; ranks 1 and 2 send gradients and get the newest weights back.

    A message of a worker: its gradient, and the version of the weights that it is of. Of the
    server: the weights and their version, or _STOP.
    """
    _join(rank, 3, meet)
    if rank == 0:
        _serve(first_weights(seed), updates, path)
        return
    worker = _Worker(rank - 1, seed, slow if rank == 2 else 1.0)
    flat_P = first_weights(seed)
    message = torch.zeros(len(flat_P) + 1)
    while message[-1] != _STOP:
        message[:-1] = worker.gradient(message[:-1] if message[-1] else flat_P)
        dist.send(message, 0)
        dist.recv(message, 0)


def _serve(flat_P: torch.Tensor, updates: int, path: str) -> None:
    """Apply each gradient as it comes; answer with what that gave."""
    message = torch.zeros(len(flat_P) + 1)
    seconds, kept, stale, by = [0.0], [flat_P.clone()], [], []
    left = 2
    began = time.perf_counter()
    while left:
        source = dist.recv(message)  # of any worker
        version = len(kept) - 1
        if version < updates:
            flat_P -= LEARNING_RATE * message[:-1]
            seconds.append(time.perf_counter() - began)
            kept.append(flat_P.clone())
            stale.append(version - int(message[-1]))
            by.append(source - 1)
            message[:-1], message[-1] = flat_P, version + 1
        else:
            message[-1], left = _STOP, left - 1
        dist.send(message, source)
    _record(path, seconds, kept, by=by, staleness=stale)
