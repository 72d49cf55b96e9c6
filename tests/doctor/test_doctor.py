"""The doctor: what it finds, what it advises, its exit code and its one JSON object."""

import importlib.util
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import types

import pytest

from howdah.doctor import checks as doctor_checks
from howdah.doctor import hadoop as doctor_hadoop
from howdah.doctor import packages as doctor_packages
from howdah.doctor import report as doctor
from howdah.doctor import spark as doctor_spark
from howdah.doctor.checks import Check


def program(folder, name, script):
    """An executable shell script; the folder, to be put on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def run_doctor(*arguments, **env):
    text = ", ".join(arguments)
    code = f"import sys; from howdah.doctor.report import doctor; sys.exit(doctor({text}))"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
    )


def test_json_is_exactly_one_object_and_all_checks_are_in_it():
    done = run_doctor("json=True")
    report = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    names = [check["name"] for check in report["checks"]]
    assert len(names) == len(set(names))
    assert {
        "Python", "Java", "MPI", "Horovod", "packages", "memory", "cores", "disk", "ports",
        "hostname", "locale", "HADOOP_CONF_DIR", "HADOOP_HOME", "CLASSPATH",
    } <= set(names)  # fmt: skip
    assert done.returncode == (0 if report["ok"] else 1)
    assert report["ok"] == all(check["status"] != "fail" for check in report["checks"])


def test_what_is_missing_fails_with_a_remedy_and_exit_code_1(tmp_path):
    """A PATH with nothing on it has neither Java nor MPI."""
    env = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    done = run_doctor("json=True", **env)
    assert done.returncode == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for name, remedy in (("Java", "openjdk-17"), ("MPI", "openmpi-bin")):
        assert checks[name]["status"] == "fail"
        assert remedy in checks[name]["remedy"]
    text = run_doctor(**env)
    assert text.returncode == 1
    assert text.stderr == ""
    assert "not ready: Java, MPI" in text.stdout


def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path):
    env = {
        "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "jdk"), "LC_ALL": "C",
        "HADOOP_CONF_DIR": str(tmp_path), "HADOOP_HOME": str(tmp_path),
        "CLASSPATH": str(tmp_path / "no.jar"), "HOWDAH_CACHE": str(tmp_path),
    }  # fmt: skip
    checks = {check.name: check for check in doctor.run_checks(env)}
    unwell = {name: check for name, check in checks.items() if check.status in ("fail", "warn")}
    assert {"Java", "MPI", "locale", "HADOOP_CONF_DIR", "HADOOP_HOME", "CLASSPATH"} <= set(unwell)
    assert all(check.remedy for check in unwell.values())
    shown = doctor.render(list(checks.values()))
    assert all(check.remedy in shown for check in unwell.values())


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("Error: could not find libjvm.so", None),
    ],
)
def test_java_version(text, major):
    assert doctor_checks.java_major(text) == major


def test_java_too_old(tmp_path):
    path = program(tmp_path / "bin", "java", "echo 'openjdk version \"11.0.2\"' >&2\n")
    check = doctor_spark.check_spark({"PATH": path})
    assert check.status == "fail"
    assert "Java 11" in check.found and "Spark 3.5 with Java 11" in check.remedy


def test_what_only_spark_needs_is_not_asked_of_an_environment_without_it(tmp_path, monkeypatch):
    """A machine after `pip install 'howdah[torch]'` is fit to train."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    spark, java = doctor_spark.check_spark({}), doctor_checks.check_java({"PATH": str(tmp_path)})
    assert (spark.status, java.status) == ("warn", "skip")
    assert "howdah[etl]" in spark.remedy
    for needs in ("SPARK_HOME", "HADOOP_CONF_DIR"):
        env = {"PATH": str(tmp_path), needs: str(tmp_path)}
        assert doctor_checks.check_java(env).status == "fail"


