"""`howdah train`: the command it shows, what it refuses, and the table of launchers."""

import os
import subprocess
import sys
from typing import get_args

import pytest

from howdah import storage
from howdah.cli import local_job
from howdah.config import launchers
from howdah.config.launchers import LAUNCHERS, Launcher, RankVariables
from howdah.config.loader import from_dict
from howdah.errors import ClusterError, ConfigError, TrainingError, UsageError
from howdah.process import env
from howdah.training.comm import backends
from howdah.training.comm import base as comm
from howdah.training.launch import launch, outcome
from howdah.training.run.local_dir import RunLock


def test_each_launcher_of_the_table_has_a_comm():
    assert {row.comm for row in LAUNCHERS.values()} <= set(backends.COMMS)
    assert set(get_args(launchers.CommKind)) == set(backends.COMMS) == set(launchers.CARRIES)
    assert set(get_args(launchers.CommChoice)) == {"auto", *backends.COMMS}


def test_another_launcher_is_a_row_and_a_comm(monkeypatch):
    """What starts a process decides what carries its collectives."""

    class OtherComm(comm.SoloComm):
        def __init__(self, waits, connections, limit):
            super().__init__(waits)
            self.rank, self.size = 1, 4

    row = Launcher(
        title="another",
        variables=RankVariables("OTHER_RANK", "OTHER_SIZE", "OTHER_LOCAL", "OTHER_LOCAL_SIZE"),
        command="other",
        comm="other",
    )
    for launcher in LAUNCHERS.values():
        monkeypatch.delenv(launcher.variables.rank, raising=False)
    monkeypatch.setitem(LAUNCHERS, "another", row)
    monkeypatch.setitem(launchers.CARRIES, "other", ("torch",))
    monkeypatch.setitem(backends.COMMS, "other", lambda framework: OtherComm)
    for name, value in (("RANK", 1), ("SIZE", 4), ("LOCAL", 1), ("LOCAL_SIZE", 2)):
        monkeypatch.setenv(f"OTHER_{name}", str(value))
    assert env.rank_env() == env.RankEnv(1, 4, 1, 2, "another")
    assert isinstance(backends.init("torch"), OtherComm)
    assert launchers.either() == "horovodrun, mpirun, torchrun or another"


def test_another_launcher_is_refused():
    with pytest.raises(UsageError, match="unknown launcher") as caught:
        launchers.require("srun", where="--launcher")
    assert caught.value.expected == "horovodrun, mpirun or torchrun"


def test_the_shown_command_can_be_pasted(tmp_path, monkeypatch):
    """It is the very command of the rank."""
    started = []

    class Rank:
        pid, exit_code, asked_by, killed, lost = 1, 9, None, False, False

        def __init__(self, argv, local, *, grace_seconds):
            started.append(argv)

        def run(self):
            pass

    monkeypatch.setattr(launch, "RankProcess", Rank)
    with pytest.raises(ClusterError, match="without reporting an error") as caught:
        launch.train(config(tmp_path / "it's a $HOME"))
    (shown,) = [line for line in caught.value.got.splitlines() if line.startswith("command: ")]
    words = shown.removeprefix("command: ")
    echo = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {words}"], capture_output=True, text=True, check=True
    )
    assert [echo.stdout.splitlines()] == started
    assert started[0][:4] == [sys.executable, "-P", "-m", "howdah.training"]


# ----------------------------------------------------------------------------------- refusals
def config(tmp_path, **sections):
    return from_dict({"run": {"directory": str(tmp_path / "run")}, **sections})


def test_more_ranks_than_rows_in_a_batch(tmp_path):
    with pytest.raises(ConfigError) as caught:
        local_job.train(config(tmp_path, training={"global_batch_size": 2}), np=3)
    assert caught.value.where == "training.global_batch_size"
    assert not os.path.exists(tmp_path / "run")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_is_answered_with_its_bare_command(tmp_path, launcher):
    with pytest.raises(UsageError, match="as a job on this machine") as caught:
        launchers.refuse(launcher, 3)
    assert f"{launcher} " in caught.value.remedy and " 3 " in caught.value.remedy
    assert "-m howdah.training --config" in caught.value.remedy


def test_what_a_job_of_this_machine_takes_from_the_configuration(tmp_path, monkeypatch):
    """Nothing that is said of a cluster's network; an elastic job stays one."""
    monkeypatch.setenv("PRESENT", "1")
    job = {
        "on": "yarn", "workers": 8, "min_workers": 4, "ports": "30000-30100",
        "network_interface": "eth7", "secret_env": ["PRESENT", "ABSENT"],
    }  # fmt: skip
    made = local_job._job_config(config(tmp_path, job=job), 2).job
    assert (made.on, made.workers, made.fewest, made.most) == ("local", 2, 2, 8)
    assert (made.ports, made.network_interface, made.secret_env) == (None, None, ["PRESENT"])
    assert not local_job._job_config(config(tmp_path), 2).job.elastic


@pytest.mark.parametrize("name", [".lock", ".launch.lock"])
def test_a_directory_in_use_is_refused_and_left_as_it_is(tmp_path, name):
    os.makedirs(tmp_path / "run")
    lock = RunLock(str(tmp_path / "run"), name, "run")
    lock.take()
    with pytest.raises(UsageError, match="using this run directory"):
        launch.train(config(tmp_path))
    lock.release()
    assert not os.path.exists(tmp_path / "run" / "config.yaml")


def test_the_end_of_a_killed_rank_is_written_down(tmp_path):
    settings = config(tmp_path)
    path = storage.join(settings.run.directory, "run.json")
    storage.write_whole(path, b'{"status": "running", "attempts": []}')
    lost = TrainingError("rank 0 was lost")
    outcome.write(settings, settings.run.directory, lost, begun=False)
    record = storage.read_json(path)
    assert (record["status"], record["error"]) == ("failed", "rank 0 was lost")
