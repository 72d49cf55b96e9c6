"""Files of the user's named like modules: none of them runs in place of Howdah's or Python's."""

import json
import os
import subprocess
import sys

import pytest

from howdah.errors import ClusterError
from tests import ROOT
from tests.fixtures.spark import FEW_JOBS
from tests.runs import studies
from tests.runs.training_runs import SETTINGS
from tests.runs.training_runs import _nested as nested

pytest.importorskip("torch")
HOWDAH = os.path.join(os.path.dirname(sys.executable), "howdah")
MODULES = ("training", "random", "html", "difflib", "queue", "horovod", "pyspark", "torch")
PACKAGES = ("howdah", "jobs", "etl", "serving", "yarn", "tuning", "data", "models")
PLANTED = "import os; open(os.environ['PLANTED'], 'a').write(__name__ + ' ')\n"
"""What a planted file does in any process that imports or runs it."""
full, mpi, spark = pytest.mark.full, pytest.mark.mpi, pytest.mark.spark
LIMIT = 280


def plant(folder, *names):
    """A file or a package for each name."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / f"{name}.py"
        if name in PACKAGES:
            (folder / name).mkdir()
            path = folder / name / "__init__.py"
        path.write_text(PLANTED)
    return folder


class Project:
    """A folder of the user's with such files, and a configuration in it."""

    def __init__(self, directory, dataset, base):
        self.folder = plant(directory / "project", *MODULES, *PACKAGES)
        self.run, self.mark = directory / "run", directory / "planted"
        values = SETTINGS | {
            "run.directory": str(self.run), "data.dataset": dataset, "model.base": base,
            "training.framework": "torch", "training.max_steps": 3,
        }  # fmt: skip
        self.values = nested(values)
        self.write(self.values)
        self.env = {
            **os.environ, "CUDA_VISIBLE_DEVICES": "", "PLANTED": str(self.mark),
            "HOWDAH_CACHE": str(directory / "cache"),
        }  # fmt: skip
        self.env.pop("PYTHONPATH", None)

    def write(self, values):
        (self.folder / "run.yaml").write_text(json.dumps(values))

    def command(self, *words, stdin="", cwd=None, **env):
        return subprocess.run(
            [HOWDAH, *words], cwd=cwd or self.folder, env={**self.env, **env}, input=stdin,
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip

    def ends_well(self, *words, **how):
        done = self.command(*words, **how)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not self.mark.exists(), self.mark.read_text()
        return done.stdout

    def trained(self):
        run = json.loads((self.run / "run.json").read_text())
        return run["status"], run["steps"], os.path.isdir(self.run / "export")


@pytest.fixture
def project(tmp_path, tiny_dataset, tiny_model_dir):
    return Project(tmp_path, tiny_dataset.path, tiny_model_dir)


# ------------------------------------------------------------------------ the working directory
@pytest.mark.parametrize(
    ("np", "comm"),
    [
        ("1", "auto"),
        pytest.param("2", "torch", marks=mpi),
        pytest.param("2", "horovod", marks=[mpi, pytest.mark.full]),
    ],
)
def test_train(project, np, comm):
    words = ("--np", np, "--set", f"training.comm={comm}")
    project.ends_well("train", "--config", "run.yaml", *words)
    assert project.trained() == ("finished", 3, True)


@mpi
def test_a_job_on_this_machine(project):
    project.ends_well("submit", "--on", "local", "--config", "run.yaml", "--wait")
    assert project.trained() == ("finished", 3, True)


@full
def test_tune(project, tmp_path):
    sections = studies.configuration(
        tmp_path, dataset=project.values["data"]["dataset"], base=project.values["model"]["base"],
        **{"training.max_steps": 3}, tune={"trials": 1},
    )  # fmt: skip
    project.write(sections)
    last = project.ends_well("tune", "--config", "run.yaml").splitlines()[-1]
    assert last.startswith("next: howdah publish --config run.yaml --set run.directory=")
    assert last.endswith("/trials/0")


@spark
@pytest.mark.parametrize("format", ["csv", pytest.param("jsonl", marks=full)])
def test_etl_and_spark_predictions(project, tmp_path, format):
    """Spark's Python workers begin in the working directory."""
    give_rows(project, format, str(tmp_path / "data"))
    project.ends_well("etl", "--config", "run.yaml", "--set", "data.spark.master=local[1]")


@full
@spark
def test_cross_validation(project, tmp_path):
    give_rows(project, "csv", str(tmp_path / "data"))
    project.ends_well("train", "--config", "run.yaml", "--folds", "2")


def give_rows(project, format, dataset):
    """Write a file of rows into the project's folder, and name it in its configuration."""
    rows = [{"id": f"r{n}", "text": f"word {n} {'up' if n % 2 else 'down'}",
             "label": "up" if n % 2 else "down"} for n in range(60)]  # fmt: skip
    source = project.folder / f"rows.{format}"
    if format == "csv":
        lines = ["id,text,label", *(",".join(one.values()) for one in rows)]
    else:
        lines = [json.dumps(one) for one in rows]
    source.write_text("".join(f"{line}\n" for line in lines))
    values = project.values
    values["data"] = {
        "source": source.name, "dataset": dataset, "max_length": 16,
        "columns": {"id": "id", "text": "text", "label": "label"}, **FEW_JOBS,
    }  # fmt: skip
    project.write(values)


def test_predict(project, tiny_model_dir):
    project.ends_well("train", "--config", "run.yaml")
    output = project.ends_well("predict", "--model", str(project.run), "--stdin", stdin="a word\n")
    assert json.loads(output)["label"]
    output = project.ends_well("gate", "--config", "run.yaml")
    assert output.splitlines()[-1] == "next: howdah publish --config run.yaml"
    output = project.ends_well("publish", "--config", "run.yaml", "--anyway")
    published, following = output.splitlines()
    root = published.removeprefix("published: ").removesuffix("/v=1")
    assert os.path.isabs(root) and following == f"next: howdah serve --model {root}"


def test_a_guarded_command_runs_nothing_of_its_working_directory(project, tmp_path):
    """Airflow starts all commands with `howdah guard`: neither before nor after the policy check is
    anything of the working directory imported."""
    request = {"directory": str(project.folder), "policy": "keys: []\n", "config": "{}"}
    done = subprocess.run(
        [HOWDAH, "guard", "--", "config", "check", "--config", "-"], cwd=tmp_path, env=project.env,
        input=json.dumps(request) + "\n", capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert "howdah guard" in done.stderr
    assert not project.mark.exists(), project.mark.read_text()


def test_a_bare_rank_imports_nothing_else_from_it(project):
    """`python -m howdah.training` by hand imports nothing else of the directory that it is
    started in."""
    for name in ("training.py", "howdah"):
        path = project.folder / name
        path.rename(path.with_name("another" + path.suffix))
    done = subprocess.run(
        [sys.executable, "-m", "howdah.training", "--config", "run.yaml"], cwd=project.folder,
        env={**project.env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not project.mark.exists(), project.mark.read_text()


# ----------------------------------------------------------------------------------- PYTHONPATH
@pytest.mark.parametrize(
    "words", [pytest.param(("train",), marks=full), ("submit", "--on", "local", "--wait")]
)
def test_packages_of_pythonpath_named_like_rooms_do_no_harm(project, tmp_path, words):
    """Howdah has one import name: a site's `training`, `jobs` or `etl` is another package."""
    folder = plant(tmp_path / "path", "training", "jobs", "etl", "serving", "tuning", "data")
    output = project.ends_well(
        *words, "--config", "run.yaml", cwd=project.folder, PYTHONPATH=str(folder),
        HOWDAH_PYTHONPATH="",
    )  # fmt: skip
    assert project.trained() == ("finished", 3, True)
    verdict, figure, report, following = output.splitlines()[-4:]
    assert verdict.split(":")[0] in ("Good", "Not good", "Inconclusive")
    assert "; the baseline " in figure and report == f"report: {project.run}/report.html"
    assert following.startswith("next: ") and "howdah publish --config run.yaml" in following


@pytest.mark.parametrize("np", ["1", pytest.param("2", marks=mpi)])
def test_ranks_that_end_well_and_train_nothing_are_no_success(project, tmp_path, np):
    """Whatever they have run: here a program that the environment asks for."""
    folder = tmp_path / "path" / "howdah" / "training"
    folder.mkdir(parents=True)
    for path in (folder.parent / "__init__.py", folder / "__init__.py", folder / "__main__.py"):
        path.write_text(PLANTED)
    done = project.command(
        "train", "--config", "run.yaml", "--np", np, cwd=project.folder,
        HOWDAH_PYTHONPATH=str(tmp_path / "path"),
    )  # fmt: skip
    # The planted `howdah` is imported by the rank, or by the job's driver before it.
    assert project.mark.read_text().split()[0] in ("howdah", "training", "__main__")
    assert done.returncode == ClusterError.exit_code, done.stderr
    assert "run.json does not record a finished training" in done.stderr or np == "2"


@pytest.mark.parametrize("name", ["random", "howdah"])
def test_what_breaks_python_itself_is_no_success(project, tmp_path, name):
    folder = plant(tmp_path / "path", name)
    done = project.command(
        "train", "--config", str(project.folder / "run.yaml"), cwd=tmp_path, PYTHONPATH=str(folder)
    )
    assert done.returncode != 0
    assert not (project.run / "run.json").exists()


def test_ranks_get_a_pythonpath_only_where_it_is_asked_for(project, tmp_path):
    """A package of PYTHONPATH that the command itself does not import."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'howdah.training' in sys.orig_argv:\n"
        "    open(os.environ['PLANTED'], 'a').write('rank ')\n"
    )
    project.ends_well("train", "--config", "run.yaml", PYTHONPATH=str(folder))
    project.command(
        "train",
        "--config",
        "run.yaml",
        "--set",
        "checkpoint.resume=never",
        HOWDAH_PYTHONPATH=str(folder),
    )
    assert project.mark.read_text() == "rank "
