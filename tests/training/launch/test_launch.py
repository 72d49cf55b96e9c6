"""`howdah train`: the command it shows, what it passes on, what it says in the end."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import get_args

import pytest

from howdah import storage
from howdah.cli import local_job
from howdah.config import launchers
from howdah.config.launchers import LAUNCHERS, Launcher, RankVariables
from howdah.config.loader import from_dict
from howdah.errors import (
    ClusterError,
    ConfigError,
    TrainingError,
    UsageError,
)
from howdah.process import env
from howdah.training.comm import backends
from howdah.training.comm import base as comm
from howdah.training.launch import command as launch_command
from howdah.training.launch import launch, outcome
from howdah.training.launch.ranks import Ranks
from howdah.training.run.local_dir import RankRecord, RunLock
from tests import ROOT as REPOSITORY
from tests.support.waiting import wait_until

ROOT = str(REPOSITORY)
RANK = [sys.executable, "-P", "-m", "howdah.training", "--config", "run/config.yaml"]


def words(**changes) -> list[str]:
    given = {"np": 2, "launcher": "mpirun", "cores": 2, "is_root": False} | changes
    return launch_command.command("run/config.yaml", **given)


def test_one_rank_needs_no_launcher():
    assert words(np=1) == RANK
    assert words(np=1, launcher="horovodrun") == RANK


def test_mpirun_on_this_machine():
    argv = words()
    assert os.path.basename(argv[0]) == "mpirun"
    assert argv[1:5] == ["-np", "2", "--bind-to", "none"]
    assert argv[-len(RANK) :] == RANK
    shown = launch_command.shown(argv)
    assert "--mca oob_tcp_if_include lo" in shown
    assert "--mca btl_tcp_if_include lo" in shown
    assert "--allow-run-as-root" not in shown
    assert "--oversubscribe" not in shown


def test_mpirun_as_root_on_fewer_cores_than_ranks():
    argv = words(np=3, is_root=True)
    assert "--allow-run-as-root" in argv
    assert "--oversubscribe" in argv


def test_mpirun_on_other_machines():
    argv = words(hosts="a:1,b:1")
    assert argv[argv.index("-H") + 1] == "a:1,b:1"
    assert "lo" not in argv


def test_horovodrun_takes_gloo():
    argv = words(np=3, launcher="horovodrun", grace_seconds=45.5)
    assert argv[:5] == [sys.executable, "-P", "-m", "howdah.training.launch.horovodrun", "46"]
    assert argv[5:] == ["-np", "3", "--gloo", "-H", "localhost:3", *RANK]


def test_torchrun_waits_for_the_checkpoint_and_starts_ranks_here_alone():
    argv = words(np=3, launcher="torchrun", grace_seconds=45.5)
    assert argv[:5] == [sys.executable, "-P", "-m", "howdah.training.launch.torchrun", "46"]
    assert argv[5:] == ["--nnodes", "1", "--nproc-per-node", "3", "--no-python", *RANK]
    with pytest.raises(UsageError, match="its own machine only"):
        words(launcher="torchrun", hosts="a:1,b:1")


def test_mpirun_waits_for_the_checkpoint():
    argv = words(grace_seconds=90)
    assert argv[argv.index("odls_base_sigkill_timeout") + 1] == "90"


def test_a_launcher_of_something_else():
    assert words(rank=["/bin/true"])[-1] == "/bin/true"


def test_each_launcher_of_the_table_can_be_started_and_has_a_comm():
    assert set(launch_command._ARGUMENTS) == set(LAUNCHERS)
    for name, row in LAUNCHERS.items():
        assert words(launcher=name)[-len(RANK) :] == RANK
        assert row.comm in backends.COMMS
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
        package="other",
        failure_report="Root Cause",
    )
    for known in LAUNCHERS.values():
        monkeypatch.delenv(known.variables.rank, raising=False)
    monkeypatch.setitem(LAUNCHERS, "another", row)
    monkeypatch.setitem(launchers.CARRIES, "other", ("torch",))
    monkeypatch.setitem(backends.COMMS, "other", lambda framework: OtherComm)
    for name, value in (("RANK", 1), ("SIZE", 4), ("LOCAL", 1), ("LOCAL_SIZE", 2)):
        monkeypatch.setenv(f"OTHER_{name}", str(value))
    assert env.rank_env() == env.RankEnv(1, 4, 1, 2, "another")
    assert isinstance(backends.init("torch"), OtherComm)
    assert launchers.either() == "horovodrun, mpirun, torchrun or another"


@pytest.mark.parametrize("changes", [{"np": 0}, {"launcher": "srun"}])
def test_words_that_are_off(changes):
    with pytest.raises(UsageError):
        words(**changes)


def test_a_launcher_that_is_not_installed(tmp_path):
    with pytest.raises(ClusterError, match="mpirun is not installed") as caught:
        words(search_path=str(tmp_path))
    assert "howdah doctor" in caught.value.remedy


def test_the_shown_command_can_be_pasted():
    argv = ["mpirun", "--config", "a b/it's $HOME.yaml"]
    echo = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {launch_command.shown(argv)}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert echo.stdout.splitlines() == argv


def test_the_environment_is_built_and_not_changed():
    base = {"PATH": "/usr/bin", "PYTHONPATH": "/x", "HOWDAH_TTY": "/dev/pts/9",
            "HOWDAH_PYTHONPATH": "/asked"}  # fmt: skip
    before = dict(base)
    env = launch_command.environment(base, terminal=None, scratch="/tmp/s")
    assert base == before
    assert env["PYTHONPATH"].split(os.pathsep) == ["/asked", ROOT]
    assert env["PYTHONSAFEPATH"]
    assert os.path.dirname(sys.executable) in env["PATH"].split(os.pathsep)
    assert "HOWDAH_TTY" not in env
    assert float(env["HOWDAH_STARTED"]) <= time.time()
    assert launch_command.environment({}, terminal="/dev/pts/1", scratch=None)["HOWDAH_TTY"]


# ----------------------------------------------------------------------------------- refusals
def config(tmp_path, **sections):
    return from_dict({"run": {"directory": str(tmp_path / "run")}, **sections})


def test_more_ranks_than_rows_in_a_batch(tmp_path):
    with pytest.raises(ConfigError) as caught:
        local_job.train(config(tmp_path, training={"global_batch_size": 2}), np=3, json=False)
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


# ---------------------------------------------------------------- jobs of processes of our own
def job_of(script: str, tmp_path, np=1, grace=30.0) -> Ranks:
    """A job whose launcher is a Python script; `rank(n)` in it does what a rank's start does."""
    head = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {ROOT!r})
