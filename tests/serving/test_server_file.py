"""server.json: where a server on a cluster listens, as clients may believe it."""

import http.server
import json
import threading

import pytest

from howdah import storage
from howdah.errors import HowdahError, ModelError, NotFound
from howdah.models.server_file import ServerAddress, path_of, read, write
from howdah.serving import container
from howdah.yarn import server, spec

TOKEN, NEXT, OTHER = b"0123456789abcdef", b"0123456789abcdeg", b"fedcba9876543210"
HERE = ServerAddress(
    url="http://node:41", application="application_1_2", container="c_1", started=1.5
)


def test_an_address_is_believed_if_it_is_signed_with_the_token(tmp_path):
    path = path_of(str(tmp_path))
    with pytest.raises(NotFound):
        read(path, [TOKEN])
    write(path, HERE, [TOKEN, NEXT])
    assert read(path, [OTHER, TOKEN]) == read(path, [NEXT]) == read(path, []) == HERE
    with pytest.raises(ModelError, match="not signed with this token"):
        read(path, [OTHER])
    whole = storage.read_json(path)
    moved = whole["value"].replace("node:41", "evil:41")
    storage.write_whole(path, json.dumps({**whole, "value": moved}).encode())
    with pytest.raises(ModelError, match="not signed"):
        read(path, [TOKEN])
    write(path, HERE, [])  # of a server without a token
    with pytest.raises(ModelError, match="not signed"):
        read(path, [TOKEN])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"value": "{}", "seals": null}', b'{"value'])
def test_another_file_is_an_error_that_names_it(tmp_path, data):
    path = path_of(str(tmp_path))
    storage.write_whole(path, data)
    with pytest.raises(HowdahError) as caught:
        read(path, [])
    assert "server.json" in str(caught.value)


def test_both_sides_of_a_container_agree_on_the_name_of_the_configuration():
    assert container.CONFIG == spec.CONFIG


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "https://node:41", "http://node:41/x", "http://u:p@node:41",
     "http://node", "ftp://node:41", "http://node:41\r\nX: y", 7],
)  # fmt: skip
def test_only_an_address_of_http_is_one(tmp_path, url):
    path = path_of(str(tmp_path))
    value = json.dumps({"url": url, "application": "a", "container": "c", "started": 1.5})
    storage.write_whole(path, json.dumps({"value": value, "seals": []}).encode())
    with pytest.raises(ModelError, match="address is damaged"):
        read(path, [])


def test_a_redirect_of_the_address_is_not_followed():
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(302 if self.path == "/health" else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as stand_in:
        thread = threading.Thread(target=stand_in.serve_forever)
        thread.start()
        try:
            assert server._health(f"http://127.0.0.1:{stand_in.server_port}") is None
        finally:
            stand_in.shutdown()
            thread.join()
    assert paths == ["/health"]
