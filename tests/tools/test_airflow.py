"""`make airflow`: children that end with their parent, a database of one's own, a home, the end."""

import configparser
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from howdah.config.loader import from_dict
from howdah.core.processes import marked
from howdah.errors import ClusterError, UsageError
from howdah.policy import rules as policy
from tests import ROOT
from tests.support.waiting import wait_until
from tools.local_airflow import run as airflow_run
from tools.local_airflow.files import FileServers
from tools.local_airflow.home import MARK, Home
from tools.local_airflow.postgres import Postgres, write_secret
from tools.local_airflow.servers import Server, end_all
from tools.local_airflow.standalone import Standalone

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('up', flush=True); time.sleep(600)"
)


@pytest.fixture
def open_dir():
    """A directory that another user can reach: as root, the database runs as one."""
    with tempfile.TemporaryDirectory(prefix="howdah-test-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


def test_a_child_that_does_not_end_is_killed_with_what_it_has_started(tmp_path):
    env = {**os.environ, "HOWDAH_TEST_MARK": str(tmp_path)}
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN!r}])"
    child = Server("stubborn", [sys.executable, "-c", script], log=tmp_path / "log", env=env)
    wait_until(lambda: "up" in child.tail())
    assert len(marked("HOWDAH_TEST_MARK", str(tmp_path))) == 2
    child.end(signal.SIGTERM, 0.2)
    wait_until(lambda: not marked("HOWDAH_TEST_MARK", str(tmp_path)))


def test_what_is_left_is_found_by_its_mark(tmp_path):
    env = {**os.environ, "HOWDAH_TEST_MARK": str(tmp_path)}
    left = subprocess.Popen([sys.executable, "-c", STUBBORN], env=env, stdout=subprocess.PIPE)
    assert left.stdout.readline() == b"up\n"
    assert end_all(lambda: marked("HOWDAH_TEST_MARK", str(tmp_path)), grace=0.2) == []
    assert left.wait(timeout=60) == -signal.SIGKILL


def test_a_database_ends_with_its_parent_and_keeps_what_was_committed(open_dir):
    code = (
        "import sys; from pathlib import Path; from tools.local_airflow.postgres import Postgres\n"
        "p = Postgres(Path(sys.argv[1]), durable=False).start(); p.create_database('kept')\n"
        "print(p._child.pid, flush=True); sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(open_dir / "db")],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    server = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{server}"))

    again = Postgres(open_dir / "db", durable=False).start()
    try:
        assert again.create_database("kept") is False
        assert "kept" in again.url("kept") and "@127.0.0.1:" in again.url("kept")
        with pytest.raises(ValueError):
            again.create_database("kept; DROP DATABASE kept")
    finally:
        again.remove()
    assert not (open_dir / "db").exists()