from howdah.training.run.local_dir import RankRecord
def rank(n): RankRecord.of_this_process(n).write({str(tmp_path)!r})
"""
    argv = [sys.executable, "-c", head + textwrap.dedent(script)]
    return Ranks(argv, "mpirun", str(tmp_path), np=np, all_local=True, grace_seconds=grace)


def pids(tmp_path) -> list[int]:
    return [int(name) for name in os.listdir(tmp_path / "pids")]


def note_pid(tmp_path) -> str:
    os.makedirs(tmp_path / "pids", exist_ok=True)
    return f"open({str(tmp_path / 'pids')!r} + '/' + str(os.getpid()), 'w').close()"


def test_nothing_is_left_of_a_job_whose_launcher_dies(tmp_path):
    # A grandchild that ignores SIGTERM, in a session of its own, as horovodrun's are.
    script = f"""
    child = '''
    import os, signal, sys, time
    sys.path.insert(0, {ROOT!r})
    from howdah.training.run.local_dir import RankRecord
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    RankRecord.of_this_process(0).write({str(tmp_path)!r})
    print("up", flush=True)
    time.sleep(600)
    '''
    import textwrap
    p = subprocess.Popen([sys.executable, "-c", textwrap.dedent(child)], start_new_session=True,
                         stdout=subprocess.PIPE)
    p.stdout.readline()
    sys.exit(9)
    """
    job = job_of(script, tmp_path)
    job.run()
    assert job.exit_code == 9
    (record,) = RankRecord.read_all(str(tmp_path))
    deadline = time.monotonic() + 60
    while record.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_rank_that_vanishes_is_named_and_the_launcher_is_not_waited_for(tmp_path):
    script = f"""
    {note_pid(tmp_path)}
    for n in (0, 1):
        if os.fork() == 0:
            rank(n)
            if n == 1:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(600)
    """
    job = job_of(script, tmp_path, np=2)
    job.run()
    assert set(job.lost) >= {1}
    assert min(job.lost, key=job.lost.get) == 1
    assert job.exit_code != 0
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids(tmp_path))


def test_a_rank_that_has_said_its_word_is_not_lost(tmp_path):
    script = """
    rank(0)
    from howdah.training.process import failure
    from howdah.errors import DataError
    failure.write(%r, failure.of(0, DataError("bad")))
    sys.exit(3)
    """ % str(tmp_path)  # noqa: UP031 - braces belong to the script
    job = job_of(script, tmp_path)
    job.run()
    assert (job.exit_code, job.lost) == (3, {})


def outer(tmp_path, script: str, grace: float) -> subprocess.Popen:
    """`_Job.run` in a process that we can send signals to; prints the job's fields at the end."""
    code = f"""
import json, sys
sys.path.insert(0, {ROOT!r})
from tests.training.launch.test_launch import job_of
from pathlib import Path
job = job_of({script!r}, Path({str(tmp_path)!r}), grace={grace})
print("ready", flush=True)
job.run()
print(json.dumps([job.exit_code, job.asked_by, job.killed]))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    )  # fmt: skip


def wait_for_rank(tmp_path) -> RankRecord:
    deadline = time.monotonic() + 60
    while not (found := RankRecord.read_all(str(tmp_path))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found[0]


@pytest.mark.parametrize(("number", "asked"), [(2, "SIGUSR1"), (15, "SIGUSR2"), (1, "SIGUSR2")])
def test_a_signal_is_passed_on_as_an_orderly_request_and_the_end_is_awaited(
    tmp_path, number, asked
):
    script = f"""
    def stop(number, frame):
        time.sleep(0.5)  # the checkpoint
        open({str(tmp_path / "saved")!r}, "w").write(signal.Signals(number).name)
        sys.exit(130)
    signal.signal(signal.SIGUSR1, stop); signal.signal(signal.SIGUSR2, stop)
    rank(0)
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=60)
    wait_for_rank(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1]) == [130, number, False], err
    assert (tmp_path / "saved").read_text() == asked
    assert "saving a checkpoint, at most 60 s" in err


