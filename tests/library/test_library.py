"""Howdah from Python: what the functions of howdah/library.py give, and how they end."""

import ast
import json
import os
import signal
import sys
import threading

import pytest

from howdah import library, storage
from howdah.core.child import Child
from howdah.core.processes import marked
from howdah.errors import (
    ClusterError,
    ConfigError,
    DataError,
    Interrupted,
    NotFound,
)
from tests import ROOT
from tests.support.waiting import wait_until

SECTIONS = {
    "run": {"name": "zoo"},
    "training": {"framework": "torch", "global_batch_size": 12, "threads_per_rank": 1},
}


@pytest.fixture
def config(tmp_path, tiny_dataset, tiny_model_dir):
    return library.load(
        SECTIONS,
        {
            "run.directory": str(tmp_path / "run"),
            "data.dataset": tiny_dataset.path,
            "model.base": tiny_model_dir,
            "training.max_steps": 1_000_000,
        },
    )


def test_a_configuration_comes_of_a_file_or_of_its_sections(tmp_path):
    sections = {"run": {"name": "zoo"}, "training": {"max_steps": 3}}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(sections))
    changes = {"training.learning_rate": 0.5, "run.directory": "1e5", "training.max_steps": None}
    one, other = library.load(sections, changes), library.load(path, changes)
    assert one == other
    assert (one.training.learning_rate, one.run.directory) == (0.5, "1e5")
    assert one.training.max_steps is None
    assert sections["training"]["max_steps"] == 3  # the caller's stays as it is
    with pytest.raises(ConfigError, match=r"did you mean training\.seed"):
        library.load(sections, {"training.sed": 1})


def test_a_plan_is_of_the_dataset(config):
    plan = library.command("plan", config, "--np", "2")
    assert plan["rows"]["train"] == 96
    assert (plan["world_size"], plan["steps_per_epoch"]) == (2, 8)


