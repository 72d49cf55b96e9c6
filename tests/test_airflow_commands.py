"""Howdah's Connection, hook and runners in a real Airflow: what runs where, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import howdah.airflow
from howdah.errors import ConfigError
from howdah.processes import descendants, stat_fields
from tests.edge_node import SSHD, EdgeNode
from tests.waiting import wait_until

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parent.parent
HOWDAH = str(Path(sys.executable).parent / "howdah")


def gone(pid):
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX"


@pytest.fixture
def connection(monkeypatch):
    """Makes a Connection (an environment variable, as Airflow's own tests do); its id."""

    def make(conn_id, extra=None, conn_type="howdah", **fields):
        told = {"conn_type": conn_type, "extra": extra or {}, **fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(told))
        return conn_id

    return make


@pytest.fixture
def hook(connection, tmp_path):
    """A hook on this machine with these fields of its Connection."""
    from howdah.airflow.hook import HowdahHook

    def make(**extra):
        extra = {"environment": {"HOWDAH_CACHE": str(tmp_path / "cache")}} | extra
        return HowdahHook(connection("howdah_test", {"working_directory": str(tmp_path)} | extra))

    return make


# ------------------------------------------------------------------------------- the provider
def test_airflow_finds_the_provider_and_its_form():
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    manager.initialize_providers_hooks()
    assert manager.providers["howdah"].data["name"] == "Howdah"
    assert manager.hooks["howdah"].hook_class_name == "howdah.airflow.hook.HowdahHook"
    field = manager.connection_form_widgets["extra__howdah__backend"].field
    assert field["schema"]["enum"] == ["local", "yarn"]
    assert "YARN" in field["description"]


def test_every_link_and_hook_that_the_provider_names_is_there():
    import importlib

    told = howdah.airflow.provider_info()
    names = [*told["extra-links"], told["connection-types"][0]["hook-class-name"]]
    for name in names:
        module, _, member = name.rpartition(".")
        assert hasattr(importlib.import_module(module), member)


@pytest.mark.parametrize(
    ("version", "missing"),
    [(None, "not installed"), ("2.11.0", "airflow.sdk"), ("3.0.6", "approval"),
     ("3.2.2", "ResumableJobMixin")],
)  # fmt: skip
def test_an_airflow_that_is_too_old_is_told_what_it_lacks(monkeypatch, version, missing):
    monkeypatch.setattr(howdah.airflow, "_airflow_version", lambda: version)
    with pytest.raises(ImportError, match="Airflow") as caught:
        howdah.airflow.require()
    assert missing in str(caught.value)
    assert "3.3" in str(caught.value)


@pytest.mark.parametrize("version", ["3.3.0", "3.3.2", "3.10.0", "4.0.0rc1"])
def test_an_airflow_that_is_new_enough(monkeypatch, version):
    monkeypatch.setattr(howdah.airflow, "_airflow_version", lambda: version)
    howdah.airflow.require()


# --------------------------------------------------------------------------- the Connection
def test_what_a_connection_says(hook):
    made = hook(
        resourcemanager="http://a:8088/, http://b:8088", environment='{"JAVA_HOME": "/java"}',
        backend="yarn", command="", keytab=None,
    ).settings  # fmt: skip
    assert made.resourcemanager == ["http://a:8088", "http://b:8088"]
    assert made.environment == {"JAVA_HOME": "/java"}
    assert (made.backend, made.command, made.keytab) == ("yarn", None, None)


def test_all_problems_of_a_connection_at_once_and_no_value_of_it():
    from howdah.airflow.settings import from_extra

    extra = {
        "bakend": "yarn", "environment": {"A B": "hush"}, "resourcemanager": "a:8088",
        "backend": "spark",
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        from_extra(extra, "mine")
    text = str(caught.value)
    assert "did you mean backend?" in text
    assert "no name of an environment variable" in text
    assert "http://host:port" in text
    assert "'local' or 'yarn'" in text
    assert "hush" not in text


def test_fields_that_need_each_other():
    from howdah.airflow.settings import from_extra

    for extra in ({"keytab": "/a"}, {"ssh_conn_id": "edge"}):
        with pytest.raises(ConfigError, match="mine is not what Howdah takes"):
            from_extra(extra, "mine")


def test_connections_that_are_not_there_or_of_another_type(connection):
    from howdah.airflow.failures import HowdahCommandRefused
    from howdah.airflow.hook import HowdahHook

    assert HowdahHook().settings.backend == "local"  # without the default one: this machine
    with pytest.raises(HowdahCommandRefused, match="no such Airflow Connection"):
        _ = HowdahHook("nowhere").settings
    with pytest.raises(HowdahCommandRefused, match="of another type"):
        _ = HowdahHook(connection("other", conn_type="http")).settings


def test_the_resourcemanager_of_a_connection(hook, tmp_path, monkeypatch):
    from howdah.airflow.failures import HowdahCommandRefused

    manager = hook(
        resourcemanager=["http://127.0.0.1:1", "http://127.0.0.1:2"],
        keytab="/x.keytab", principal="me@HERE",
    ).resource_manager(patience=0.0)  # fmt: skip
    assert manager.urls == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert manager.conf.kerberos
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    (tmp_path / "hdfs-site.xml").write_text("<configuration/>")
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        "<value>rm.example.org:8088</value></property></configuration>"
    )
    manager = hook(environment={"HADOOP_CONF_DIR": str(tmp_path)}).resource_manager()
    assert manager.urls == ["http://rm.example.org:8088"]
    # An edge node's directory is not looked for here.
    far = {"ssh_conn_id": "edge", "run_root": "hdfs:///runs", "resourcemanager": "http://a:1"}
    hook(environment={"HADOOP_CONF_DIR": "/only/there"}, **far).resource_manager()
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(HowdahCommandRefused, match="field resourcemanager"):
        hook().resource_manager()


def test_names_of_run_directories_are_safe_and_never_the_same():
    from howdah.airflow.operators import safe_name

    assert safe_name("manual_1") == "manual_1"
    ids = ["manual__2026-01-01T00:00:00+00:00", "manual__2026-01-01T00-00-00-00-00", "..", "a/b"]
    names = [safe_name(text) for text in ids]
    assert len(set(names)) == len(ids)
    assert all(name.strip(".") and not set(name) & set("/:+ ") for name in names)


# ------------------------------------------------------------------------- commands run here
def test_a_command_answers_and_its_lines_go_to_the_log(hook, tmp_path):
    lines = []
    config = {"run": {"name": "mine"}}
    assert hook().run(["config", "check", "--json"], config=config)["run"]["name"] == "mine"
    done = hook().call(["config", "init", str(tmp_path / "made.yaml")], on_line=lines.append)
    assert done.code == 0
    assert lines == [f"written: {tmp_path}/made.yaml"]


_DEAD = {"data": {"dataset": "webhdfs://127.0.0.1:1/x"}, "run": {"storage_retry_seconds": 0}}


@pytest.mark.parametrize(
    ("words", "config", "code", "again"),
    [
        (["config", "check"], {"run": {"nme": 1}}, 2, False),
        (["plan"], {"data": {"dataset": "nothing-here"}}, 3, False),
        (["plan"], _DEAD, 5, True),
    ],
)
def test_what_a_failure_says_and_whether_a_retry_may_mend_it(hook, words, config, code, again):
    from airflow.sdk.exceptions import AirflowFailException

    from howdah.airflow.failures import HowdahCommandFailed

    with pytest.raises(HowdahCommandFailed) as caught:
        hook().run([*words, "--json"], config=config)
    assert caught.value.code == code
    assert isinstance(caught.value, AirflowFailException) != again
    assert caught.value.__context__ is None  # one traceback in the task's log, not two
    assert caught.value.told["what"] in str(caught.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nowhere/howdah", "cannot be started"),
        ("/bin/true", "does not speak as this version does"),
        ("other-version", "version 9.9.0"),
    ],
)
def test_a_program_that_is_not_ours(hook, tmp_path, command, said):
    from howdah.airflow.failures import HowdahCommandRefused

    if command == "other-version":
        command = other_version(tmp_path)
    with pytest.raises(HowdahCommandRefused) as caught:
        hook(command=command).run(["doctor", "--json"])
    assert said in str(caught.value)
    if "9.9.0" in said:
        assert howdah.__version__ in str(caught.value)


