"""Set-up: pip's settings reach uv, the stamp, the lock, failures that say what to do."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT

TOOLS = ROOT / "tools"


@pytest.fixture
def kit(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import toolkit

    return toolkit


@pytest.fixture
def setup_env(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import setup_env

    return setup_env


PIP_CONFIG = """\
global.cert='/etc/own.pem'
global.index-url='https://mirror.example/simple'
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
install.trusted-host='mirror.example'
:env:.index-url='https://other.example/simple'
:env:.default-timeout='180'
:env:.find-links='/does/not/exist'
something else
"""


def test_pip_s_settings_become_uv_s(kit):
    pip = kit.parse_pip_config(PIP_CONFIG)
    assert pip["index-url"] == "https://other.example/simple"  # the environment goes first
    env, flags = kit.uv_settings(pip, {})
    assert env == {
        "UV_DEFAULT_INDEX": "https://other.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/etc/own.pem",
        "UV_INSECURE_HOST": "mirror.example",
        "UV_HTTP_TIMEOUT": "180",
    }
    assert flags == []


def test_what_is_set_for_uv_itself_wins(kit, tmp_path):
    pip = {
        "index-url": "https://a/simple", "proxy": "http://p:1", "no-index": "true",
        "find-links": f"{tmp_path} https://c/wheels", "cert": "/x.pem",
    }  # fmt: skip
    env, flags = kit.uv_settings(
        pip, {"UV_INDEX_URL": "https://b/simple", "https_proxy": "q", "SSL_CERT_FILE": "/y.pem"}
    )
    assert env == {"UV_FIND_LINKS": f"{tmp_path},https://c/wheels", "HTTP_PROXY": "http://p:1"}
    assert flags == ["--no-index"]


def test_a_failing_command_shows_its_log_s_tail_and_the_remedy(kit, tmp_path):
    log = tmp_path / "logs" / "step.log"
    script = "for i in range(100): print('line', i)\nraise SystemExit(7)"
    with pytest.raises(kit.SetupError) as caught:
        kit.run_logged([sys.executable, "-c", script], log, what="the step", remedy="do that")
    text = caught.value.render()
    assert text.startswith("error: the step: ") and "ended with 7" in text
    assert "line 99" in text and "line 3\n" not in text
    assert str(log) in text and "remedy: do that" in text
    with pytest.raises(kit.SetupError, match="cannot start"):
        kit.run_logged([str(tmp_path / "none")], log, what="the step")


def test_an_interrupted_step_ends_what_it_started(kit, tmp_path):
    """SIGTERM to a set-up: the compilers below make must not go on without it."""
    pid = tmp_path / "pid"
    script = (
        f"import signal, sys; sys.path.insert(0, {str(TOOLS)!r})\n"
        "from pathlib import Path; import toolkit\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"toolkit.run_logged(['sh', '-c', 'sleep 600 & echo $! > {pid}.tmp; mv {pid}.tmp {pid};"
        f" wait'], Path({str(tmp_path / 'log')!r}), what='it')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_for(pid.exists)
    process.terminate()
    assert process.wait(timeout=60) == 143
    status = Path(f"/proc/{pid.read_text().strip()}/status")
    wait_for(lambda: not status.exists() or "State:\tZ" in status.read_text())


def test_a_command_that_may_not_be_ended_is_waited_for(kit, monkeypatch, tmp_path, capsys):
    """apt-get below sudo belongs to root, so that Ctrl-C's SIGTERM is not permitted."""
    wait = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(process)

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    monkeypatch.setattr(os, "killpg", refused)
    monkeypatch.setattr(kit.signal, "signal", lambda *_: None)
    argv = ["sh", "-c", f"sleep 0.2; touch {tmp_path}/done"]
    assert kit.guarded(lambda: kit.run_logged(argv, tmp_path / "log", what="it")) == 130
    assert (tmp_path / "done").exists() and "run again" in capsys.readouterr().err


def test_a_failed_step_of_any_tool_is_a_message(kit, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kit.signal, "signal", lambda *_: None)

    def main():
        raise kit.SetupError("it broke", remedy="fix it")

    assert kit.guarded(main) == 1
    assert capsys.readouterr().err == "error: it broke\n  remedy: fix it\n"
    lock = tmp_path / "file" / "setup.lock"
    lock.parent.touch()  # as where root has run the set-up, and a user runs it again

    def locked():
        with kit.exclusive(lock, "another set-up"):
            raise AssertionError

    assert kit.guarded(locked) == 1
    assert str(lock.parent) in (message := capsys.readouterr().err) and "remedy: " in message