def test_metrics_are_a_table_of_steps_and_evaluations(tmp_path):
    lines = [
        {"attempt": 1, "step": 1, "loss": 0.7, "lr": 0.1, "time": 1.0},
        {"attempt": 1, "step": 1, "split": "test", "metrics": {"accuracy": 0.5}, "time": 2.0},
        {"attempt": 1, "step": 2, "loss": 0.6, "lr": 0.1, "time": 3.0},
        {"attempt": 2, "step": 2, "loss": 0.5, "lr": 0.1, "time": 4.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = library.metrics(str(tmp_path))
    steps = table[table.split.isna()]
    assert steps.step.tolist() == [1, 2] and steps.loss.tolist() == [0.7, 0.5]
    assert table[table.split == "test"]["metrics/accuracy"].tolist() == [0.5]
    with pytest.raises(NotFound, match="no metrics"):
        library.metrics(str(tmp_path / "none"))


def test_a_commands_error_is_raised_as_itself(config, tmp_path):
    """The ETL runs in another process, and its refusal of the source is raised here."""
    lines = []
    bad = library.load(config.model_dump(mode="json"), {"data.source": str(tmp_path / "no.csv")})
    with pytest.raises(DataError, match=r"no\.csv"):
        library.command("etl", bad, say=lines.append)
    assert any("no.csv" in line for line in lines)


@pytest.fixture
def command(monkeypatch):
    """Commands become Python programs with a mark by which their processes are found."""
    mark = f"library-{os.getpid()}"
    monkeypatch.setenv("HOWDAH_TEST_MARK", mark)

    def become(code: str):
        def child(argv, **options):
            return Child([sys.executable, "-c", code], **options)

        monkeypatch.setattr(library, "Child", child)
        return lambda: marked("HOWDAH_TEST_MARK", mark)

    return become


def test_an_interrupt_is_passed_on_once_and_its_answer_raised(config, command):
    left = command(
        "import json, signal, sys, time\n"
        "def stop(*_):\n"
        "    print(json.dumps({'error': 'Interrupted', 'what': 'step 7 is saved'}))\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "print('up', file=sys.stderr, flush=True)\n"
        "time.sleep(600)"
    )

    def interrupt(line):
        assert line == "up"
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="step 7 is saved"):
        library.command("train", config, say=interrupt)
    assert not left()


def test_a_second_interrupt_kills_the_command(config, command):
    left = command(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "def no(*_): print('no', file=sys.stderr, flush=True)\n"
        "signal.signal(signal.SIGINT, no)\n"
        "no()\n"
        "while True: time.sleep(600)"
    )
    with pytest.raises(KeyboardInterrupt):
        library.command("train", config, say=lambda line: signal.raise_signal(signal.SIGINT))
    assert not left()


def test_a_command_that_is_killed_says_so(config, command):
    command(
        "import os, sys; print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    )
    lines = []
    with pytest.raises(ClusterError) as caught:
        library.command("train", config, say=lines.append)
    assert caught.value.got == "exit code -9" and lines == ["last words"]


# ------------------------------------------------------------------------------- the notebook
NOTEBOOK = ROOT / "examples" / "one_run.ipynb"


def notebook():
    import nbformat

    document = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(document)
    return document


def test_the_notebook_is_stored_without_outputs_and_its_cells_are_python():
    cells = [cell for cell in notebook().cells if cell.cell_type == "code"]
    assert len(cells) >= 8
    for cell in cells:
        assert cell.outputs == [] and cell.execution_count is None
        ast.parse(cell.source)


def client(document, place, monkeypatch):
    from nbclient import NotebookClient

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(place / name.lower()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return NotebookClient(
        document, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(place)}}
    )


@pytest.mark.full
@pytest.mark.spark
def test_the_notebook_runs_and_its_model_has_learnt(tmp_path, monkeypatch):
    document = notebook()
    client(document, tmp_path, monkeypatch).execute()
    shown = {
        cell.source.splitlines()[-1]: cell.outputs[-1]
        for cell in document.cells
        if cell.cell_type == "code" and cell.outputs
    }
    assert float(shown['trained["metrics"]["test"]["accuracy"]'].data["text/plain"]) > 0.9
    [page] = [one for line, one in shown.items() if line.startswith("IFrame(")]
    assert "<iframe" in page.data["text/html"] and "report.html" in page.data["text/html"]
    predicted = shown["predictions"].data["text/plain"]
    assert "comet" in predicted and "sea" in predicted and "sky" in predicted


@pytest.mark.full
@pytest.mark.mpi
def test_the_stop_button_saves_and_the_kernel_lives_on(config, tmp_path, monkeypatch):
    """An interrupt as Jupyter sends it, during real training; the next cell uses the kernel."""
    import nbformat

    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    often = {"checkpoint.every_steps": 5, "training.logging_steps": 1}
    cells = [
        "from howdah import library as howdah\nfrom howdah.errors import Interrupted\n"
        f"config = howdah.load({str(path)!r}, {often!r})",
        "try:\n    howdah.command('train', config, say=lambda line: None)\n"
        "except Interrupted as error:\n    print('stopped:', error)",
        "print(int(howdah.metrics(config).step.max()) > 0)",
    ]
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    running = client(document, tmp_path, monkeypatch)
    saved = tmp_path / "run" / "checkpoints"

    def press():
        wait_until(lambda: saved.is_dir() and any(saved.glob("step-*")), 120)
        os.killpg(running.km.provisioner.process.pid, signal.SIGINT)  # as Jupyter: to its group

    button = threading.Thread(target=press)
    button.start()
    running.execute()
    button.join()
    assert "stopped: training was interrupted" in document.cells[1].outputs[0].text
    assert "the newest checkpoint is step-" in document.cells[1].outputs[0].text
    assert document.cells[2].outputs[0].text.strip() == "True"
    assert storage.read_json(str(tmp_path / "run" / "run.json"))["status"] == "interrupted"
