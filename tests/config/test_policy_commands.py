"""Commands under a policy: `howdah --policy`, `howdah config policy`, `howdah guard`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer

from howdah.policy import rules as policies
from tests import ROOT


@pytest.fixture
def howdah(tmp_path):
    """Runs a command under this policy; (exit code, its error object or answer)."""

    def run(policy, *words, text=None):
        path = tmp_path / "policy.yaml"
        path.write_text(policy)
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", "--policy", str(path), *words, "--json"],
            input=text, capture_output=True, text=True, cwd=tmp_path, timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def test_commands_are_in_one_of_two_lists():
    """A new command is refused under a policy until it checks its input against it."""
    from howdah import cli

    named: set[str] = set()
    for name, command in typer.main.get_command(cli.app).commands.items():
        below = command.commands if name == "model" else ()
        named |= {f"model {each}" for each in below} or {name}
    refused = {"model forget", "package", "serve"}
    assert named - cli._UNDER_POLICY == refused
    assert cli._UNDER_POLICY - named == set()


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["config", "check", "--config", "-"], ["data.source", "run.user"]),
        (["etl", "--config", "-"], ["data.source", "run.user"]),
        (["etl", "--set", "data.source=/etc/passwd"], ["data.source"]),
        (["etl", "--set", "data.spark.master=spark://attacker:7077"], ["data.spark.master"]),
        (["train", "--config", "-", "--set", "checkpoint.resume=/tmp/c"],
         ["data.source", "checkpoint.resume"]),
        (["train", "--set", "data.dataset=/etc"], ["data.dataset"]),
        (["submit", "--dry-run", "--config", "-"], ["data.source", "run.user"]),
        (["evaluate", "--model", "/root"], ["--model"]),
        (["evaluate", "--baseline", "--set", "run.directory=/etc"], ["run.directory"]),
        (["report", "/etc", "/srv/run", "--output", "/etc/x"], ["RUN", "--output"]),
        (["runs", "/etc"], ["DIRECTORY"]),
        (["train", "--folds", "3", "--config", "-"], ["data.source", "run.user"]),
        (["evaluate", "--baseline", "--folds", "3", "--config", "-"], ["data.source", "run.user"]),
        (["export", "--checkpoint", "/a", "--output", "/b"], ["--checkpoint", "--output"]),
        (["export", "--checkpoint", "step-1", "--set", "run.directory=/a"], ["run.directory"]),
        (["gate", "--config", "-"], ["data.source", "run.user"]),
        (["publish", "--set", "publish.directory=/var/www"], ["publish.directory"]),
        (["model", "register", "--model", "/root"], ["--model"]),
        (["model", "register", "--set", "tracking.mlflow.uri=http://x"], ["tracking.mlflow.uri"]),
        (["plan", "--config", "/etc/passwd"], ["--config"]),
        (["kill", "--config", "-"], ["data.source", "run.user"]),
        (
            [
                "predict", "--model", "/m", "--source", "/etc/passwd", "--output", "table:hr.x",
                "--master", "spark://attacker:7077",
            ],
            ["--model", "--source", "--output", "--master"],
        ),
        (
            [
                "score", "--model", "/m", "--source", "hr.salaries", "--output", "hr.scored",
                "--partition", "ds=1",
            ],
            ["--model", "--source", "--output"],
        ),
        (["predict", "--model", "hdfs://o/m", "--source", "hr.salaries", "--output", "/etc/x.csv"],
         ["--model", "--source", "--output"]),
    ],
)  # fmt: skip
def test_a_command_checks_its_arguments_against_the_policy(howdah, words, keys):
    text = "data: {source: /etc/passwd}\nrun: {user: hdfs}\n"
    code, error = howdah("keys: ['*']\nroots: [/srv]\n", *words, text=text)
    assert code == 2, error
    assert error["what"] == "the installation's policy does not allow what was requested"
    keys_refused = [problem["where"] for problem in error["problems"]]
    assert set(keys) <= set(keys_refused), keys_refused


def test_anchors_merge_keys_and_overrides_are_checked_after_parsing(howdah):
    policy = "keys: [data]\nroots: [/srv]\n"
    for text in (
        "data: {source: &x /etc/passwd, dataset: *x}\n",
        "data:\n  !!str source: '/etc/passwd'\n  \"dataset\": /etc\n",
        'data: {source: !!str /etc/passwd, dataset: "/\\x65tc"}\n',
    ):
        code, error = howdah(policy, "config", "check", "--config", "-", text=text)
        assert code == 2
        assert {"data.source", "data.dataset"} == {p["where"] for p in error["problems"]}, text
    code, _ = howdah(policy, "config", "check", "--config", "-", "--set", "data={source: /etc}",
                     text="data: {source: /srv/x}")  # fmt: skip
    assert code == 2
    code, _ = howdah(policy, "config", "check", "--config", "-", text="data: {source: /srv/x}")
    assert code == 0


def test_each_of_several_policies_must_allow_it(tmp_path, howdah):
    other = tmp_path / "other.yaml"
    other.write_text("keys: ['*']\nroots: [/data]\n")
    words = ("--policy", str(other), "config", "check", "--set", "data.source=/srv/x")
    code, error = howdah("keys: ['*']\nroots: [/srv]\n", *words)
    assert (code, error["where"]) == (2, str(other))


def test_commands_without_policy_support_and_invalid_policies_are_refused(howdah):
    for words in (["package"], ["model", "forget", "--ids", "i"]):
        code, error = howdah("roots: []", *words)
        assert (code, error["where"]) == (2, "--policy")
    code, error = howdah("rots: []", "doctor")
    assert code == 2
    assert "did you mean roots?" in str(error)


def test_config_policy_explains_each_key_and_prints_the_one_in_force(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("queues: [batch]\n")

    def ask(*words, **env):
        return subprocess.run(
            [sys.executable, "-m", "howdah.cli", "config", "policy", *words],
            capture_output=True, text=True, cwd=ROOT, timeout=120,
            env={**{k: v for k, v in os.environ.items() if k != policies.ENVIRONMENT}, **env},
        )  # fmt: skip

    text = ask(str(path)).stdout
    for key in policies.Policy.model_fields:
        assert f"# {key}: " in text
    (tmp_path / "again.yaml").write_text(text)  # what it prints is a policy
    assert policies.load(str(tmp_path / "again.yaml")) == policies.load(str(path))
    answer = json.loads(ask("--json", **{policies.ENVIRONMENT: str(path)}).stdout)
    assert (answer["from"], answer["policy"]["queues"]) == (str(path), ["batch"])
    assert "default policy" in ask().stdout
    missing = ask(str(tmp_path / "none"))
    assert (missing.returncode, "Traceback" in missing.stderr) == (5, False)


def test_commands_without_a_policy_load_nothing_of_it():
    code = (
        "import sys; sys.argv = ['howdah', 'config', 'explain', 'training.seed', '--json']\n"
        "from howdah.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = ('howdah.policy', 'howdah.airflow', 'airflow')\n"
        "bad = {name for name in sys.modules if name.startswith(heavy)}\n"
        "print(sorted(bad), file=sys.stderr)\n"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


def test_the_supervisor_passes_on_the_policies_of_its_request_and_its_arguments(tmp_path):
    argument = tmp_path / "own.yaml"
    argument.write_text("keys: ['*']\nroots: [/srv, /data]\nname: the edge node's\n")

    def ask(source, *options):
        request = {
            "config": f"data: {{source: {source}}}",
            "policy": "keys: ['*']\nroots: [/srv]\nname: the request's\n",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", *options, "guard", "--", "config", "check",
             "--config", "-", "--json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=ROOT,
        )  # fmt: skip
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()  # it stays open: the caller is there
        process.wait(60)
        answer = json.loads(process.stdout.read())
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        return process.returncode, answer

    assert ask("/srv/x")[0] == 0
    code, error = ask("/data/x")
    assert (code, error["where"]) == (2, "the request's")
    argument.write_text("keys: ['*']\nroots: [/data]\nname: the edge node's\n")
    code, error = ask("/srv/x", "--policy", str(argument))
    assert (code, error["where"]) == (2, "the edge node's")
