"""MPI jobs: mpirun's daemons in the workers' containers, without ssh."""

import json
import os
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from howdah import storage
from howdah.config import loader as config
from howdah.errors import ClusterError, ConfigError
from howdah.jobs.mpi import launch as mpi
from howdah.jobs.mpi import local_socket
from howdah.jobs.mpi import node as mpi_node
from howdah.jobs.mpi import rsh as mpi_rsh
from tests.runs.jobs.local_jobs import LocalJob, kill
from tests.runs.jobs.yarn_jobs import LIMIT, Jobs, place_data, settings
from tests.support.jobs.job_keys import sections
from tests.support.waiting import wait_until


def test_mpirun_is_asked_for_a_daemon_in_each_container():
    words = mpi.command(3, "/usr/bin/python3", 29.5)
    assert words[:5] == ["mpirun", "-np", "3", "-H", "w0,w1,w2"]
    assert "--leave-session-attached" in words  # else daemons outlive their containers
    settings = {words[n + 1]: words[n + 2] for n, word in enumerate(words) if word == "--mca"}
    assert settings["plm_rsh_agent"] == "/usr/bin/python3 -P -m howdah.jobs.mpi.rsh"
    assert settings["plm_rsh_no_tree_spawn"] == "1"
    assert settings["odls_base_sigkill_timeout"] == "30"  # rank 0 may be saving
    assert words[-4:] == ["/usr/bin/python3", "-P", "-m", "howdah.jobs.mpi.rank"]


def test_ports_are_taken_from_the_range_and_only_free_ones():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        near = range(port, port + 8)
        ports = mpi_node.free_ports(near, 2, "127.0.0.1")
        assert len(set(ports)) == 2 and set(ports) <= set(near) - {port}
        with pytest.raises(ClusterError, match="MPI needs 1 free port") as caught:
            mpi_node.free_ports(range(port, port + 1), 1, "127.0.0.1")
        assert f"{port}-{port}" in caught.value.where
    env = mpi_node.mpi_environment("eth7", None, "127.0.0.1")
    assert env["OMPI_MCA_btl_tcp_if_include"] == "eth7"
    assert not [name for name in env if "port" in name]


@pytest.mark.parametrize("knows", [True, False])
def test_the_remote_shell_hands_the_command_over_unread_by_any_shell(knows):
    desk, name = local_socket.listen(2)
    requests = []

    def answer(request):
        requests.append(request)
        return knows

    with desk:
        serving = threading.Thread(target=mpi._serve, args=(desk, answer))
        serving.start()
        shell = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "howdah.jobs.mpi.rsh",
                "w1",
                " orted",
                "-mca",
                "x",
                '"a b; $(id)"',
            ],
            env={**os.environ, mpi_rsh.SOCKET: name},
        )
        if not knows:
            assert shell.wait(30) == 1
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                shell.wait(1)  # it stays, as ssh would
        desk.shutdown(socket.SHUT_RDWR)
        serving.join()
        assert shell.wait(30) == 1
    assert requests == [{"host": "w1", "argv": ["orted", "-mca", "x", "a b; $(id)"]}]


def test_a_remote_shell_that_ends_before_it_has_asked_costs_no_other_one():
    desk, name = local_socket.listen(2)
    requests = []
    with desk:
        serving = threading.Thread(target=mpi._serve, args=(desk, requests.append))
        serving.start()
        local_socket.connect(name).close()
        with local_socket.connect(name) as shell:
            shell.sendall(b'{"host": "w0"}\n')
            wait_until(lambda: requests)
        desk.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert requests == [{"host": "w0"}]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_s_connection_is_not_taken():
    listener, name = local_socket.listen(4)
    with listener:
        stranger = os.fork()
        if stranger == 0:
            os.setuid(65534)
            os._exit(0 if local_socket.connect(name).recv(1) == b"" else 1)
        listener.settimeout(2)
        with pytest.raises(TimeoutError):
            local_socket.accept(listener)
        assert os.waitpid(stranger, 0)[1] == 0
        with local_socket.connect(name) as ours, local_socket.accept(listener) as taken:
            taken.sendall(b"x")
            assert ours.recv(1) == b"x"


def test_an_agent_starts_mpirun_s_daemon_and_nothing_else(tmp_path):
    with pytest.raises(ClusterError, match="a program that is not its daemon"):
        mpi_node.OrtedProcess(
            1, ["sh", "-c", "id"], [], {"HOWDAH_STACKS": "x"}, str(tmp_path),
            on_message=lambda *_: None, on_end=lambda *_: None,
        )  # fmt: skip


