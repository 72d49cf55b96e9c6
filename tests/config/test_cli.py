"""The command line: exit codes, one JSON object, messages without tracebacks, a light start."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

from howdah.cli import run
from howdah.cli.common import answer
from howdah.config import loader
from howdah.errors import Terminated


def howdah(*arguments: str, cwd=None, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "howdah.cli", *arguments], cwd=cwd,
        capture_output=True, text=True, timeout=120, env={**os.environ, **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope"], 2, "No such command"),
        (["train", "--np", "0"], 2, "greater than or equal to 1"),
        (["train", "--launcher", "ssh"], 2, "leave --launcher out"),
        (["config", "check", "--set", "data.max_lenght=3"], 2, "did you mean data.max_length?"),
        (["config", "check", "--config", "none.yaml"], 2, "no such configuration"),
        (["config", "check", "--set", "training.max_steps={{x}}"], 2, "has to be filled in"),
        (["config", "check", "--set", ".=1"], 2, "not section.key=value"),
        (["train", "--set", 'run.directory=""'], 2, "run.directory"),
        (["predict", "--model", "m"], 2, "--output predictions.csv"),
        (["drift", "--model", "m"], 2, "`--source FILE` judges a file"),
    ],
)
def test_refusals_have_a_message_an_exit_code_and_no_traceback(arguments, code, message, tmp_path):
    done = howdah(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["etl", "--source", "x.csv"], "--set data.source= does it"),
        (["serve", "--model", "m", "--max-texts", "3"], "--set serve.max_texts= does it"),
        (["serve", "--model", "m", "--yarn"], "`--on yarn`"),
        (["threshold"], "`howdah model threshold`"),
        (["crossval", "--folds", "3"], "`howdah train --folds 5`"),
        (["train", "--nq", "3"], "train --help` shows what it takes"),
    ],
)
def test_an_option_that_repeats_a_key_is_refused_with_the_key(arguments, suggested):
    done = howdah(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert suggested in done.stderr


def _commands(command, path=("howdah",)):
    """(path, command) of each visible command."""
    below = getattr(command, "commands", {})
    yield path, command
    for name, one in below.items():
        if not one.hidden:
            yield from _commands(one, (*path, name))


def click_context(command, path):
    """The context in which click makes the help of a command."""
    return command.make_context(" ".join(path), [], resilient_parsing=True)


def test_the_help_has_groups_and_each_command_an_example_that_parses():
    from howdah.cli import app

    root = typer.main.get_command(app)
    shown = [name for name in root.list_commands(None) if not root.commands[name].hidden]
    assert len(shown) <= 24 and all(root.commands[name].rich_help_panel for name in shown)
    with_example = {}
    for path, command in _commands(root):
        sentence, example, *_ = [*command.help.split("\n\n"), ""]
        assert sentence[0].isupper() and sentence[-1] == ".", path
        page = command.get_help(click_context(command, path))
        types = r"<(str|int|float|bool|list)\b|\[\[|none: "  # in place of what a person writes
        assert not re.search(types, page), page
        if path == ("howdah",):
            assert [line for line in page.splitlines() if line.endswith(":")][1:] == [
                "Make a model:", "Judge it:", "Use it:", "Running jobs:", "This machine:"
            ]  # fmt: skip
        if example.startswith("Example: "):
            with_example[path] = example.removeprefix("Example: ").replace("\\", "")
    assert {path[1] for path in with_example if len(path) == 2} == set(shown)
    for group in ("model", "config"):
        below = [path[2] for path in with_example if len(path) == 3 and path[1] == group]
        assert set(below) == set(root.commands[group].commands), group
    for path, example in with_example.items():
        words = shlex.split(example)
        command = root
        while words and words[0] in {"howdah", *getattr(command, "commands", {})}:
            command = getattr(command, "commands", {}).get(words.pop(0), command)
        command.make_context(path[-1], words, resilient_parsing=False)


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["model", "--help"]])
def test_help_imports_nothing_that_takes_long(words):
    """Each of these modules costs a tenth of a second or more at every start."""
    heavy = ["rich", "numpy", "pandas", "pyarrow", "torch", "tensorflow", "pyspark"]
    if words == ["--help"]:  # before a command typer checks the options of `howdah` with it
        heavy.append("pydantic")
    code = (
        "import sys; from howdah.cli import main\n"
        f"sys.argv[1:] = {words!r}\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', *[name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_options_do_not_repeat_keys_and_are_few():
    """They are counted as a reader learns them: an option that several commands share is one."""
    from howdah.cli import app

    options = set()
    for _, command in _commands(typer.main.get_command(app)):
        for parameter in command.params:
            shared = parameter.help or parameter.name
            if parameter.name != "help":
                options.add((parameter.name, shared))
    assert len(options) <= 110, len(options)


def test_a_closed_stdin_is_a_usage_error():
    line = f"exec {sys.executable} -m howdah.cli config check -c - <&-"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "stdin is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_of_an_error_is_one_object():
    done = howdah("config", "check", "--set", "training.sed=3", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == answer["exit_code"] == 2
    assert answer["problems"][0]["remedy"] == "did you mean training.seed?"


@pytest.mark.parametrize(
    "words",
    [
        ["status", "local-abc123"],
        ["logs", "spark-2026", "--rank", "0"],
        ["status", "runs/tiny"],
        ["kill", "nope"],
        ["scale", "ray-1", "3"],
    ],
)
def test_a_job_that_nobody_knows_is_not_looked_for_on_a_yarn_that_is_not_there(words, tmp_path):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    done = howdah(*words, cwd=tmp_path, HADOOP_CONF_DIR="", YARN_CONF_DIR="", HADOOP_HOME="")
    assert (done.returncode, done.stdout) == (5, "")
    assert "no job has this id" in done.stderr and "howdah ps --all" in done.stderr


def test_a_command_for_a_job_names_one():
    done = howdah("status", HADOOP_CONF_DIR="", YARN_CONF_DIR="", HADOOP_HOME="")
    assert done.returncode == 2 and "no job is named" in done.stderr


@pytest.mark.parametrize(
    "name", [b"caf\xe9.csv", b"two\nlines.csv", "caf\u00e9\u2028.csv".encode()]
)
def test_config_init_of_a_file_with_any_name_and_columns(tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "w", encoding="utf-8") as file:
        file.write("te\x80xt,lab\x85el\n")
        file.writelines(f"some words of row {n},{'ab'[n % 2]}\u2028\n" for n in range(20))
    target = str(tmp_path / "run.yaml")
    made = howdah("config", "init", target, "--source", os.fsdecode(path))
    assert made.returncode == 0, made.stderr
    config = loader.load(target)
    assert os.fsencode(config.data.source) == path
    assert config.data.columns.text == ["te\x80xt"]
    assert config.data.columns.label == "lab\x85el"


@pytest.mark.parametrize("words", [[], ["config"], ["model"]])
def test_a_command_without_its_subcommand_shows_the_help(words):
    done = howdah(*words)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == howdah(*words, "--help").stdout
    assert "Usage:" in done.stdout


def test_an_interrupt_is_one_message_and_one_object():
    program = (
        "import sys; from howdah.cli import jobs, main\n"
        "def find(*_): raise KeyboardInterrupt\n"
        "jobs.find = find; main()"
    )
    argv = [sys.executable, "-c", program, "kill", "application_1_1", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "howdah: interrupted\n")
    assert json.loads(done.stdout)["error"] == "Interrupted"


def test_an_error_after_the_answer_is_no_second_object(capsys):
    def command():
        answer({"url": "http://localhost"}, True, [])
        raise Terminated("terminated (SIGTERM)")

    for _ in range(2):  # the next command of the process has an object of its own
        assert run(command, as_json=True) == 143
        out, err = capsys.readouterr()
        assert json.loads(out) == {"url": "http://localhost"}
        assert "terminated (SIGTERM)" in err


def test_a_removed_working_directory_is_one_message(tmp_path, tiny_model_dir):
    gone = str(tmp_path / "gone")
    code = (
        f"import os, sys; os.mkdir({gone!r}); os.chdir({gone!r}); os.rmdir({gone!r});"
        "sys.argv = ['howdah', *sys.argv[1:]]; from howdah.cli import main; main()"
    )
    (tmp_path / "rows.csv").write_text("text,label\n" + "a cat,a\na dog,b\n" * 9)
    absolute = ["--set", f"data.source={tmp_path}/rows.csv", "--set", f"data.dataset={tmp_path}/d",
                "--set", f"model.base={tiny_model_dir}"]  # fmt: skip
    relative = ["--set", "data.source=x.csv"]
    for arguments in (["train"], ["doctor"], ["etl", *relative], ["etl", *absolute]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "the working directory was removed" in done.stderr
        assert "Traceback" not in done.stderr


def test_config_init_check_and_explain(tmp_path):
    path = str(tmp_path / "run.yaml")
    assert howdah("config", "init", path).returncode == 0
    assert howdah("config", "init", path).returncode == 5  # never overwritten
    checked = json.loads(howdah("config", "check", "-c", path, "--json").stdout)
    assert checked["training"]["seed"] == 42
    assert "Gradient" not in howdah("config", "explain", "training.max_grad_norm").stdout
    assert "global norm" in howdah("config", "explain", "training.max_grad_norm").stdout


def test_start_imports_no_framework():
    code = (
        "import sys, howdah.cli\n"
        "heavy = {'tensorflow', 'torch', 'transformers', 'pyspark', 'airflow', 'horovod', 'numpy',"
        " 'pandas', 'pyarrow', 'fsspec', 'mlflow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_explain_without_a_key_shows_the_usual_ones_first_each_with_a_sentence():
    done = howdah("config", "explain", "--json")
    groups = json.loads(done.stdout)["groups"]
    assert done.returncode == 0 and list(groups) == ["usual", "tuning", "rare"]
    assert groups["usual"]["training.learning_rate"] == "Peak learning rate."
    lines = howdah("config", "explain").stdout.splitlines()
    assert lines[0].startswith(f"usual ({len(groups['usual'])}): ")
    shown = [line.split(":")[0].strip() for line in lines if line.startswith(" ")]
    assert shown == [key for keys in groups.values() for key in keys]


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("training.lr", "did you mean training.learning_rate?"),
        ("training.epochs", "did you mean training.num_train_epochs?"),
        ("training.fraction", "known here: framework, "),
        ("data.report", "known here: "),
        ("data.column", "did you mean data.columns?"),
        ("model.lerning_rate", "did you mean training.learning_rate?"),
        ("nothing.alike", "the sections are run, data, "),
    ],
)
def test_a_guess_is_near_or_none(key, remedy):
    from howdah.config.loader import nearest

    assert nearest(key.split(".")).startswith(remedy)
