"""Ranks of torch.distributed: without Horovod, without open ports, and under bare torchrun.

That its numbers are those of the other launchers: tests/training/test_equality.py. Killed and
interrupted jobs of all launchers: test_faults.py and test_stops.py.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from howdah.config.launchers import LAUNCHERS, require_carrier
from howdah.config.training import TrainingSection
from howdah.core.processes import LIMITS
from howdah.errors import ConfigError
from tests.fixtures.launched import LIMIT, Job
from tests.runs.network import shaped_hosts
from tests.runs.network.shaped_hosts import ShapedHosts
from tests.runs.training_runs import NO_DROPOUT, ROOT, Finished, launcher, train
from tests.support.ports import free_port

WITHOUT_HOROVOD = {
    "PYTHONPATH": os.pathsep.join([os.path.join(ROOT, "tests", "workers", "no_horovod"), ROOT])
}
mpi, full = pytest.mark.mpi, pytest.mark.full


def listening(pid: int) -> list[psutil._common.addr]:
    """Addresses on which a process and all processes below it listen."""
    above = psutil.Process(pid)
    return [
        connection.laddr
        for process in (above, *above.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == 2  # UDP
    ]


# -------------------------------------------------------------------------------- what it needs
@mpi
def test_two_ranks_need_no_horovod_and_listen_on_the_loopback_interface_alone(start):
    job = start("torch", "auto", env=WITHOUT_HOROVOD)
    job.wait_for_checkpoint()
    sockets = listening(job.process.pid)
    assert sockets, "the ranks must listen for each other"
    assert all(ipaddress.ip_address(address.ip).is_loopback for address in sockets), sockets
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    job.wait_until_nothing_is_left()
    newest = job.steps_saved()[0]
    assert f"the newest checkpoint is step-{newest}" in job.stderr.split("howdah: ")[-1]
    assert "Horovod" not in job.stderr + job.log_of_rank_0()
    assert "Traceback" not in job.stderr
    record = job.run_json()
    assert (record["status"], record["attempts"][-1]["comm"]) == (
        "interrupted", "torch.distributed (gloo)",
    )  # fmt: skip


@mpi
@full
def test_where_horovod_is_not_installed_mpirun_s_ranks_take_torch_distributed(start, tmp_path):
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    few = {"training.max_steps": 4}
    job = start("torch", "mpirun", bare=True, env=WITHOUT_HOROVOD | meeting, **few)
    assert job.end() == 0, job.stderr
    assert job.run_json()["attempts"][-1]["comm"] == "torch.distributed (gloo)"
    assert "Horovod" not in job.stderr


def on_two_hosts(whole: Finished, divided: Finished, *settings: str, each: int = 1, **env) -> None:
    """Train with a run's configuration on hosts with `each` ranks, in another directory."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "eth0"} | env
    env |= {"PATH": os.path.dirname(sys.executable) + os.pathsep + env["PATH"]}
    rank = [sys.executable, "-m", "howdah.training", "--config", f"{whole.directory}/given.yaml"]
    for one in (f"run.directory={divided.directory}", *settings):
        rank += ["--set", one]
    started = []
    with ShapedHosts(2, "1gbit") as hosts:
        address = hosts.address_of(0)
        for number in range(2):
            torchrun = [
                "torchrun", "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node",
                str(each), "--master-addr", address, "--master-port", "29500", "--no-python", *rank,
            ]  # fmt: skip
            named = f'hostname {hosts.names[number]} && exec "$@"'
            argv = ["unshare", "--uts", "sh", "-c", named, "sh", *torchrun]
            started.append(
                subprocess.Popen(
                    hosts.inside(number, argv),
                    cwd=ROOT,
                    env=env | {"PYTHONPATH": ROOT},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            outputs = [process.communicate(timeout=LIMIT)[0] for process in started]
        finally:
            for process in started:
                process.kill()
    assert [process.returncode for process in started] == [0, 0], outputs


@mpi
@full
@pytest.mark.skipif(shaped_hosts.MISSING, reason=shaped_hosts.REASON)
def test_bare_torchrun_on_two_hosts_learns_what_one_host_does_bit_by_bit(
    tmp_path, tiny_dataset, tiny_model_dir
):
    """Network namespaces with host names of their own, joined by a bridge; one disk for both."""
    whole = train(
        str(tmp_path / "one"), dataset=tiny_dataset.path, base=tiny_model_dir, np_=2,
        kind="torchrun",
    )  # fmt: skip
    divided = Finished(str(tmp_path / "two"), 0, "")
    on_two_hosts(whole, divided)
    assert divided.run_json()["attempts"][-1]["comm"] == "torch.distributed (gloo)"
    assert divided.losses() == whole.losses()
    ours, one_hosts = divided.tensors(10), whole.tensors(10)
    assert ours.keys() == one_hosts.keys()
    assert all(ours[name].tobytes() == one_hosts[name].tobytes() for name in ours)


@mpi
@full
@pytest.mark.skipif(shaped_hosts.MISSING, reason=shaped_hosts.REASON)
@pytest.mark.parametrize("numbers", ["bf16", "int8"])
def test_two_ranks_on_each_of_two_hosts_send_compressed_gradients_in_two_levels(
    tmp_path, tiny_dataset, tiny_model_dir, numbers
):
    one = train(
        str(tmp_path / "one"), dataset=tiny_dataset.path, base=tiny_model_dir, np_=1,
        settings=NO_DROPOUT,
    )  # fmt: skip
    losses = []
    for levels in (True, False):
        four = Finished(str(tmp_path / f"four-{levels}"), 0, "")
        sent = f"training.gradient_compression={numbers}"
        on_two_hosts(one, four, sent, each=2, **{LIMITS: json.dumps({"levels": levels})})
        assert four.run_json()["attempts"][-1]["world_size"] == 4
        np.testing.assert_allclose(four.losses(), one.losses(), atol=2e-3, rtol=0)
        losses.append(four.losses())
    assert losses[0] != losses[1]  # a node's sum is rounded, not each rank's gradient


@mpi
@full
def test_bare_torchrun_needs_no_horovod(start):
    job = start("torch", "torchrun", bare=True, env=WITHOUT_HOROVOD, **{"training.max_steps": 4})
    assert job.end() == 0, job.stderr
    assert job.run_json()["attempts"][-1]["comm"] == "torch.distributed (gloo)"


@mpi
@full
def test_training_comm_names_the_carrier_under_mpirun(start):
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    few = {"training.max_steps": 4, "training.comm": "torch"}
    job = start("torch", "mpirun", bare=True, env=meeting, **few)
    assert job.end() == 0, job.stderr
    assert job.run_json()["attempts"][-1]["comm"] == "torch.distributed (gloo)"


# ------------------------------------------------------------------------------- a stopped rank
@mpi
@full
@pytest.mark.parametrize(
    ("layout", "saved"),
    [
        ({}, "saving step"),
        ({"training.parallel.shard": "full"}, "the state is divided among the ranks"),
    ],
    ids=["whole", "full"],
)
def test_a_stopped_rank_fails_the_collective_within_its_limit(start, layout, saved):
    job = start(
        "torch", "torchrun", bare=True,
        **{"limit.collective_seconds": 10, "checkpoint.grace_seconds": 5} | layout,
    )  # fmt: skip
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGSTOP)
    assert job.end() != 0, job.stderr
    job.wait_until_nothing_is_left()
    assert "training stopped because another rank was lost" in job.log_of_rank_0()
    assert saved in job.stderr + job.log_of_rank_0()


# -------------------------------------------------------------------------------- what it refuses
@pytest.mark.parametrize(
    ("training", "text"),
    [
        ({"framework": "tensorflow"}, "torchrun starts ranks of torch.distributed"),
        ({"framework": "torch", "comm": "horovod"}, "Horovod cannot join ranks that torchrun"),
    ],
)
def test_what_torchrun_cannot_carry_is_refused(training, text):
    training = TrainingSection(**training)
    with pytest.raises(ConfigError, match=text) as caught:
        require_carrier(LAUNCHERS["torchrun"], training.framework, training.comm)
    assert "mpirun" in caught.value.remedy


@mpi
def test_bare_torchrun_with_tensorflow_is_refused_once_before_a_framework_is_loaded(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("training: {framework: tensorflow}\n")
    rank = [sys.executable, "-X", "importtime", "-m", "howdah.training", "--config", str(config)]
    job = Job(str(tmp_path), [*launcher("torchrun", 2), *rank], {})
    assert job.end() != 0
    assert job.stderr.count("which tensorflow cannot join") == 1
    assert "start it with horovodrun or mpirun" in job.stderr
    assert not re.search(r"\| +(tensorflow|torch)$", job.stderr, re.MULTILINE)


def test_without_a_meeting_point_the_error_names_the_launchers_that_give_one(tmp_path):
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    script = """
import os
from howdah.errors import ClusterError
from howdah.process import env
env.prepare("torch", threads=1)
from howdah.training.comm import backends
try:
    backends.init("torch", choice="torch")
except ClusterError as error:
    print(error.expected, error.remedy)
"""
    clean = {k: v for k, v in os.environ.items() if k not in ("MASTER_ADDR", "HOWDAH_STORE")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean | WITHOUT_HOROVOD | variables,
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "MASTER_ADDR and MASTER_PORT" in done.stdout
    assert "torchrun" in done.stdout and "Horovod" not in done.stdout
