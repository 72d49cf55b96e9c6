"""Gloo inside the built Horovod: it listens in HOWDAH_PORT_RANGE; a failed start is an error."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from howdah.config import loader
from howdah.yarn.preflight.ports import most_ports
from tests.runs.network.gloo_ranks import Rendezvous, listening, run

pytestmark = pytest.mark.mpi

FRAMEWORKS = ["torch", pytest.param("tensorflow", marks=pytest.mark.full)]
_RANK = """
import sys
from pathlib import Path
if sys.argv[1] == "torch":
    import horovod.torch as hvd
    import torch
    ones = torch.ones
else:
    import horovod.tensorflow as hvd
    import tensorflow as tf
    ones = tf.ones
hvd.init()
print("sum", float(hvd.allreduce(ones([1]), op=hvd.Sum)[0]))
hvd.shutdown()
"""
_TWICE = """
import os, sys
import horovod.torch as hvd
try:
    hvd.init()
except ValueError as error:
    print("refused", error)
hvd.shutdown()
os.environ["HOWDAH_PORT_RANGE"] = os.environ["SECOND"]
hvd.init()
print("size", hvd.size())
hvd.shutdown()
"""


def environment(**more):
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2", **more}


def free_range(count: int) -> tuple[int, int]:
    """First and last of `count` free ports in a row, below those that the kernel gives out."""
    for first in range(20000, 32000, count):
        ports = range(first, first + count)
        held = []
        try:
            for port in ports:
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return first, first + count - 1
    raise AssertionError("no free ports")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gloo_listens_on_ports_of_the_range_alone(framework):
    first, last = free_range(20)
    ranks, seen = [], set()
    rendezvous = Rendezvous(lambda path: seen.update(listening(ranks)))
    argv = [sys.executable, "-c", _RANK, framework]
    env = environment(HOWDAH_PORT_RANGE=f"{first}-{last}")
    try:
        done = run([argv] * 3, env, rendezvous, started=ranks.extend)
    finally:
        rendezvous.close()
    assert [code for code, _ in done] == [0, 0, 0], done
    assert all("sum 3.0" in text for _, text in done)
    assert len(seen) >= 2 and all(first <= port <= last for port in seen), (seen, first, last)


@pytest.mark.full
@pytest.mark.parametrize("lacking", [0, 1])
def test_as_many_ports_as_preflight_counts_are_needed_and_enough(lacking):
    count = most_ports(loader.from_dict({}).job, 3, 3, driver=False)
    first, last = free_range(count)
    rendezvous = Rendezvous()
    env = environment(HOWDAH_PORT_RANGE=f"{first}-{last - lacking}")
    try:
        done = run([[sys.executable, "-c", _RANK, "torch"]] * 3, env, rendezvous)
    finally:
        rendezvous.close()
    assert (count, all(code == 0 for code, _ in done)) == (6, not lacking), done


@pytest.mark.full  # Horovod's own way
def test_without_a_range_the_kernel_chooses():
    ranks, seen = [], set()
    rendezvous = Rendezvous(lambda path: seen.update(listening(ranks)))
    try:
        done = run(
            [[sys.executable, "-c", _RANK, "torch"]] * 2, environment(HOWDAH_PORT_RANGE=""),
            rendezvous, started=ranks.extend,
        )  # fmt: skip
    finally:
        rendezvous.close()
    assert [code for code, _ in done] == [0, 0], done
    given_out = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, given_out.split())
    assert seen and all(first <= port <= last for port in seen)


ODD = ["30100-30000", "30000", "0-10", "1-70000", "a-b"]


@pytest.mark.parametrize(
    "setting", ["taken", *(pytest.param(text, marks=pytest.mark.full) for text in ODD)]
)
def test_a_range_that_cannot_be_is_an_error_and_init_may_be_tried_again(setting):
    first, last = free_range(8)
    taken = socket.socket()
    taken.bind(("127.0.0.1", first))
    taken.listen()
    value = f"{first}-{first}" if setting == "taken" else setting
    rendezvous = Rendezvous()
    env = environment(HOWDAH_PORT_RANGE=value, SECOND=f"{first + 1}-{last}")
    try:
        done = run([[sys.executable, "-c", _TWICE]] * 2, env, rendezvous)
    finally:
        rendezvous.close()
        taken.close()
    for code, text in done:
        assert code == 0, text
        assert "refused Horovod initialization failed" in text and "size 2" in text
        assert value in text and "HOWDAH_PORT_RANGE" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to call the host otherwise")
def test_the_interface_counts_whatever_the_host_is_called():
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname nobody-knows-me && exec "$@"', "sh"]
    rendezvous = Rendezvous()
    try:
        argv = [*renamed, sys.executable, "-c", _RANK, "torch"]
        done = run([argv] * 2, environment(), rendezvous)
    finally:
        rendezvous.close()
    assert [code for code, _ in done] == [0, 0], done
    assert all("sum 2.0" in text for _, text in done)
