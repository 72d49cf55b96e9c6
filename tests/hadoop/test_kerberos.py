"""Logins from a keytab, and the user's short name, with fakes of MIT's programs."""

import os
from pathlib import Path

import pytest

from howdah.errors import ClusterError
from howdah.hadoop import kerberos

CACHE = """Ticket cache: FILE:/tmp/krb5cc_0
Default principal: alice/admin@EXAMPLE.ORG

Valid starting     Expires            Service principal
"""
KEYTAB = """Keytab name: FILE:/etc/bob.keytab
KVNO Principal
---- --------------------------------------------------------------------------
   2 bob@EXAMPLE.ORG
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts a program with a shell script as its body on PATH, before all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)

    def put(name, body):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return put


def test_short_name_is_that_of_the_ticket_else_of_the_keytab(programs, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text(CACHE)
    (tmp_path / "keytab").write_text(KEYTAB)
    programs("klist", f'test "$1" = -k && exec cat {tmp_path}/keytab; exec cat {tmp_path}/cache')
    assert kerberos.short_name() == "alice"
    programs("klist", f'test "$1" = -k && exec cat {tmp_path}/keytab; exit 1')
    assert kerberos.short_name() is None
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "/etc/bob.keytab")
    assert kerberos.short_name() == "bob"


def test_a_login_lasts_as_long_as_its_block(programs, tmp_path, monkeypatch):
    programs("kinit", f'echo "$@" > {tmp_path}/asked; echo ticket > "${{2#FILE:}}"')
    monkeypatch.setenv("KRB5CCNAME", "FILE:/before")
    with kerberos.logged_in("/etc/k", "me@R", "yarn.keytab"):
        cache = os.environ["KRB5CCNAME"].removeprefix("FILE:")
        assert Path(cache).read_text() == "ticket\n"
        assert os.environ["KRB5_CLIENT_KTNAME"] == "FILE:/etc/k"
        assert (tmp_path / "asked").read_text().split()[2:] == ["-k", "-t", "/etc/k", "me@R"]
    assert os.environ["KRB5CCNAME"] == "FILE:/before"
    assert "KRB5_CLIENT_KTNAME" not in os.environ
    assert not os.path.exists(cache)
    with kerberos.logged_in(None, None, "yarn.keytab"):
        assert os.environ["KRB5CCNAME"] == "FILE:/before"


def test_a_failed_login_names_the_keytab_and_its_key(programs):
    programs("kinit", "echo 'kinit: Cannot find KDC' >&2; exit 1")
    with (
        pytest.raises(ClusterError, match="no Kerberos ticket") as caught,
        kerberos.logged_in("/etc/k", "me@R", "yarn.keytab"),
    ):
        pass
    assert caught.value.where == "yarn.keytab /etc/k, principal me@R"
    assert "Cannot find KDC" in caught.value.got


def test_a_translated_klist_is_asked_in_english(programs, tmp_path, monkeypatch):
    """MIT Kerberos is translated; its messages may be in another character set than UTF-8."""
    (tmp_path / "english").write_text(CACHE)
    (tmp_path / "german").write_bytes("für\nStandard-Principal: alice@X\n".encode("latin-1"))
    programs("klist", f'test "$LC_ALL" = C && exec cat {tmp_path}/english; cat {tmp_path}/german')
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    assert kerberos.short_name() == "alice"


def test_short_name_of_heimdals_ticket(programs):
    programs("klist", "printf 'Credentials cache: API:1\n        Principal: carol@X.Y\n'")
    assert kerberos.short_name() == "carol"


def test_a_failed_login_in_another_character_set_is_told(programs):
    programs("kinit", "printf 'kinit: Schl\\374ssel\\n' >&2; exit 1")
    with (
        pytest.raises(ClusterError, match="no Kerberos ticket") as caught,
        kerberos.logged_in("/etc/k", "me@R", "yarn.keytab"),
    ):
        pass
    assert caught.value.got.startswith("kinit: Schl")
