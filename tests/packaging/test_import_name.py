"""The wheel has one import name, and leaves a user's packages of any other name alone."""

import os
import subprocess
import sys
import zipfile

import howdah
from howdah.packaging import package

ROOMS = ("cli", "data", "etl", "jobs", "models", "serving", "training", "tuning", "yarn")


def test_its_only_top_level_name_is_howdah(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"howdah", f"howdah-{howdah.__version__}.dist-info"}
    assert {f"howdah/{room}/__init__.py" for room in ROOMS} <= set(names)


def test_the_wheel_for_clusters_has_the_same_files(wheel, tmp_path):
    built, ours = (
        {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
        for path in (wheel, package.wheel(str(tmp_path)).path)
    )
    assert built == ours


def test_a_folder_s_own_packages_are_imported_beside_it(wheel, tmp_path):
    """The folder of DAGs stands behind site-packages in sys.path, as in Airflow."""
    site = tmp_path / "site"
    argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*argv, "--target", site, wheel], check=True, capture_output=True)
    for name in ("etl", "jobs", "training", "serving", "models", "data", "cli"):
        (tmp_path / "dags" / name).mkdir(parents=True)
        (tmp_path / "dags" / name / "__init__.py").write_text("")
        (tmp_path / "dags" / name / "mine.py").write_text("HERE = True\n")
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import howdah.etl, howdah.training\n"
        "import etl.mine, jobs.mine, training.mine, serving.mine\n"
        "import models.mine, data.mine, cli.mine\n"
        "print(howdah.etl.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", code, str(tmp_path / "dags")], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "howdah" / "etl" / "__init__.py")
