"""A host whose name Open MPI does not take: said before a training, and by the one that fails."""

import socket

import pytest

from howdah.doctor import checks
from howdah.training.launch import outcome


@pytest.mark.parametrize(("name", "fits"), [("my_laptop_1", False), ("node-1.example", True)])
def test_a_host_name_that_open_mpi_does_not_take_is_named(monkeypatch, name, fits):
    loopback = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *names, **how: loopback)
    found = checks.check_hostname({})
    assert (found.status, name in found.found) == ("ok" if fits else "warn", True)
    assert fits or "--launcher torchrun" in found.remedy
    remedy = outcome._launcher_remedy("mpirun")
    assert (name in remedy and "--launcher torchrun" in remedy) != fits
    assert "howdah doctor" in outcome._launcher_remedy("horovodrun")