@pytest.mark.parametrize("job_keys", [{}, {"python": "x", "min_workers": 1}])
def test_mpi_is_refused_where_it_cannot_work(job_keys):
    with pytest.raises(ConfigError) as caught:
        config.from_dict(sections({"controller": "mpi", **job_keys}))
    assert "mpi needs" in str(caught.value.problems[0])


# ------------------------------------------------------------------------------- real ranks
JOB = "HOWDAH_TEST_JOB"  # in the environment of the driver, and so of all that it starts


def job(tmp_path, tiny_dataset, tiny_model_dir, framework, steps, **job_keys):
    return LocalJob(
        tmp_path / "job",
        light=False,
        env={JOB: str(tmp_path)},
        nodes="a,b",
        data={"dataset": tiny_dataset.path, "max_length": 64},
        model={"base": tiny_model_dir},
        training={"framework": framework, "max_steps": steps, "global_batch_size": 8,
                  "logging_steps": 5, "threads_per_rank": 1},
        evaluation={"splits": ["validation"]},
        tracking={"tensorboard": False},
        job={"workers": 2, "controller": "mpi", **job_keys},
    )  # fmt: skip


def of_mpi(job: LocalJob) -> list[str]:
    """MPI's own processes of this job: other tests run mpirun on this machine at the same time."""
    processes = psutil.process_iter(["name", "environ"])
    mark = str(job.directory.parent)
    ours = [one.info["name"] for one in processes if (one.info["environ"] or {}).get(JOB) == mark]
    return [name for name in ours if name in ("mpirun", "orted")]


@pytest.mark.mpi
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.full)])
def test_two_containers_train_by_mpi(tmp_path, tiny_dataset, tiny_model_dir, framework):
    with job(tmp_path, tiny_dataset, tiny_model_dir, framework, 12, ports="20500-20560") as one:
        one.wait(lambda _: {"mpirun", "orted"} <= set(of_mpi(one)), "mpirun and its daemons")
        code, verdict, status = one.end(240)
        log = one.log.read_text()
        assert (code, verdict["status"]) == (0, "SUCCEEDED"), log
        assert status["step"] == 12 and status["generation"] == 1, status
        assert "starting 2 ranks by mpirun" in log
        logs = [path.read_text() for path in one.job.glob("containers/*/training.1.log")]
        assert len(logs) == 2 and any("horovod (mpi)" in text for text in logs), logs
        for rank in (0, 1):  # published, as those of every other job
            text = (one.run_directory / "logs" / f"rank.{rank}").read_text()
            assert text and text in logs
        exports = json.loads((one.run_directory / "run.json").read_text())
        assert exports["status"] == "finished"
    wait_until(lambda: not of_mpi(one))


@pytest.mark.mpi
@pytest.mark.full
def test_a_killed_rank_ends_an_mpi_job_and_is_named(tmp_path, tiny_dataset, tiny_model_dir):
    with job(tmp_path, tiny_dataset, tiny_model_dir, "torch", 10**6) as one:
        status = one.trains(2, seconds=240)
        assert {"mpirun", "orted"} <= set(of_mpi(one))
        (victim,) = (r for r in status["ranks"] if r["rank"] == 1)
        kill(victim["pid"])
        code, verdict, _ = one.end(120)
        assert (code, verdict["status"]) == (6, "FAILED")
        assert "rank 1" in verdict["diagnostics"] and "signal 9" in verdict["diagnostics"]
    wait_until(lambda: not of_mpi(one))


@pytest.mark.hadoop
@pytest.mark.mpi
@pytest.mark.full
def test_mpi_on_a_real_yarn(healthy_cluster, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", str(healthy_cluster.conf_dir))
    home = f"{healthy_cluster.hdfs_url}/test/mpi"
    place_data(home, tiny_model_dir)
    jobs = Jobs(healthy_cluster, tmp_path)
    config = jobs.config(settings(home, "mpi", job={"controller": "mpi"}))
    try:
        submitted = jobs.json("submit", "--config", config, "--wait")
        assert submitted["status"]["final_status"] == "SUCCEEDED"
        status = jobs.status(submitted["application"])
        assert (status["job"]["state"], status["job"]["step"]) == ("finished", 12)
        assert "horovod (mpi)" in jobs.run("logs", submitted["application"], "--rank", "0").stdout
        jobs.wait_until_gone(submitted["application"], LIMIT)
    finally:
        healthy_cluster.end_applications()
        storage.remove(home, recursive=True)