def test_a_home_s_secrets_are_its_owner_s_alone_and_outlive_a_start(tmp_path):
    home = Home(tmp_path)

    def write():
        values = home.settings(url="http://127.0.0.1:8080", dags=ROOT / "dags", database="x://")
        home.write_settings(values, {"core": {"parallelism": 3}})
        return values

    assert home.make_password() is True
    assert home.make_password() is False
    first, second = write(), write()
    assert first["api_auth"] == second["api_auth"]
    for name in ("passwords.json", "secrets.json", "airflow.cfg"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    text = (tmp_path / "airflow.cfg").read_text()
    assert "parallelism = 3" in text and "host = 127.0.0.1" in text


def test_a_percent_sign_in_a_path_reaches_airflow(tmp_path):
    home = Home(tmp_path / "50%")
    values = home.settings(url="http://127.0.0.1:8080", dags=home.directory / "dags", database="x")
    home.write_settings(values, {})
    config = configparser.ConfigParser()  # it interpolates, as Airflow's does
    config.read(home.directory / "airflow.cfg")
    assert config["core"]["dags_folder"] == str(home.directory / "dags")


def test_a_secret_that_cannot_be_written_is_not_half_there(tmp_path):
    """An empty file of passwords would be taken for one at the next start."""
    with pytest.raises(UnicodeEncodeError):
        write_secret(tmp_path / "passwords.json", "\ud800")
    assert not (tmp_path / "passwords.json").exists()


def test_the_policy_of_ones_own_airflow_trusts_its_one_user(tmp_path):
    path = Home(tmp_path).write_policy()
    assert policy.load(str(path)).trusted
    assert path == tmp_path / "policy.yaml"


def test_nothing_of_another_airflow_gets_in(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_HOWDAH_DEFAULT", "{}")
    env = Home(tmp_path).environment
    assert [key for key in env if key.startswith("AIRFLOW")] == ["AIRFLOW_HOME"]
    assert "127.0.0.1" in env["no_proxy"]


def test_a_taken_port_and_a_taken_home_are_refused_before_anything_starts(open_dir):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        airflow = Standalone(open_dir, dags=ROOT / "dags", port=taken.getsockname()[1])
        with pytest.raises(UsageError, match="is taken") as caught:
            airflow.start()
        assert "PORT=" in caught.value.remedy
    other = Standalone(open_dir, dags=ROOT / "dags")
    other.home.lock()
    try:
        with pytest.raises(ClusterError, match="already runs in this home"):
            airflow.start()
    finally:
        other.stop()
    assert not airflow.postgres.exists


def test_a_file_server_s_address_outlives_a_start_for_links_lead_there(tmp_path):
    first = FileServers(tmp_path, tmp_path.joinpath).kept_port("files")
    other = FileServers(tmp_path, tmp_path.joinpath).kept_port("remote-files")
    assert other != first
    assert FileServers(tmp_path, tmp_path.joinpath).kept_port("files") == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        third = FileServers(tmp_path, tmp_path.joinpath).kept_port("files")
    assert third not in (first, other)


def test_a_file_server_starts_again_where_it_was(tmp_path):
    (tmp_path / "report.html").write_text("<p>it went well")
    servers = FileServers(tmp_path, lambda name: tmp_path / f"{name}.log")
    assert "files" not in servers
    child = servers.start("files", str(tmp_path), dict(os.environ))
    url = servers.url("files")

    def page():
        assert child.alive, child.tail()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/report.html") as answer:
            return answer.read()

    try:
        assert wait_until(page) == b"<p>it went well"
        child.end()
        assert "files" in servers
        child = servers.start_again("files", dict(os.environ))
        assert servers.url("files") == url
        assert wait_until(page) == b"<p>it went well"
    finally:
        child.end()


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_the_form_s_defaults_are_a_configuration_on_either_backend(tmp_path, framework):
    local = airflow_run.defaults(tmp_path, "/base", framework)
    yarn = airflow_run.on_cluster(local, "hdfs://localhost:9/root")
    for values in (local, yarn):
        path = airflow_run.write_defaults(tmp_path, values)
        assert path.is_file() and values["np"] == 2
    assert local["data"]["source"].startswith(str(tmp_path)) and "yarn" not in local
    config = from_dict({key: value for key, value in yarn.items() if key not in ("np", "daily")})
    assert config.data.format == "hive" and config.data.spark.master == "yarn"
    assert config.publish.directory.startswith("hdfs://") and config.job.workers == 2


@pytest.mark.airflow
@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(open_dir, number):
    """The command itself: ready with its DAGs and Connection, then nothing is left."""
    home, port = open_dir / "home", _free_port()
    home.mkdir(mode=0o711)
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.local_airflow.run", "--home", str(home), "--port", str(port)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "Ctrl-C ends" in line:
            break
    password = json.loads((home / "passwords.json").read_text())["admin"]
    assert any(password in line for line in lines)
    assert len(marked(MARK, str(home))) >= 4
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(timeout=120) == 128 + number, rest
    assert marked(MARK, str(home)) == []
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
