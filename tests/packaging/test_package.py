"""What goes to a cluster's nodes, wheel and environment: the same bytes, and they run alone."""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from howdah import storage
from howdah.errors import ClusterError, ConfigError, UsageError
from howdah.models.opened.opened import open_model
from howdah.packaging import elf, horovod, libraries, package
from howdah.packaging import environment as package_env
from howdah.packaging.hashes import FileHashes
from howdah.packaging.part import Part
from howdah.process import isolation
from tests.support.models.exported import base_of, write_export


@pytest.fixture(scope="module")
def environment():
    """The packed environment of the ETL, from the cache where it was made before."""
    return package.environment("etl")


def test_the_wheel_is_the_same_bytes_and_installs(tmp_path):
    first = package.wheel(str(tmp_path / "a"))
    second = package.wheel(str(tmp_path / "b"))
    assert first.hash == second.hash and first.name == second.name
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()
    names = zipfile.ZipFile(first.path).namelist()
    assert "howdah/etl/report.html.j2" in names and "howdah/cli/__init__.py" in names
    assert not [n for n in names if "__pycache__" in n or not n.startswith("howdah")]
    target = tmp_path / "site"
    argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*argv, "--target", target, first.path], check=True, capture_output=True)
    assert (target / "howdah" / "data" / "splits" / "planner.py").is_file()


def test_a_wheel_of_other_sources_has_another_name(tmp_path, monkeypatch):
    before = package.wheel(str(tmp_path))
    monkeypatch.setattr(package, "ROOMS", ("etl",))
    after = package.wheel(str(tmp_path))
    assert after.hash != before.hash and after.name != before.name


# glibc, a shell and nothing else: what the environment brings is all that there is
_GLIBC = ("libc", "libm", "libpthread", "libdl", "librt", "libutil", "libresolv", "libanl")
_PROBE = """
import bz2, ctypes, json, lzma, sqlite3, ssl, subprocess, sys, zlib
import fsspec, google_crc32c, hdfs, hdfs_native, jinja2, numpy, pandas, pyarrow.parquet
import pydantic, tokenizers, yaml
import howdah.config.loader, howdah.data.encode, howdah.storage
from importlib.resources import files
foreign = [m.__file__ for m in list(sys.modules.values())
           if getattr(m, "__file__", None) and not m.__file__.startswith(sys.argv[1])]
child = "import os, numpy; print(numpy.__version__, os.environ.get('LD_LIBRARY_PATH'))"
inner = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
print(json.dumps({
    "foreign": foreign, "child": inner.stdout.strip(), "child_error": inner.stderr,
    "numpy": numpy.__version__, "crc": google_crc32c.implementation,
    "template": len(files("howdah.etl").joinpath("report.html.j2").read_text()),
}))
"""


