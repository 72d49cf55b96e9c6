"""A host whose name Open MPI does not take: the doctor says so."""

import socket

import pytest

from howdah.doctor import checks


@pytest.mark.parametrize(("name", "fits"), [("my_laptop_1", False), ("node-1.example", True)])
def test_a_host_name_that_open_mpi_does_not_take_is_named(monkeypatch, name, fits):
    loopback = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *names, **how: loopback)
    check = checks.check_hostname({})
    assert (check.status, name in check.found) == ("ok" if fits else "warn", True)
    assert fits or "`howdah train` does not need mpirun" in check.remedy
