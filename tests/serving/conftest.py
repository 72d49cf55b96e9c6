"""Published versions that tests serve: version N gives every text the label LABELS[N % 2]."""

import os
import signal

import pytest

from tests.runs.servers import Server, publish_version


@pytest.fixture(scope="session")
def base(tiny_model_dir) -> str:
    return tiny_model_dir


@pytest.fixture(scope="module")
def zoo(tmp_path_factory, base):
    """A directory with models/zoo, of versions 1 and 2."""
    place = tmp_path_factory.mktemp("zoo")
    for number in (1, 2):
        publish_version(place, base, number)
    return place


@pytest.fixture
def start(zoo, tmp_path):
    """Starts servers that end with the test."""
    servers = []

    def go(*words: str, place=zoo, **more) -> Server:
        servers.append(Server(place, tmp_path, *words, **more))
        servers[-1].wait_until_ready()
        return servers[-1]

    yield go
    for server in servers:
        server.end(signal.SIGKILL)
        assert "Traceback" not in server.output()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("0123456789abcdef-of-the-old-client\n0123456789abcdef-of-the-new-client\n")
    os.chmod(path, 0o600)
    return path