def wait_for(condition, seconds=60):
    """Poll until a condition holds."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.02)


def test_two_runs_are_kept_apart(kit, tmp_path):
    """A second process waits until the first has let go, and says whom it waits for."""
    lock = tmp_path / "lock"
    script = (
        f"import sys; sys.path.insert(0, {str(TOOLS)!r})\n"
        "from pathlib import Path; import toolkit\n"
        f"with toolkit.exclusive(Path({str(lock)!r}), 'it'): print('in', flush=True)\n"
    )
    with kit.exclusive(lock, "it"):
        other = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = other.stderr.readline()
        assert f"(process {os.getpid()})" in line
        assert other.poll() is None
    out, _ = other.communicate(timeout=60)
    assert out == "in\n" and other.returncode == 0


@pytest.fixture
def target(setup_env, tmp_path):
    """An environment that looks set up, over a small lock file."""
    lock = tmp_path / "requirements.lock"
    lock.write_text("setuptools==80.1.0 \\\n    --hash=sha256:aa\nzipp==1.0\n")
    made = setup_env.Target(tmp_path / ".venv", lock, setup_env.horovod_variant.Variant())
    (made.venv / "bin").mkdir(parents=True)
    Path(made.python).symlink_to(sys.executable)
    return made


def test_a_whole_stamp_means_nothing_to_do(setup_env, target, monkeypatch, capsys):
    def unwanted(*_, **__):
        raise AssertionError("a step ran")

    monkeypatch.setattr(setup_env.system_packages, "install_missing", unwanted)
    setup_env.write_stamp(target, {"packages": "x", "key": setup_env.setup_key(target)})
    setup_env.set_up(target, force=False)
    assert "up to date" in capsys.readouterr().err


def test_the_key_follows_lock_patch_and_python(setup_env, target, monkeypatch, tmp_path):
    keys = [setup_env.setup_key(target)]
    packages = [setup_env.environment_key(target)]
    target.lock.write_text(target.lock.read_text() + "more==1\n")
    keys.append(setup_env.setup_key(target))
    packages.append(setup_env.environment_key(target))
    patch = tmp_path / "p.patch"
    patch.write_text("other")
    monkeypatch.setattr(setup_env.horovod_variant, "PATCH", patch)
    keys.append(setup_env.setup_key(target))
    packages.append(setup_env.environment_key(target))
    monkeypatch.setattr(setup_env, "base_python", lambda: "/opt/python3.11")
    keys.append(setup_env.setup_key(target))
    packages.append(setup_env.environment_key(target))
    assert len(set(keys)) == 4
    # Another patch rebuilds Horovod; it does not install 240 packages again.
    assert packages[1] == packages[2] and len(set(packages)) == 3


def steps(setup_env, monkeypatch, fails=()):
    """Replace the steps with ones that note their name; those in `fails` fail."""
    ran = []

    def step(name):
        def run(*_, **__):
            ran.append(name)
            if name in fails:
                raise setup_env.SetupError(f"{name} broke", remedy="fix it")

        return run

    monkeypatch.setattr(setup_env.system_packages, "install_missing", step("system"))
    monkeypatch.setattr(setup_env.Installer, "ready", step("uv"))
    monkeypatch.setattr(setup_env, "sync_environment", step("sync"))
    monkeypatch.setattr(setup_env, "install_horovod", step("horovod"))
    monkeypatch.setattr(setup_env, "install_project", step("project"))
    return ran


def test_an_interrupted_set_up_goes_on_where_it_was(setup_env, target, monkeypatch):
    with monkeypatch.context() as patched:
        ran = steps(setup_env, patched, fails={"horovod"})
        with pytest.raises(setup_env.SetupError, match="horovod broke"):
            setup_env.set_up(target, force=False)
        assert ran == ["system", "uv", "sync", "project", "horovod"]
        assert "key" not in json.loads(target.stamp.read_text())
    with monkeypatch.context() as patched:
        ran = steps(setup_env, patched)
        setup_env.set_up(target, force=False)
        assert ran == ["system", "uv", "project", "horovod"]
    with monkeypatch.context() as patched:
        ran = steps(setup_env, patched)
        setup_env.set_up(target, force=False)
        assert ran == []
        setup_env.set_up(target, force=True)
        assert ran == ["system", "uv", "sync", "project", "horovod"]


def test_a_demo_s_set_up_ends_before_horovod_and_goes_on_there(setup_env, target, monkeypatch):
    """`make demo` begins its first steps meanwhile; `make test` then adds the other packages."""
    monkeypatch.setattr(setup_env, "ROOT", target.venv.parent)
    ran = steps(setup_env, monkeypatch)
    (target.venv.parent / "requirements.lock").write_text(target.lock.read_text())
    monkeypatch.setattr(setup_env, "setup_key", lambda target: repr(target.demos))
    demo = setup_env.target_for(None, demo="torch")
    assert demo.demos == demo.variant.frameworks == ("torch",)
    setup_env.set_up(demo, force=False, horovod=False)
    setup_env.set_up(demo, force=False, horovod=False)
    assert ran == ["system", "uv", "sync", "project"]
    setup_env.set_up(setup_env.target_for(None, demo="torch"), force=False)
    assert ran[4:] == ["system", "uv", "project", "horovod"]
    setup_env.set_up(setup_env.target_for(None, demo="torch"), force=False, horovod=False)
    assert len(ran) == 8
    # The demo of the other framework keeps the first one's packages; a whole set-up keeps all.
    both = setup_env.target_for(None, demo="tensorflow")
    assert both.demos == both.variant.frameworks == ("tensorflow", "torch")
    setup_env.set_up(both, force=False)
    assert ran[8:] == ["system", "uv", "sync", "project", "horovod"]
    setup_env.set_up(setup_env.target_for(None), force=False)
    assert ran[13:] == ["system", "uv", "sync", "project", "horovod"]
    setup_env.set_up(setup_env.target_for(None, demo="torch"), force=False)
    assert len(ran) == 18


@pytest.mark.parametrize(("framework", "other"), [("tensorflow", "torch"), ("torch", "tensorflow")])
def test_a_demo_s_packages_are_a_part_of_the_lock(setup_env, framework, other):
    demo = setup_env.target_for(None, demo=framework)
    if not demo.demos:  # this environment has all packages
        demo = setup_env.dataclasses.replace(demo, demos=(framework,))
    whole = (ROOT / "requirements.lock").read_text()
    part = setup_env.locked_packages(demo)
    names = {line.split("==")[0] for line in part.splitlines() if "==" in line}
    assert {framework, "pyspark", "onnxruntime", "fastapi", "scikit-learn", "setuptools"} <= names
    assert not names & {
        other, "apache-airflow", "ray", "mlflow", "deepspeed", "transformers", "optuna", "pytest",
    }  # fmt: skip
    assert any(name.startswith("nvidia-") for name in names) == (framework == "torch")
    assert part.count("--hash=") > len(names) and set(part.splitlines()) < set(whole.splitlines())


def test_a_part_of_a_lock_has_all_that_its_packages_need(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(TOOLS))
    import lock_subset

    lock = tmp_path / "x.lock"
    lock.write_text(
        "a==1 \\\n    --hash=sha256:aa\n    # via -r requirements.in\n"
        "b-c==2 \\\n    --hash=sha256:bb\n    # via a, d\n"
        "d==3 \\\n    --hash=sha256:dd\n    # via b-c\n"  # a circle
        "e==4 \\\n    --hash=sha256:ee\n    # via -r requirements.in, f\n"
    )
    part = lock_subset.subset(lock, ["A"])
    assert [line for line in part.splitlines() if "==" in line] == [
        "a==1 \\", "b-c==2 \\", "d==3 \\",
    ]  # fmt: skip
    assert "sha256:bb" in part and "sha256:ee" not in part
    assert lock_subset.subset(lock, ["B_c", "d"]).startswith("b-c==2")
    with pytest.raises(lock_subset.SetupError, match="does not have g, h"):
        lock_subset.subset(lock, ["h", "a", "g"])
    lock.write_text("a==1 \\\n    --hash=sha256:aa\n")
    with pytest.raises(lock_subset.SetupError, match="does not say what needs a"):
        lock_subset.subset(lock, ["a"])


def test_a_failed_sync_leaves_no_stamp(setup_env, target, monkeypatch):
    setup_env.write_stamp(target, {"packages": "old", "key": "old"})
    steps(setup_env, monkeypatch, fails={"sync"})
    with pytest.raises(setup_env.SetupError):
        setup_env.set_up(target, force=False)
    assert not target.stamp.exists()


def test_a_stamp_without_its_environment_counts_for_nothing(setup_env, target):
    setup_env.write_stamp(target, {"key": "k"})
    Path(target.python).unlink()
    assert setup_env.read_stamp(target) == {}


def test_build_requirements_are_pinned_by_the_lock(setup_env, target):
    assert setup_env.build_constraints(target.lock) == (
        "setuptools==80.1.0 \\\n    --hash=sha256:aa\n"
    )
    text = setup_env.build_constraints(ROOT / "requirements.lock")
    assert text.startswith("setuptools==") and "\nwheel==" in text
    assert text.count("--hash=sha256:") >= 4


def test_every_locked_package_has_a_hash_and_horovod_is_not_among_them():
    text = (ROOT / "requirements.lock").read_text()
    blocks = [block for block in text.split("\n") if block and not block.startswith((" ", "#"))]
    assert len(blocks) > 100
    assert all(block.rstrip().endswith("\\") for block in blocks)
    names = {block.split("==")[0].lower() for block in blocks}
    assert "horovod" not in names
    assert {"tensorflow", "torch", "pyarrow", "apache-airflow", "hdfs", "transformers"} <= names


def test_a_python_of_another_version_is_refused(tmp_path):
    fake = tmp_path / "python3.9"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh", str(TOOLS / "setup.sh")], env={**os.environ, "PYTHON": str(fake)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no Python 3.11" in done.stderr and "remedy" in done.stderr


def test_missing_system_packages_without_root_name_the_command(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(TOOLS))
    import system_packages

    need = system_packages.Need(
        "Java 17 or later", lambda: False, (("openjdk-17-jre-headless",),), demo=True
    )
    for_tests = system_packages.Need("Chromium", lambda: False, (("chromium",),))
    monkeypatch.setattr(system_packages, "needs", lambda: [need, for_tests])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(system_packages, "output_of", lambda *_, **__: None)  # no sudo, no terminal
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    with pytest.raises(system_packages.SetupError) as caught:
        system_packages.install_missing(tmp_path)
    assert "Java 17" in caught.value.what
    assert "apt-get install openjdk-17-jre-headless chromium" in caught.value.remedy
    with pytest.raises(system_packages.SetupError) as caught:
        system_packages.install_missing(tmp_path, demo=True)
    assert "chromium" not in caught.value.render().lower()
    assert "apt-get install openjdk-17-jre-headless" in caught.value.remedy


def test_packages_are_found_whatever_language_apt_speaks(kit, monkeypatch, tmp_path):
    import system_packages

    apt = tmp_path / "apt-cache"
    apt.write_text(
        '#!/bin/sh\nword=Candidate; [ "$LC_ALL" = C ] || word=Installationskandidat\n'
        'echo "$3:"; echo "  $word: 2.7.6-7"; printf \'caf\\351\\n\'\n'
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert system_packages._pick(("patch", "other")) == "patch"


def test_nothing_missing_asks_apt_for_nothing(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(TOOLS))
    import system_packages

    monkeypatch.setattr(system_packages, "needs", list)
    monkeypatch.setattr(system_packages, "run_logged", None)  # a call would be an error
    system_packages.install_missing(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_s_service_is_held_back_before_the_package_comes(monkeypatch, tmp_path):
    """Installing PostgreSQL or an SSH server for trials must not make this machine listen."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import system_packages

    switch, kept = tmp_path / "etc" / "not_to_be_run", tmp_path / "kept"
    kept.write_text("the administrator's")
    files = ((str(switch), "off\n"), (str(kept), "ours"))
    need = system_packages.Need("a server", lambda: switch.exists(), (("server",),), before=files)
    monkeypatch.setattr(system_packages, "needs", lambda: [need])
    monkeypatch.setattr(system_packages, "apt_prefix", list)
    monkeypatch.setattr(system_packages, "_pick", lambda choice: choice[0])
    real, calls = system_packages.run_logged, []

    def run_logged(argv, log, **words):
        calls.append((list(argv), switch.exists()))
        return "" if "apt-get" in argv else real(argv, log, **words)

    monkeypatch.setattr(system_packages, "run_logged", run_logged)
    system_packages.install_missing(tmp_path / "logs")
    installed = [before for argv, before in calls if "install" in argv and "apt-get" in argv]
    assert installed == [True]
    assert switch.read_text() == "off\n" and switch.stat().st_mode & 0o777 == 0o644
    assert kept.read_text() == "the administrator's"


def test_make_alone_lists_the_targets():
    done = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True)
    for name in ("setup", "demo", "test", "test-all", "lint", "lock", "bench", "doctor", "clean"):
        assert f"\n  make {name} " in done.stdout