def test_ranks_that_do_not_stop_in_time_are_killed(tmp_path):
    script = """
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    rank(0)
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=0.5)
    record = wait_for_rank(tmp_path)
    process.send_signal(2)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1]) == [-9, 2, True], err
    assert not record.alive


def test_where_it_is_killed_the_kernel_asks_its_launcher_to_end(tmp_path):
    script = f"""
    def ended(number, frame):
        open({str(tmp_path / "ended")!r}, "w").close()
        sys.exit(143)
    signal.signal(signal.SIGTERM, ended)
    rank(0)
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=60)
    record = wait_for_rank(tmp_path)
    process.kill()
    process.communicate(timeout=120)
    wait_until(lambda: not record.alive)
    assert (tmp_path / "ended").exists()


def test_asked_twice_it_does_not_wait(tmp_path):
    script = """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    rank(0)
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=3600)
    record = wait_for_rank(tmp_path)
    process.send_signal(2)
    assert "(once more: kill)" in process.stderr.readline()
    process.send_signal(2)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])[1:] == [2, True], err
    assert not record.alive


def test_a_signal_that_comes_twice_at_once_is_one_request(tmp_path):
    """`timeout` signals its child and then the child's group; a terminal that closes likewise."""
    script = f"""
    def stop(number, frame):
        time.sleep(0.5)  # the checkpoint
        open({str(tmp_path / "saved")!r}, "w").close()
        sys.exit(143)
    signal.signal(signal.SIGUSR2, stop)
    rank(0)
    while True: time.sleep(600)
    """
    job = job_of(script, tmp_path, grace=60)
    ask = job._ask_to_stop

    def asked_again_meanwhile(number):
        seconds = ask(number)
        job._signals.append(number)
        return seconds

    def send_once_it_runs():
        wait_for_rank(tmp_path)
        job._signals.append(15)

    job._ask_to_stop = asked_again_meanwhile
    sender = threading.Thread(target=send_once_it_runs)
    sender.start()
    job.run()
    sender.join()
    assert (job.exit_code, job.asked_by, job.killed) == (143, 15, False)
    assert (tmp_path / "saved").exists()


def test_the_books_of_killed_ranks_are_closed(tmp_path):
    settings = config(tmp_path)
    path = storage.join(settings.run.directory, "run.json")
    storage.write_whole(path, b'{"status": "running", "attempts": []}')
    lost = TrainingError("rank 1 was lost")
    outcome.write(settings, settings.run.directory, lost, begun=False)
    found = storage.read_json(path)
    assert (found["status"], found["error"]) == ("failed", "rank 1 was lost")
