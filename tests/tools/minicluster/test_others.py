"""Whom a mini cluster without Kerberos would give a shell, and that they are asked for first."""

import os
import subprocess
import sys

import pytest

from howdah.errors import ClusterError, UsageError
from tests import ROOT
from tests.support.waiting import wait_until
from tools.minicluster import MiniCluster, host, others
from tools.minicluster import __main__ as command
from tools.minicluster.others import Account


@pytest.fixture
def machine(tmp_path):
    """A machine's /etc and /proc; its users are found by `ask`."""
    etc, proc = tmp_path / "etc", tmp_path / "proc"
    etc.mkdir()
    proc.mkdir()
    (etc / "login.defs").write_text("# UID_MIN 7\nUID_MIN\t\t 1000\nUID_MAX 60000\n")

    def ask(*accounts, shadow=None, proc=proc):
        if shadow is not None:
            (etc / "shadow").write_text("".join(f"{n}:{p}:1:0:::::\n" for n, p in shadow.items()))
        return others.others(accounts, etc=str(etc), proc=str(proc), own_ids=frozenset({0}))

    ask.home = tmp_path / "home"
    ask.home.mkdir()
    return ask


def person(machine, name="ada", uid=1000, shell="/bin/bash"):
    return Account(name, uid, str(machine.home), shell)


def test_a_person_with_a_password_counts(machine):
    shadow = {"root": "*", "ada": "$y$j9T$x"}
    assert machine(person(machine), shadow=shadow) == ["ada (can log in)"]
    assert machine(person(machine), shadow={"ada": ""}) == ["ada (can log in)"]  # none is needed


def test_an_account_of_a_container_s_image_does_not(machine):
    """Root in a container is such a user: CI, and `make demo CLUSTER=1`."""
    for locked in ("!", "*", "!!", "!$y$j9T$x"):
        assert machine(person(machine, "ubuntu"), shadow={"ubuntu": locked}) == []
    (machine.home / ".ssh").mkdir()
    (machine.home / ".ssh" / "authorized_keys").touch()
    assert machine(person(machine, "ubuntu"), shadow={"ubuntu": "!"}) == []


def test_keys_let_somebody_in_without_a_password(machine):
    (machine.home / ".ssh").mkdir()
    (machine.home / ".ssh" / "authorized_keys").write_text("ssh-ed25519 AAAA ada\n")
    assert machine(person(machine), shadow={"ada": "!"}) == ["ada (can log in)"]


def test_an_account_that_cannot_be_judged_counts_as_a_user(machine):
    assert machine(person(machine)) == ["ada (can log in)"]  # shadow cannot be read
    assert machine(person(machine), shadow={"root": "*"}) == ["ada (can log in)"]  # LDAP's


@pytest.mark.parametrize(
    "account",
    [
        {"uid": 0, "name": "root"},
        {"uid": 999, "name": "postgres"},
        {"uid": 65534, "name": "nobody"},
        {"uid": 61184, "name": "dynamic"},
        {"shell": "/usr/sbin/nologin"},
        {"shell": "/bin/false"},
    ],
)
def test_services_and_oneself_are_no_other_people(machine, account):
    assert machine(person(machine, **account)) == []


def test_the_least_id_of_a_person_is_the_machine_s_own(machine, tmp_path):
    (tmp_path / "etc" / "login.defs").write_text("UID_MIN 500\n")
    assert machine(person(machine, uid=500)) == ["ada (can log in)"]
    (tmp_path / "etc" / "login.defs").unlink()
    assert machine(person(machine, uid=999)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of others")
def test_a_process_of_another_user_counts(machine):
    """A real one, also where the account is locked."""
    uid = 54321
    process = subprocess.Popen(["sleep", "600"], user=uid, cwd="/")
    try:
        ada = person(machine, uid=uid)
        wait_until(lambda: os.stat(f"/proc/{process.pid}").st_uid == uid)
        names = machine(ada, person(machine, "ben", 54322), shadow={"ada": "!", "ben": "!"},
                        proc="/proc")  # fmt: skip
        assert names == ["ada (has processes)"]
        assert others.others([ada], own_ids=frozenset({uid})) == []  # who called sudo
    finally:
        process.kill()
        process.wait()


def test_this_machine_can_be_asked():
    assert all(" (" in one for one in others.others())


# ------------------------------------------------------------------------------------- the start
@pytest.fixture
def among_others(monkeypatch):
    monkeypatch.setattr(others, "others", lambda: ["ada (has processes)", "ben (can log in)"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv(others.SHARED, raising=False)

    def no_java():
        raise ClusterError("as far as it was to come")

    monkeypatch.setattr(host, "find_java", no_java)


def test_root_among_others_is_refused(among_others, tmp_path):
    with pytest.raises(UsageError, match="every user of this machine root") as caught:
        MiniCluster(tmp_path / "cluster").start()
    assert caught.value.got == "ada (has processes), ben (can log in)"
    assert "--shared" in caught.value.remedy and "SHARED=1" in caught.value.remedy


@pytest.mark.parametrize("how", ["flag", "environment", "alone", "not root", "Kerberos"])
def test_what_may_start_says_what_it_opens(among_others, tmp_path, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv(others.SHARED, "1")
    if how == "alone":
        monkeypatch.setattr(others, "others", list)
    if how == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    messages = []
    with pytest.raises(ClusterError, match="as far as it was to come"):
        command.start(
            str(tmp_path / "cluster"), secure=how == "Kerberos", with_metastore=False, ports=[],
            node_memory_mb=1024, node_gpus=0, shared=how == "flag", say=messages.append,
        )  # fmt: skip
    lines = [line for line in messages if "every user of this machine can act as any user" in line]
    assert len(lines) == (how != "Kerberos")


@pytest.mark.parametrize(("words", "value"), [([], ""), (["SHARED=1"], "1")])
def test_make_passes_it_on(words, value, tmp_path):
    (tmp_path / "probe.mk").write_text(f"include {ROOT}/Makefile\nprobe:\n\t@env\n")
    env = {name: v for name, v in os.environ.items() if name != others.SHARED}
    done = subprocess.run(
        ["make", "-f", str(tmp_path / "probe.mk"), "probe", *words],
        capture_output=True, text=True, env=env, cwd=ROOT, check=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(others.SHARED)]
    assert lines == ([f"{others.SHARED}={value}"] if value else [])


def test_the_command_line_has_the_flag():
    words = [sys.executable, "-m", "tools.minicluster", "start", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--shared" in done.stdout
