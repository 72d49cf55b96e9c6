"""The socket that servers listen on."""

import socket

import pytest

from howdah.config.options.serve import ServeSection
from howdah.errors import UsageError
from howdah.serving.deployment.listening import listen
from howdah.serving.deployment.ray_serve import require_keys


def test_accepted_connections_send_what_is_written_at_once():
    with listen("127.0.0.1", 0, guarded=False) as listener:
        with socket.create_connection(listener.getsockname()):
            connection, _ = listener.accept()
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_is_taken_is_named():
    with listen("127.0.0.1", 0, guarded=False) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}") as refused:
            listen("127.0.0.1", port, guarded=False)
    assert "port 0 takes a free one" in refused.value.remedy


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "127.0.0.1.example.org"])
def test_no_listener_is_opened_to_other_machines_without_a_guard(host):
    with pytest.raises(UsageError, match="would need no token"):
        listen(host, 0, guarded=False)


def test_ray_serve_refuses_every_key_of_the_section_that_it_does_not_read():
    """Whatever keys the section gets later: only those that the server names are taken."""
    for key, field in ServeSection.model_fields.items():
        values = {"token_file": "t", "open": True, "host": "::1", "threads": 2,
                  "memory": 2**31, "max_texts": 7}  # fmt: skip
        value = values.get(key) or field.get_default() + 1
        section = ServeSection.model_validate({key: value})
        if key in ("host", "port", "open", "threads", "token_file", "max_texts"):
            require_keys(section)
        else:
            with pytest.raises(UsageError, match=f"serve.{key}"):
                require_keys(section)