@pytest.mark.full  # environments are made and shipped in every run
def test_the_environment_runs_with_glibc_alone(environment, tmp_path):
    root = tmp_path / "root"
    place = root / "somewhere" / "else"
    with tarfile.open(environment.path) as archive:
        archive.extractall(place, filter="data")
    shutil.copy(package.wheel(str(tmp_path)).path, root / "howdah.whl")
    (root / "probe.py").write_text(_PROBE)
    inside, argv = bare_root(root)
    argv += [f"{inside}/somewhere/else/bin/python", f"{inside}/probe.py", f"{inside}/"]
    path = os.pathsep.join(filter(None, os.environ.get("PATH", "").split(os.pathsep)))
    answer = subprocess.run(
        argv, env={"PYTHONPATH": f"{inside}/howdah.whl", "PATH": path}, capture_output=True,
        text=True, cwd="/",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["foreign"] == []
    # a Python process that it starts is whole as well, and other programs get their own libraries
    assert result["child"] == f"{result['numpy']} None", result["child_error"]
    assert result["crc"] == "c" and result["template"] > 1000


PREDICTION = """
import json, sys
from howdah.models.opened.opened import open_model
from howdah.models.opened.runtimes import serving_framework
from howdah.models.version import open_version
chosen = serving_framework(open_version(sys.argv[2], "none"))
served = open_model(sys.argv[2], framework=chosen, threads=1)
scores = served.scores(json.loads(sys.argv[3]))
import pyarrow.parquet, howdah.serving.prediction.executor
foreign = [m.__file__ for m in list(sys.modules.values())
           if getattr(m, "__file__", None) and not m.__file__.startswith(sys.argv[1])]
print(json.dumps({"framework": chosen, "scores": scores.tolist(), "foreign": foreign}))
"""


def bare_root(root: Path) -> tuple[str, list[str]]:
    """Fill in glibc and a shell.

    Returns:
        where `root` is for a program in it; what goes before a program to run it in there, with
        /proc (onnxruntime opens a model's tensors by it), /dev and /sys. chroot needs root.
    """
    if os.geteuid() != 0:
        return str(root), []
    for folder in ("lib64", "lib/x86_64-linux-gnu", "bin", "tmp", "proc", "dev", "sys"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/lib64/ld-linux-x86-64.so.2", root / "lib64")
    for name in _GLIBC:
        for path in Path("/lib/x86_64-linux-gnu").glob(f"{name}.so.*"):
            shutil.copy(path, root / "lib/x86_64-linux-gnu")
    shutil.copy(os.path.realpath("/bin/dash"), root / "bin" / "sh")
    shutil.copy("/usr/bin/getconf", root / "bin")  # by which it is known to be as new as needed
    mounts = " && ".join(f'mount --rbind /{name} "$0/{name}"' for name in ("proc", "dev", "sys"))
    script = f'{mounts} && exec chroot "$0" "$@"'
    return "", ["unshare", "--mount", "sh", "-c", script, str(root)]


@pytest.mark.full
def test_a_prediction_by_the_environment_score_alone(tmp_path):
    made = package.environment("score")
    assert made.size < 150 * 2**20 and made.name.endswith(".tar.gz")
    root, texts = tmp_path / "root", ["the country and the town", "more and more", "of"]
    with tarfile.open(made.path) as archive:
        names = archive.getnames()
        archive.extractall(root / "env", filter="data")
    packages = {name.split("site-packages/")[1].split("/")[0] for name in names if "site-" in name}
    assert {"onnxruntime", "tokenizers", "numpy", "pyarrow"} <= packages
    assert not packages & {"torch", "tensorflow", "transformers", "onnx", "pandas", "sympy"}
    shutil.copy(package.wheel(str(tmp_path)).path, root / "howdah.whl")
    base = base_of(str(tmp_path / "base"), "distilbert")
    export = write_export(root / "export", base)
    here = open_model(export, framework="onnx", threads=1).scores(texts)
    (root / "predict.py").write_text(PREDICTION)
    inside, argv = bare_root(root)
    argv += [f"{inside}/env/bin/python", f"{inside}/predict.py", f"{inside}/", f"{inside}/export"]
    path = os.environ.get("PATH", "")
    answer = subprocess.run(
        [*argv, json.dumps(texts)], env={"PYTHONPATH": f"{inside}/howdah.whl", "PATH": path},
        capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout)
    assert result["framework"] == "onnx" and result["foreign"] == []
    np.testing.assert_array_equal(np.array(result["scores"], np.float32), here)


def test_the_environment_is_made_once_and_named_by_its_contents(environment, monkeypatch):
    lines = []
    assert package.environment("etl", progress=lines.append) == environment and lines == []
    with tarfile.open(environment.path) as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert names == sorted(names)
    assert {(m.mtime, m.uid, m.gid, m.uname) for m in members} == {(0, 0, 0, "")}
    assert {m.mode for m in members} == {0o644, 0o755} and all(m.isfile() for m in members)
    assert not [n for n in names if "/tests/" in n or "__pycache__" in n or "pyspark" in n]
    real = package_env.parts("etl")
    changed = [*real[:-1], Part(name=real[-1].name, contents=b"# changed\n")]
    monkeypatch.setattr(package, "parts", lambda kind, **_: changed)
    monkeypatch.setattr(package, "_write_tar", lambda target, *_: Path(target).touch())
    other = package.environment("etl", str(Path(environment.path).parent / "other"))
    assert other.hash != environment.hash
    shutil.rmtree(Path(other.path).parent)


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match="no such kind"):
        package_env.parts("cooking")
    with pytest.raises(ClusterError) as caught:
        package_env.closure(["numpy", "no-such-distribution"])
    assert "no-such-distribution" in caught.value.remedy


@pytest.fixture(scope="module")
def unpacked(environment, tmp_path_factory):
    """The environment's files without site-packages."""
    place = tmp_path_factory.mktemp("environment")
    with tarfile.open(environment.path) as archive:
        members = [m for m in archive if "/site-packages/" not in m.name]
        archive.extractall(place, members, filter="data")
    return place


_MAPPED = """
import ctypes, json, lzma, os, re, sqlite3, ssl, subprocess, sys
lines = open("/proc/self/maps").read()
child = "import os; print(os.confstr('CS_GNU_LIBC_VERSION'), open('/proc/self/maps').read())"
print(json.dumps({
    "libraries": sorted(set(re.findall(r"/\\S*\\.so\\S*", lines))),
    "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "python": sys.executable, "words": sys.argv[1:],
    "child": subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout,
    "program": subprocess.run(["env"], capture_output=True, text=True).stdout,
}))
"""


def test_an_older_node_runs_an_environment_with_the_glibc_in_it(environment, unpacked, tmp_path):
    about = json.loads((unpacked / package_env.DESCRIPTION).read_text())
    assert about["kind"] == "etl" and about["packages"]["numpy"] and about["glibc_asked_by"]
    assert environment.glibc == about["glibc"] == environment.as_dict()["glibc"]
    major, minor = map(int, about["glibc"].split("."))

    def start(answer: str) -> dict:
        """What a process sees on a node whose getconf gives this answer."""
        getconf = tmp_path / "getconf"
        getconf.write_text(f"#!/bin/sh\necho {answer}\n")
        getconf.chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LD_LIBRARY_PATH": "/nowhere"}
        argv = [unpacked / "bin/python", "-c", _MAPPED, "two words", ""]
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for old in ("glibc 2.12", "glibc 1.99", f"glibc {major}.{minor - 1}", "undefined", ""):
        seen = start(old)
        outside = [path for path in seen["libraries"] if not path.startswith(f"{unpacked}/lib/")]
        assert outside == [] and f"{unpacked}/lib/glibc/libc.so.6" in seen["libraries"], old
        assert f"{unpacked}/lib/glibc/libc.so.6" in seen["child"]
    for new in (about["glibc"], f"{major}.{minor + 1}", f"{major + 1}.0"):
        seen = start(f"glibc {new}")
        assert not [path for path in seen["libraries"] if "/lib/glibc/" in path]
        assert "/lib/glibc/" not in seen["child"]
    # and in both cases
    assert seen["python"] == f"{unpacked}/bin/python" and seen["words"] == ["two words", ""]
    assert "LD_LIBRARY_PATH=/nowhere\n" in seen["program"]


def test_an_environment_holds_every_library_that_its_files_name(unpacked):
    parts = package_env.parts("etl")
    inside = {os.path.basename(part.name) for part in parts}
    carried = os.confstr("CS_GNU_LIBC_VERSION").removeprefix("glibc ")
    newest, by = libraries.newest_glibc(p for p in parts if not p.name.startswith("lib/glibc/"))
    assert tuple(map(int, newest.split("."))) <= tuple(map(int, carried.split("."))), by
    lacking = {
        (part.name, name)
        for part in parts
        if part.is_elf() and (file := elf.read(part.path))
        for name in file.needed
        if name not in inside
    }
    assert lacking == set()
    # what a node's own libraries load in such a process must not be another glibc's
    glibc = {path.name for path in (unpacked / "lib" / "glibc").iterdir()}
    assert {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"} <= glibc
    assert {"libresolv.so.2", "libutil.so.1", "libnss_files.so.2", "libnss_dns.so.2"} <= glibc


def test_an_elf_file_needs_what_readelf_lists(tmp_path):
    for path in (sys.executable, shutil.which("tar"), elf_of("numpy"), elf_of("pyarrow")):
        path = os.path.realpath(path)
        file = elf.read(path)
        listing = subprocess.run(["readelf", "-dVW", path], capture_output=True, text=True).stdout
        assert list(file.needed) == re.findall(r"NEEDED.*\[(.*)\]", listing)
        needs = listing[listing.find("Version needs section") :]
        assert set(file.versions) == set(re.findall(r"Name: (\S+)\s+Flags: none", needs))
        assert file.needed and file.versions
    assert elf.read(__file__) is None
    program = bytearray(Path(os.path.realpath(shutil.which("tar"))).read_bytes())
    bare = tmp_path / "bare"  # without section headers: the loader needs none
    program[40:48], program[60:64] = bytes(8), bytes(4)
    bare.write_bytes(program)
    assert elf.read(str(bare)) == elf.read(os.path.realpath(shutil.which("tar")))
    cut = tmp_path / "cut.so"
    cut.write_bytes(program[:3000])
    assert elf.read(str(cut)) in (None, elf.Elf())


def elf_of(distribution: str) -> str:
    """An extension module of it."""
    files = importlib.metadata.files(distribution)
    return str(next(f.locate() for f in files if f.name.endswith("x86_64-linux-gnu.so")))


def test_a_file_is_hashed_again_only_when_it_has_changed(tmp_path):
    big = tmp_path / "big"
    big.write_bytes(b"a" * 100_000)
    kept = str(tmp_path / "cache" / "hashes.json")
    hashes = FileHashes(kept)
    first = hashes.of(str(big))
    assert first == hashlib.sha256(big.read_bytes()).hexdigest()
    hashes.save()
    kept_hashes = json.loads(Path(kept).read_text())
    kept_hashes[str(big)][3] = "remembered"
    Path(kept).write_text(json.dumps(kept_hashes))
    again = FileHashes(kept)
    assert again.of(str(big)) == "remembered"
    big.write_bytes(b"b" * 100_000)
    assert again.of(str(big)) == hashlib.sha256(big.read_bytes()).hexdigest()
    big.unlink()
    again._new = True
    again.save()
    assert json.loads(Path(kept).read_text()) == {}
    Path(kept).write_text("{")
    assert FileHashes(kept)._entries == {}


def test_a_horovod_that_needs_mpi_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a Horovod for torch without MPI") as caught:
        horovod.provide("torch", str(tmp_path / "none.whl"), str(tmp_path))
    assert caught.value.got == "no such file"
    with_mpi = tmp_path / "horovod-0.28.1+x-cp311-cp311-linux_x86_64.whl"
    site = Path(str(importlib.metadata.distribution("horovod").locate_file("")))
    if not horovod._needs_mpi(horovod._library(str(site), "torch")):
        pytest.skip("the installed Horovod is one without MPI")
    with zipfile.ZipFile(with_mpi, "w") as wheel:
        for path in (site / "horovod" / "torch").glob("mpi_lib*.so"):
            wheel.write(path, path.relative_to(site))
    with pytest.raises(UsageError) as caught:
        horovod.provide("torch", str(with_mpi), str(tmp_path / "cache"))
    assert "MPI" in caught.value.got
    with pytest.raises(UsageError) as caught:
        horovod.provide("tensorflow", str(with_mpi), str(tmp_path / "cache"))
    assert "without tensorflow" in caught.value.got


def test_without_a_builder_the_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(horovod, "_BUILDER", tmp_path / "none.py")
    monkeypatch.setattr(horovod, "_installed", lambda framework: None)
    with pytest.raises(ClusterError, match="needs a Horovod for torch without MPI") as caught:
        horovod.provide("torch", None, str(tmp_path))
    assert f"--portable --python {sys.executable} --install" in caught.value.remedy


def test_the_builder_imports_what_lies_beside_it_in_a_job_s_driver_too(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("WHEEL = '/wheels/of/two'\n")
    (tmp_path / "builder.py").write_text("import beside\nprint(beside.WHEEL)\n")
    monkeypatch.setattr(horovod, "_BUILDER", tmp_path / "builder.py")
    for name, value in isolation.environment().items():  # as Howdah starts a driver
        monkeypatch.setenv(name, value)
    assert horovod._built("torch", None) == "/wheels/of/two"


def test_requirements_follow_markers_and_extras():
    names = [
        item.name.lower().replace("_", "-") for item in package_env.closure(["pydantic", "pandas"])
    ]
    assert {"pydantic-core", "python-dateutil", "numpy"} <= set(names)
    assert "pytest" not in names  # pandas[test]
    assert "email-validator" not in names  # pydantic[email]
    fewer = [item.name.lower() for item in package_env.closure(["pandas"], without={"numpy"})]
    assert "pandas" in fewer and "numpy" not in fewer


def test_many_publish_the_same_package_at_once(tmp_path):
    made = package.wheel(str(tmp_path))
    directory = f"memory://packages-{tmp_path.name}"
    with ThreadPoolExecutor(8) as pool:
        urls = set(pool.map(lambda _: package.publish(made, directory), range(8)))
    assert len(urls) == 1
    assert storage.read_bytes(urls.pop()) == Path(made.path).read_bytes()
    assert [e.name for e in storage.list_dir(directory, unfinished=True)] == [made.name]
    lines = []
    package.publish(made, directory, lines.append)
    assert lines == []


def test_jars_become_one_archive(tmp_path):
    for name in ("a.jar", "b.jar", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    made = package.zipped(str(tmp_path), f"test-{tmp_path.name}", "*.jar")
    try:
        with zipfile.ZipFile(made.path) as archive:
            assert archive.namelist() == ["a.jar", "b.jar"]
            assert archive.read("b.jar") == b"b.jar" * 1000
    finally:
        os.unlink(made.path)
