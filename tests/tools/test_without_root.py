"""README's way for a user without root, compiler, MPI and Horovod, run as it is written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.models.tiny_model import write_tiny_model
from tests.support.ports import free_port

TOOLS = ROOT / "tools"
PROGRAMS = (
    "awk", "basename", "bash", "cat", "chmod", "curl", "cut", "date", "dirname", "env", "expr",
    "grep", "head", "hostname", "id", "java", "ls", "mkdir", "nproc", "ps", "readlink", "rm",
    "sed", "sh", "sleep", "tail", "tr", "uname", "wc", "whoami",
)  # fmt: skip
"""What such a machine has: no compiler, make, mpirun, sudo or git."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    """A virtual environment with howdah[torch,etl,serve] from the lock and set-up's download cache.

    Tests reach no package index, so pip's part of the README's command is this installation.
    """
    sys.path.insert(0, str(TOOLS))
    import lock_subset
    import toolkit

    sys.path.remove(str(TOOLS))
    home = tmp_path_factory.mktemp("plain")
    lock = home / "plain.lock"
    names = lock_subset.names_of_extras(["torch", "etl", "serve"])
    lock.write_text(lock_subset.subset(ROOT / "requirements.lock", names))
    uv = toolkit.Installer(sys.executable, home).uv
    python = home / "env" / "bin" / "python"

    def run(*argv):
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    run(uv, "venv", "--python", sys.executable, home / "env")
    install = (uv, "pip", "install", "--offline", "--python", python, "--link-mode", "symlink")
    run(*install, "--require-hashes", "-r", lock)
    run(*install, "--no-deps", wheel)
    yield home
    shutil.rmtree(home)


def readme_lines() -> list[str]:
    """The commands of README's section, without their comments."""
    text = (ROOT / "README.md").read_text()
    section = re.search(r"Without root or a compiler.*?```\n(.*?)```", text, re.DOTALL)[1]
    return [line.split("  #")[0].rstrip() for line in section.splitlines()]


# `full`: an ETL, a training and a server with cold caches take minutes.
@pytest.mark.full
@pytest.mark.spark
def test_a_csv_becomes_a_served_model_without_root(environment, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        if path := shutil.which(name):
            (programs / name).symlink_to(path)
    work = tmp_path / "my folder"
    work.mkdir()
    rows = [
        f'"{subject} number {number} did not arrive; who can help?",{label}'
        for number in range(40)
        for subject, label in (("Parcel", "post"), ("Invoice", "billing"))
    ]
    (work / "messages.csv").write_bytes("\r\n".join(["message,category", *rows]).encode())
    base, port = write_tiny_model(str(tmp_path / "base")), free_port()
    lines = readme_lines()
    assert 6 <= len(lines) <= 10 and lines[0].startswith("python3.11 -m venv")
    assert "pip install" in lines[1] and "[torch,etl,serve]" in lines[1]
    script = [line.replace("8000", str(port)) for line in lines[2:]]
    # A tiny model and few steps; the server ends with the script.
    script.insert(1, f"sed -i 's#^  base: .*#  base: {base}#' run.yaml")
    train = script.index("howdah train")
    script[train] += " --set training.max_steps=6 --set training.precision=fp32"
    text = "\n".join(["set -e", f". '{environment}/env/bin/activate'", *script, "kill %1", "wait"])
    done = subprocess.run(
        # A user namespace without a mapping: the process is `nobody` and has no capability.
        [shutil.which("unshare"), "--user", shutil.which("bash"), "-c", text], cwd=work,
        env={"PATH": str(programs), "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(re.search(r"^\{.*", done.stdout, re.MULTILINE)[0])
    assert answer["prediction"]["label"] in {"post", "billing"}
    assert os.path.exists(work / "runs" / "messages" / "report.html")
