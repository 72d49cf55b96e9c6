"""The socket that servers listen on."""

import socket

import pytest

from howdah.errors import UsageError
from training.deployment.listening import listen


def test_accepted_connections_send_what_is_written_at_once():
    with listen("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()):
            connection, _ = listener.accept()
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}") as refused:
            listen("127.0.0.1", port)
    assert "port 0 takes a free one" in refused.value.remedy