def other_version(directory):
    """A program that says hello as a howdah of another version, and waits."""
    path = directory / "howdah-9"
    path.write_text("#!/bin/sh\necho 'howdah guard 9.9.0 pid 1' >&2\nread line\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def endless(tmp_path):
    """A command that never ends by itself: nobody writes the pipe that its configuration is."""
    os.mkfifo(tmp_path / "config.yaml")
    return ["config", "check", "--json", "--config", str(tmp_path / "config.yaml")]


def running(words):
    """Processes of a command under guard, the guard's among them, by their command lines."""
    found = []
    for name in os.listdir("/proc"):
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[-1] in argv:
            found.append(int(name))
    return found


def wait_for_start(words):
    """The guard and the command are there."""
    wait_until(lambda: len(running(words)) >= 2)


def test_cancel_ends_a_command_in_order(hook, endless):
    from howdah.airflow.failures import HowdahCommandFailed, HowdahCommandRefused

    made, lines, raised = hook(), [], []

    def ask():
        try:
            made.run(endless, on_line=lines.append)
        except HowdahCommandFailed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for_start(endless)
    made.cancel()
    asking.join(60)
    assert not isinstance(raised[0], HowdahCommandRefused)  # a cleared task runs again
    assert raised[0].code == 143
    assert any("asked to end: ending `howdah config check" in line for line in lines)
    wait_until(lambda: not running(endless))


_TASK = """
import signal, sys
from howdah.airflow.hook import HowdahHook
hook = HowdahHook("howdah_test")
signal.signal(signal.SIGTERM, lambda number, frame: hook.cancel(4.0))  # as Airflow's task runner
try:
    hook.run(sys.argv[1:], on_line=print)
except Exception as error:
    print("raised", type(error).__name__, error.code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_task_that_is_ended(hook, endless, number):
    hook()  # its Connection is in the environment
    task = subprocess.Popen(
        [sys.executable, "-c", _TASK, *endless], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: len(running(endless)) >= 3)  # the task's own words as well
    below = descendants(task.pid)
    os.killpg(task.pid, number)  # Airflow ends the process group of its task
    said, _ = task.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert "raised HowdahCommandFailed 143" in said
    wait_until(lambda: all(gone(pid) for pid in below))
    assert not running(endless)


def test_a_crash_may_be_mended_by_a_retry_and_a_check_that_fails_may_not():
    from howdah.airflow.failures import HowdahCommandRefused, failed

    assert not isinstance(failed({"what": "no answer"}, 1), HowdahCommandRefused)
    assert isinstance(failed({"error": "CheckFailed", "what": "no"}, 1), HowdahCommandRefused)


@pytest.mark.parametrize(
    ("name", "status", "local", "yarn"),
    [
        ("disk", "fail", True, True),
        ("Spark", "fail", True, True),
        ("disk", "warn", False, False),
        ("Horovod", "fail", True, False),  # an edge node trains nothing
        ("MPI", "fail", False, False),  # horovodrun does without
        ("ResourceManager", "fail", False, True),
        ("HADOOP_CONF_DIR", "skip", False, True),  # it knows no cluster to submit to
    ],
)
def test_which_findings_of_the_doctor_stop_a_run(hook, name, status, local, yarn, tmp_path):
    """By a program that answers as `howdah doctor` does on such a machine."""
    import logging

    from howdah.airflow.failures import HowdahCommandRefused
    from howdah.airflow.preflight import doctor

    check = {"name": name, "status": status, "found": "this", "remedy": "that"}
    answer = json.dumps({"ok": False, "checks": [check]})
    program = tmp_path / "howdah"
    program.write_text(
        f"#!/bin/sh\necho 'howdah guard {howdah.__version__} pid 1' >&2\nread line\n"
        f"echo '{answer}'\nexit 1\n"
    )
    program.chmod(0o755)
    for backend, stops in (("local", local), ("yarn", yarn)):
        asked = hook(command=str(program))
        if not stops:
            assert doctor(asked, backend, logging.getLogger())["ok"]
            continue
        with pytest.raises(HowdahCommandRefused) as caught:
            doctor(asked, backend, logging.getLogger())
        assert f"not fit for a run on backend {backend}" in str(caught.value)
        assert f"- {name}" in str(caught.value)


def test_ranks_without_a_row_are_refused_before_anything_is_made():
    from howdah.airflow.preflight import ranks

    config = {"training": {"global_batch_size": 4}}
    ranks(config, 4)
    for np in (0, 5):
        with pytest.raises(ConfigError, match="no row for each rank"):
            ranks(config, np)


def test_a_run_without_a_source_has_its_plan_looked_at_and_makes_no_dataset(
    connection, tiny_dataset, tiny_model_dir, tmp_path, monkeypatch
):
    from airflow.sdk.exceptions import AirflowSkipException

    from howdah.airflow import links
    from howdah.airflow.operators import EtlOperator, PreflightOperator

    monkeypatch.setattr(links, "push", lambda where, link, url: None)  # no worker is here

    extra = {"working_directory": str(tmp_path), "environment": {"HOWDAH_CACHE": str(tmp_path)}}
    config = {
        "data": {"dataset": tiny_dataset.path, "max_length": 64},
        "model": {"base": tiny_model_dir},
        "training": {"global_batch_size": 12, "num_train_epochs": 1},
    }
    run = {"conn_id": connection("howdah_plain", extra), "config": config}
    task = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1)
    told = PreflightOperator(task_id="preflight", np=2, **run).execute({"ti": task})
    assert told["ok"]
    assert told["job"] == {
        "dataset": tiny_dataset.path, "rows": {"test": 25, "train": 96, "validation": 24},
        "world_size": 2, "steps_per_epoch": 8, "steps": 8,
    }  # fmt: skip
    with pytest.raises(AirflowSkipException, match="no source"):
        EtlOperator(task_id="etl", **run).execute({"ti": task})


# ---------------------------------------------------------------------------- an edge node
@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    if SSHD is None:
        pytest.fail("sshd is missing: `make setup` installs openssh-server")
    directory = tmp_path_factory.mktemp("edge")
    node = EdgeNode(directory, {"HOWDAH_CACHE": str(directory / "cache")})
    yield node
    node.stop()


@pytest.fixture
def remote(edge, connection, monkeypatch):
    """A hook whose commands run on the edge node."""
    from howdah.airflow.hook import HowdahHook

    def make(command=HOWDAH, environment=None, **ssh):
        told = edge.connection(**ssh)
        connection("edge", told.pop("extra"), **told)
        extra = {
            "ssh_conn_id": "edge", "command": command, "run_root": "hdfs:///runs",
            "environment": environment or {},
        }  # fmt: skip
        return HowdahHook(connection("howdah_edge", extra))

    return make


def test_a_command_runs_on_the_edge_node(remote, edge):
    lines = []
    told = remote().run(
        ["config", "check", "--json"], config={"run": {"name": "far"}}, on_line=lines.append
    )
    assert told["run"]["name"] == "far"
    wait_until(lambda: not edge.sessions())


def test_a_failure_on_the_edge_node_is_told_as_itself(remote):
    from howdah.airflow.failures import HowdahCommandRefused

    lines = []
    with pytest.raises(HowdahCommandRefused, match=r"did you mean run\.name") as caught:
        remote().run(["config", "check", "--json"], config={"run": {"nme": 1}},
                     on_line=lines.append)  # fmt: skip
    assert caught.value.code == 2
    assert any("1 problem in stdin" in line for line in lines)


@pytest.mark.parametrize(
    ("how", "said", "again"),
    [
        ({"command": "/nowhere/howdah"}, "there is no howdah program", False),
        ({"command": "other-version"}, "version 9.9.0", False),
        ({"key": "stranger"}, "does not let Airflow log in", False),
        ({"host_key": "stranger"}, "host key is not the one", False),
        ({"port": 1}, "cannot be reached by SSH", True),
    ],
)
def test_an_edge_node_that_cannot_be_used(remote, tmp_path, how, said, again, monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    from howdah.airflow.failures import HowdahCommandFailed

    if how.get("command") == "other-version":
        how = {"command": other_version(tmp_path)}
    with pytest.raises(HowdahCommandFailed) as caught:
        remote(**how).run(["doctor", "--json"])
    assert said in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert isinstance(caught.value, AirflowFailException) != again


def ask(hook, words):
    """A thread that runs a command, which has started, and the list of what it will raise."""
    from howdah.airflow.failures import HowdahCommandFailed

    raised = []

    def run():
        try:
            hook.run(words, on_line=lambda line: None)
        except HowdahCommandFailed as error:
            raised.append(error)

    asking = threading.Thread(target=run)
    asking.start()
    wait_for_start(words)
    return asking, raised


def test_a_lost_connection_ends_the_command_there(remote, edge, endless):
    from howdah.airflow.failures import HowdahCommandRefused

    asking, raised = ask(remote(), endless)
    edge.lose_connections()
    asking.join(60)
    assert "the connection was lost" in str(raised[0])
    assert not isinstance(raised[0], HowdahCommandRefused)
    wait_until(lambda: not running(endless))


def test_a_network_that_swallows_everything_ends_the_command_there(
    remote, edge, endless, monkeypatch
):
    """No pipe closes then: the guard misses the signs of life."""
    from howdah.airflow import runners
    from howdah.airflow.runner_ssh import SshRunner

    monkeypatch.setattr(runners, "_BEAT_SECONDS", 0.2)
    monkeypatch.setattr(SshRunner, "silence_seconds", 3.0)
    asking, raised = ask(remote(), endless)
    sessions = edge.sessions()
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not running(endless))
    assert asking.is_alive()  # nobody has told it yet
    edge.lose_connections()
    asking.join(60)
    assert "the connection was lost" in str(raised[0])


def test_cancel_ends_a_command_on_the_edge_node(remote, endless):
    from howdah.airflow.failures import HowdahCommandFailed

    made, raised = remote(), []

    def ask():
        try:
            made.run(endless, on_line=lambda line: None)
        except HowdahCommandFailed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for_start(endless)
    made.cancel()
    asking.join(60)
    assert raised[0].code == 143
    assert not running(endless)


def test_nothing_secret_is_in_a_command_line_and_it_is_blotted_out_of_lines(
    remote, endless, capfd, monkeypatch
):
    """The variable reaches the program on the edge node, through stdin."""
    secret = "hush-hush-42"
    made = remote(environment={"TRACKING_PASSWORD": secret})
    asking = threading.Thread(target=lambda: made.call(endless, on_line=lambda line: None))
    asking.start()
    wait_for_start(endless)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            assert secret.encode() not in words
    command = max(running(endless))
    assert secret.encode() in Path(f"/proc/{command}/environ").read_bytes()
    made.cancel()
    asking.join(60)

    from howdah.airflow.hook import blotted

    said = {"what": f"it says {secret}", "tokens": 7, "all": [("here", f"{secret}!")]}
    assert blotted(said) == {"what": "it says ***", "tokens": 7, "all": [("here", "***!")]}


# ------------------------------------------------------------------------------------- the ETL
@pytest.mark.full
@pytest.mark.spark
def test_an_etl_whose_task_is_cancelled_leaves_no_java_and_no_dataset(
    hook, tiny_model_dir, tmp_path
):
    from howdah.airflow.failures import HowdahCommandFailed

    rows = (f"w{n} {n * 7919 % 10007} thing number {n},{'ab'[n % 2]}\n" for n in range(200_000))
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(rows))
    config = {
        "data": {
            "source": str(tmp_path / "rows.csv"),
            "dataset": str(tmp_path / "set"),
            "spark": {"driver_memory": "1g"},
        },
        "model": {"base": tiny_model_dir},
    }
    made, below, raised = hook(), [], []

    def ask():
        try:
            made.run(["etl", "--json"], config=config, on_line=lambda line: None)
        except HowdahCommandFailed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    # written into, not committed
    wait_until(lambda: list(tmp_path.glob("set/*")) or not asking.is_alive(), 200)
    below = [pid for pid in descendants(os.getpid()) if java(pid)]
    assert below
    made.cancel(200)
    asking.join(200)
    assert raised[0].code == 143
    assert all(gone(pid) for pid in below)
    assert not list(tmp_path.glob("set/**/manifest.json"))
    assert not list(tmp_path.glob("set/**/*.tfrecord"))


def java(pid):
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name == "java"
    except OSError:
        return False