def test_a_spark_without_pandas_is_a_finding(tmp_path, monkeypatch):
    """`pip install 'howdah[torch]'` on a machine whose profile sets SPARK_HOME."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.8.jar").touch()
    monkeypatch.setattr(doctor_spark, "installed_version", {"pyarrow": "20.0.0"}.get)
    check = doctor_spark.check_spark({"SPARK_HOME": str(tmp_path)})
    assert check.status == "warn"
    assert "pandas missing" in check.found and "howdah[etl]" in check.remedy


def test_a_relative_directory_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "is" / "there").mkdir(parents=True)
    check = doctor_checks.check_disk({"TMPDIR": "is/there", "HOWDAH_CACHE": str(tmp_path)})
    assert "temporary files is/there: " in check.found and "not a directory" not in check.found


def test_a_directory_for_temporary_files_that_is_missing_is_a_finding(tmp_path):
    missing = str(tmp_path / "not there")
    check = doctor_checks.check_disk({"TMPDIR": missing, "HOWDAH_CACHE": str(tmp_path)})
    assert check.status != "ok" and f"TMPDIR {missing} is not a directory" in check.found
    # Python takes another one, whose space counts.
    assert f"temporary files {tempfile.gettempdir()}: " in check.found
    assert f"mkdir -p '{missing}', or unset TMPDIR" in check.remedy


def test_a_host_name_that_no_resolver_takes(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "a" * 64)
    check = doctor_checks.check_hostname({})
    assert check.status == "fail" and "does not resolve" in check.found


def test_a_klist_that_does_not_answer_is_a_finding(tmp_path, monkeypatch):
    folder = program(tmp_path / "bin", "klist", "exec sleep 60\n")
    settings = types.SimpleNamespace(kerberos=True)
    monkeypatch.setattr(doctor_hadoop, "_settings", lambda env: settings)
    monkeypatch.setattr(doctor_checks, "_PROGRAM_SECONDS", 0.2)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    check = doctor_hadoop.check_login(env)
    assert check.status == "fail" and "klist -s: no answer" in check.found


def test_java_home_goes_before_path(tmp_path):
    new = program(tmp_path / "bin", "java", "echo 'openjdk version \"21.0.1\"' >&2\n")
    old = program(tmp_path / "old", "java", "echo 'openjdk version \"11.0.2\"' >&2\n")
    check = doctor_checks.check_java({"JAVA_HOME": str(tmp_path), "PATH": old})
    assert check.status == "ok"
    assert "Java 21" in check.found and "PATH has Java 11" in check.found
    assert new == str(tmp_path / "bin")


def test_java_home_without_java(tmp_path):
    check = doctor_checks.check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert check.status == "fail"
    assert str(tmp_path) in check.found and "unset JAVA_HOME" in check.remedy


def test_mpirun_that_cannot_start_anything(tmp_path):
    script = (
        'case "$1" in --version) echo "mpirun (Open MPI) 4.1.4";; *) echo "no route"; exit 3;; esac'
    )
    check = doctor_checks.check_mpi({"PATH": program(tmp_path / "bin", "mpirun", script)})
    assert check.status == "fail"
    assert "4.1.4" in check.found and "no route" in check.found


def test_horovod_whose_library_does_not_load(tmp_path, monkeypatch):
    library = tmp_path / "mpi_lib.so"
    library.write_bytes(b"no ELF at all")
    monkeypatch.setattr(doctor_packages, "horovod_libraries", lambda: {"torch": str(library)})
    monkeypatch.setattr(doctor_packages, "FRAMEWORKS", ("torch",))
    check = doctor_packages.check_horovod(os.environ)
    assert check.status == "fail"
    assert "torch (its library does not load" in check.found
    assert check.remedy


def test_horovod_not_built_for_a_framework(monkeypatch):
    monkeypatch.setattr(doctor_packages, "horovod_libraries", dict)
    monkeypatch.setattr(doctor_packages, "FRAMEWORKS", ("torch",))
    check = doctor_packages.check_horovod(os.environ)
    assert check.status == "fail"
    assert "not built for torch" in check.found


def test_horovod_not_installed(monkeypatch):
    monkeypatch.setattr(doctor_packages, "horovod_libraries", lambda: None)
    assert doctor_packages.check_horovod(os.environ).status == "fail"


def test_pytorch_alone_needs_no_horovod(monkeypatch):
    monkeypatch.setattr(doctor_packages, "horovod_libraries", lambda: None)
    versions = {"torch": "2.13.0"}
    monkeypatch.setattr(doctor_packages, "installed_version", versions.get)
    check = doctor_packages.check_horovod(os.environ)
    assert check.status == "warn"
    assert "torch.distributed" in check.found and check.remedy


def test_what_only_other_launchers_need_is_not_asked_for():
    missing = [Check("MPI", "fail", "none", "x"), Check("Horovod", "fail", "none", "x"),
               Check("Java", "fail", "none", "x")]  # fmt: skip
    for launcher, failing in (
        ("torchrun", {"Java"}),
        ("horovodrun", {"Horovod", "Java"}),
        ("mpirun", {"MPI", "Horovod", "Java"}),
    ):
        checks = doctor.of_launcher(missing, launcher)
        assert {one.name for one in checks if one.status == "fail"} == failing
        assert [one.name for one in checks] == ["MPI", "Horovod", "Java"]


def test_horovod_of_this_environment_has_both_controllers():
    check = doctor_packages.check_horovod(os.environ)
    assert check.status == "ok", check
    assert check.found.count("mpi, gloo") == 2


def test_packages_other_than_locked(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==0.0.1 \\\n    --hash=sha256:00\nnot-a-package==1.0\n")
    check = doctor_packages.check_packages({}, str(lock))
    assert check.status == "warn"
    assert "(locked: 0.0.1)" in check.found and "not-a-package missing" in check.found
    assert check.remedy == "make setup"


def test_hadoop_conf_dir(tmp_path):
    env = {"HADOOP_CONF_DIR": str(tmp_path)}
    assert doctor_checks.check_hadoop_conf({}).status == "skip"
    assert doctor_checks.check_hadoop_conf(env).status == "fail"
    site = tmp_path / "core-site.xml"
    site.write_text("<configuration><property>")
    assert "no XML" in doctor_checks.check_hadoop_conf(env).found
    site.write_text("<configuration/>")
    assert doctor_checks.check_hadoop_conf(env).status == "warn"
    site.write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        "<value>hdfs://nn:8020</value></property></configuration>"
    )
    check = doctor_checks.check_hadoop_conf(env)
    assert (check.status, "hdfs://nn:8020" in check.found) == ("ok", True)


def test_disk_that_is_not_writable(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    check = doctor_checks.check_disk({"HOWDAH_CACHE": str(tmp_path / "not" / "made" / "yet")})
    assert check.status == "fail"
    assert str(tmp_path) in check.remedy


def test_shared_memory_missing(tmp_path):
    check = doctor_checks.check_shared_memory({}, str(tmp_path / "none"))
    assert check.status == "warn" and check.remedy


def test_render_closes_with_a_verdict():
    checks = [Check("a", "ok", "fine"), Check("b", "warn", "hm", "look")]
    assert doctor.render(checks[:1]).endswith("\n\nready")
    assert doctor.render(checks).endswith("\n\nready (1 warning)")
    assert doctor.render([*checks, checks[1]]).endswith("\n\nready (2 warnings)")
    assert "not ready: c" in doctor.render([*checks, Check("c", "fail", "gone", "get it")])
    assert "\033[32mok" in doctor.render(checks, colour=True)
