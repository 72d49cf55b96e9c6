"""Howdah's hook and its runner on this machine: what runs, and how it ends."""

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
from howdah.core.processes import descendants
from howdah.errors import ConfigError
from tests import ROOT
from tests.support.airflow.guarded import ask, gone, other_howdah, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow


def test_a_command_answers_and_its_lines_go_to_the_log(hook, tmp_path):
    lines = []
    config = {"run": {"name": "mine"}}
    assert hook().run(["config", "check", "--json"], config=config)["run"]["name"] == "mine"
    done = hook().call(["config", "init", str(tmp_path / "made.yaml")], on_line=lines.append)
    assert done.code == 0
    assert lines == [
        f"written: {tmp_path}/made.yaml",
        f"next: set data.source in it to your rows, then howdah etl --config {tmp_path}/made.yaml",
    ]


def test_a_log_that_takes_no_line_stops_no_command(capfd):
    """Output that is not read any more would fill the pipe and block the command for ever."""
    from howdah.airflow.runner.runners import _GuardSession, _Process

    def broken(line):
        raise RuntimeError("the task's log is closed")

    process = _Process(["sh", "-c", "yes x | head -c 1000000 >&2"])
    session = _GuardSession(process, broken, heartbeat=False)
    session.wait()
    assert session.code == 0
    assert "thread howdah-stderr failed: RuntimeError: the task's log is closed" in (
        capfd.readouterr().err
    )


_DEAD = {"data": {"dataset": "webhdfs://127.0.0.1:1/x"}, "run": {"storage_retry_seconds": 0}}


@pytest.mark.parametrize(
    ("arguments", "config", "code", "again"),
    [
        (["config", "check"], {"run": {"nme": 1}}, 2, False),
        (["plan"], {"data": {"dataset": "nothing-here"}}, 3, False),
        (["plan"], _DEAD, 5, True),
    ],
)
def test_a_failures_message_and_whether_it_is_retried(hook, arguments, config, code, again):
    from airflow.sdk.exceptions import AirflowFailException

    from howdah.airflow.failures import HowdahCommandFailed

    with pytest.raises(HowdahCommandFailed) as caught:
        hook().run([*arguments, "--json"], config=config)
    assert caught.value.code == code
    assert isinstance(caught.value, AirflowFailException) != again
    assert caught.value.__context__ is None  # one traceback in the task's log, not two
    assert caught.value.details["what"] in str(caught.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/nowhere/howdah", "cannot be started"),
        ("/bin/true", "does not answer like howdah"),
        ("other-version", "version 9.9.0"),
    ],
)
def test_a_program_that_is_not_ours(hook, tmp_path, command, message):
    from howdah.airflow.failures import HowdahCommandRefused

    if command == "other-version":
        command = other_howdah(tmp_path)
    with pytest.raises(HowdahCommandRefused) as caught:
        hook(command=command).run(["doctor", "--json"])
    assert message in str(caught.value)
    if "9.9.0" in message:
        assert howdah.__version__ in str(caught.value)


def test_cancel_ends_a_command_in_order(hook, endless):
    from howdah.airflow.failures import HowdahCommandRefused

    made, lines = hook(), []
    asking, raised = ask(made, endless, lines.append)
    made.cancel()
    asking.join(60)
    assert not isinstance(raised[0], HowdahCommandRefused)  # a cleared task runs again
    assert raised[0].code == 143
    assert any("stopped by the caller: ending `howdah config check" in line for line in lines)
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
    wait_until(lambda: len(running(endless)) >= 3)  # the task's arguments as well
    below = descendants(task.pid)
    os.killpg(task.pid, number)  # Airflow ends the process group of its task
    output, _ = task.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert "raised HowdahCommandFailed 143" in output
    wait_until(lambda: all(gone(pid) for pid in below))
    assert not running(endless)


def test_a_crash_is_retried_and_a_check_that_fails_is_not():
    from howdah.airflow.failures import HowdahCommandRefused, failed

    assert not isinstance(failed({"what": "no answer"}, 1), HowdahCommandRefused)
    assert isinstance(failed({"error": "CheckFailed", "what": "no"}, 1), HowdahCommandRefused)


@pytest.mark.parametrize(
    ("name", "status", "local", "yarn"),
    [
        ("disk", "fail", True, True),
        ("Spark", "fail", True, True),
        ("disk", "warn", False, False),
        ("Horovod", "fail", False, False),  # one rank does without; an edge node trains nothing
        ("MPI", "fail", False, False),  # one rank does without
        ("ResourceManager", "fail", False, True),
        ("HADOOP_CONF_DIR", "skip", False, True),  # it knows no cluster to submit to
    ],
)
def test_which_findings_of_the_doctor_stop_a_run(hook, name, status, local, yarn, tmp_path):
    """A stand-in program answers as `howdah doctor` does on such a machine."""
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
    for on, horovod, stops in (
        ("local", False, local), ("yarn", False, yarn),
        ("local", True, local or name == "Horovod"),
    ):  # fmt: skip
        program_hook = hook(command=str(program))
        if not stops:
            assert doctor(program_hook, on, logging.getLogger(), horovod=horovod)["ok"]
            continue
        with pytest.raises(HowdahCommandRefused) as caught:
            doctor(program_hook, on, logging.getLogger(), horovod=horovod)
        where = {"local": "this machine", "yarn": "YARN"}[on]
        assert f"lacks what training on {where} needs" in str(caught.value)
        assert f"- {name}" in str(caught.value)


def test_ranks_without_a_row_are_refused_before_anything_is_made():
    from howdah.airflow.preflight import ranks

    config = {"training": {"global_batch_size": 4}}
    ranks(config, 4)
    for np in (0, 5):
        with pytest.raises(ConfigError, match="each rank needs at least one row"):
            ranks(config, np)


def test_which_ranks_need_horovod():
    from howdah.airflow.preflight import over_horovod

    assert over_horovod({"training": {}})
    assert over_horovod({"training": {"framework": "torch", "comm": "horovod"}})
    assert not over_horovod({"training": {"framework": "torch"}})


def test_preflight_without_a_source_plans_the_run_and_makes_no_dataset(
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
    report = PreflightOperator(task_id="preflight", np=2, **run).execute({"ti": task})
    assert report["ok"]
    assert report["job"] == {
        "dataset": tiny_dataset.path, "rows": {"test": 25, "train": 96, "validation": 24},
        "world_size": 2, "steps_per_epoch": 8, "steps": 8,
    }  # fmt: skip
    with pytest.raises(AirflowSkipException, match="source is not set"):
        EtlOperator(task_id="etl", **run).execute({"ti": task})


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
