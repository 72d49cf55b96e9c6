"""What a browser of this machine sees of a directory of any storage."""

import http.client
import os
import threading
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import pytest

from howdah import storage
from tools.local_airflow.file_pages import Pages


@pytest.fixture(params=["file", "memory"])
def pages(request, tmp_path):
    """(root, get) of a server; get(path) -> (type, text)."""
    parent = str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}"
    storage.write_whole(storage.join(parent, "secret"), b"hush")
    root = storage.join(parent, "runs")
    server = Pages(root, 0)
    assert server.server_address[0] == "127.0.0.1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    opener = build_opener(ProxyHandler({}))

    def get(path):
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        with opener.open(url, timeout=60) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    get.server = server
    yield root, get
    server.shutdown()
    server.server_close()


def test_a_directory_is_listed_and_a_report_is_a_page(pages):
    root, get = pages
    storage.write_whole(storage.join(root, "a run", "report.html"), b"<p>accuracy</p>")
    storage.write_whole(storage.join(root, "a run", "run.json"), b"{}")
    storage.write_whole(storage.join(root, "a run", "a&b.bin"), b"")
    assert 'href="./a%20run/"' in get("/")[1]
    kind, listing = get("/a%20run")  # led to the directory's own address
    assert kind.startswith("text/html")
    assert 'href="../"' in listing and 'href="./report.html"' in listing
    assert 'href="./a%26b.bin">a&amp;b.bin<' in listing
    kind, text = get("/a%20run/report.html")
    assert (kind, text) == ("text/html; charset=utf-8", "<p>accuracy</p>")
    assert get("/a%20run/run.json") == ("text/plain; charset=utf-8", "{}")
    assert get("/a%20run/a%26b.bin")[0] == "application/octet-stream"


@pytest.mark.parametrize("pages", ["file"], indirect=True)
def test_names_that_are_not_utf8_are_listed_and_read(pages):
    root, get = pages
    directory = os.path.join(os.fsencode(root), b"caf\xe9")
    os.makedirs(directory)
    with open(os.path.join(directory, b"na\xefve.txt"), "wb") as file:
        file.write(b"read")
    assert 'href="./caf%E9/"' in get("/")[1]
    assert 'href="./na%EFve.txt"' in get("/caf%E9")[1]
    assert get("/caf%E9/na%EFve.txt")[1] == "read"


@pytest.mark.parametrize(
    "path", ["/nothing", "/../secret", "/%2e%2e/secret", "/a/..%2f..%2fsecret"]
)
def test_nothing_leads_out_of_it(pages, path):
    _, get = pages
    with pytest.raises(HTTPError) as caught:
        get(path)
    assert caught.value.code == 404


def _asked_as(server, *hosts):
    """(status, text) for a request with these Host headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest("GET", "/run.json", skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "127.0.0.1:{port}", "[::1]:8090", "LocalHost"]
)
def test_this_machine_s_own_names_are_answered(pages, host):
    root, get = pages
    storage.write_whole(storage.join(root, "run.json"), b"{}")
    address = host.format(port=get.server.server_port)
    assert _asked_as(get.server, address) == (200, "{}")


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("evil.example",),
        ("evil.example:{port}",),
        ("127.0.0.1.evil.example",),
        ("localhost.evil.example:{port}",),
        ("evil.example#localhost",),
        ("localhost@evil.example",),
        ("localhost:80:80",),
        ("evil.example", "localhost"),
        ("localhost", "evil.example"),
        ("evil\x1b[2J",),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(pages, hosts):
    root, get = pages
    storage.write_whole(storage.join(root, "run.json"), b"hush")
    port = get.server.server_port
    status, text = _asked_as(get.server, *(host.format(port=port) for host in hosts))
    assert status == 403 and "hush" not in text
    assert "DNS rebinding" in text and "localhost" in text and "\x1b" not in text
