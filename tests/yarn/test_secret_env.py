"""`job.secret_env`: values of the submitter's environment, passed only to training processes."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from howdah.config import loader
from howdah.errors import ConfigError
from howdah.jobs import secret_file
from tests import ROOT
from tests.runs.jobs.local_jobs import LocalJob, kill, parent
from tests.support.waiting import wait_until

PLANTED = 's3cr3t with "quotes", $HOME and a line\nmore'


def settings_with(names, **yarn):
    return loader.from_dict({"job": {"secret_env": names, **yarn}})


def test_values_come_from_the_submitters_environment_and_a_missing_one_is_named():
    held = settings_with(["HF_TOKEN", "PGPASSWORD", "EMPTY"])
    environment = {"HF_TOKEN": PLANTED, "PGPASSWORD": "p", "EMPTY": "", "OTHER": "o"}
    values = secret_file.values(held, environment)
    assert values == {"HF_TOKEN": PLANTED, "PGPASSWORD": "p", "EMPTY": ""}
    with pytest.raises(ConfigError) as caught:
        secret_file.values(held, {"EMPTY": ""})
    assert "HF_TOKEN, PGPASSWORD" in caught.value.expected
    assert caught.value.where == "job.secret_env"


def test_the_file_keeps_any_value_and_its_object_prints_none():
    made = secret_file.JobSecrets(secret="ab" * 32, env={"A": PLANTED})
    assert secret_file.parse(made.text()) == made
    assert "s3cr3t" not in repr(made) and "abab" not in repr(made)


@pytest.mark.parametrize(
    ("names", "more", "text"),
    [
        (["not a name"], {}, "no name of an environment variable"),
        (["A", "A"], {}, "twice"),
        (["A"], {"env": {"A": "1"}}, "in job.env and in job.secret_env"),
        (["LD_PRELOAD"], {}, "set in each container"),
        (["HOROVOD_RANK"], {}, "set in each container"),
        (["PYTHONPATH"], {}, "set in each container"),
    ],
)
def test_names_that_can_be_no_secret_are_refused(names, more, text):
    with pytest.raises(ConfigError, match=text):
        settings_with(names, **more)


IN_ASCII = """
import sys
from howdah.jobs import secret_file
from howdah.jobs.say import say
print(secret_file.write_private(sys.argv[1], "text", "m\\xf6bel \\u65e5"))
say("m\\xf6bel")
"""


def test_files_and_the_log_of_a_job_do_not_depend_on_the_locale(tmp_path):
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", IN_ASCII, str(tmp_path)],
        env=env, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()).read_text("utf-8") == "m\xf6bel \u65e5"
    assert done.stderr[9:] == "m\\xf6bel\n"  # after the time


# ------------------------------------------------------------------------------ in processes
def environ(pid):
    raw = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(line.decode().partition("=")[::2] for line in raw if line)


def argv_of_all():
    arguments = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments.append(Path(f"/proc/{name}/cmdline").read_bytes())
        except OSError:
            continue
    return b"\n".join(arguments)


@pytest.fixture
def job(tmp_path):
    settings_with = {"workers": 2, "min_workers": 1, "max_workers": 3, "commit_every": 5,
            "secret_env": ["HF_TOKEN"]}  # fmt: skip
    with LocalJob(
        tmp_path, env={"HF_TOKEN": PLANTED}, training={"max_steps": 10**6}, job=settings_with
    ) as one:
        yield one


def test_only_training_processes_have_the_value_also_after_a_restart(job):
    before = {rank["pid"] for rank in job.trains(2)["ranks"]}
    lost = before.pop()
    kill(lost)
    status = job.wait(
        lambda s: len(s["ranks"]) == 2 and not {lost, None} & {r["pid"] for r in s["ranks"]},
        "another process in its place",
    )
    pids = {rank["pid"] for rank in status["ranks"]}
    wait_until(lambda: all(environ(pid).get("HF_TOKEN") == PLANTED for pid in pids))
    for pid in pids:
        assert "HF_TOKEN" not in environ(parent(pid))  # the agent
    assert b"s3cr3t" not in argv_of_all()
    assert stat.S_IMODE((job.job / "secrets.json").stat().st_mode) == 0o600
    kept = [p for p in job.directory.rglob("*") if p.is_file() and p.name != "secrets.json"]
    assert kept
    assert not [path for path in kept if b"s3cr3t" in path.read_bytes()]
    assert json.loads((job.job / "secrets.json").read_text()) == {"HF_TOKEN": PLANTED}


def test_a_driver_without_the_variable_refuses_by_its_name(tmp_path):
    settings_with = {"workers": 1, "secret_env": ["HF_TOKEN_THAT_IS_NOT_SET"]}
    with LocalJob(tmp_path, training={"max_steps": 1}, job=settings_with) as one:
        code, verdict, _ = one.end()
    assert (code, verdict) == (2, None)
    assert "HF_TOKEN_THAT_IS_NOT_SET" in one.log.read_text()
