"""A read-only server of the files below a directory of any storage, for browsers on this machine.

    python -m tools.local_airflow.file_pages hdfs://localhost:8020/howdah/runs --port 8090

The NameNode's pages make a browser save a report instead of showing it, and a mini cluster lacks
them, since Hadoop's jars on Maven come without them. This server listens on loopback without a
password, so it answers only requests whose Host header names this machine: a page on the internet
may let its name point to 127.0.0.1 and read from there (DNS rebinding), and then the browser sends
that name.
"""

from __future__ import annotations

import argparse
import html
import mimetypes
import re
import shutil
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

from howdah import storage
from howdah.errors import HowdahError, NotFound, PermissionDenied, render
from tools.local_airflow.servers import HOST

_TEXT = {".json", ".jsonl", ".log", ".txt", ".yaml", ".yml"}
_OWN_NAMES = {"127.0.0.1", "localhost", "[::1]"}
"""Names of this machine in a Host header, with any port, since the request may use a tunnel."""


class Pages(ThreadingHTTPServer):
    """A server of the files below `root`.

    Args:
        root: a directory, plain, file:// or hdfs://; it need not exist yet.
        port: on loopback; 0: any.
    """

    daemon_threads = True

    def __init__(self, root: str, port: int) -> None:
        self.root = root.rstrip("/")
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Pages

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if not self._is_for_us():
            self._refuse(body)
            return
        url_path = urlsplit(self.path).path
        names = unquote(url_path, errors="surrogateescape")
        parts = [part for part in names.split("/") if part]
        # No name may lead out of the root, or to another storage.
        if any(part in (".", "..") or "\0" in part for part in parts):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        path = storage.join(self.server.root, *parts) if parts else self.server.root
        try:
            if not storage.is_dir(path):
                self._file(path, body)
            elif not url_path.endswith("/"):
                self.send_response(HTTPStatus.MOVED_PERMANENTLY)
                self.send_header("Location", f"/{_quoted('/'.join(parts))}/")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._page(parts, path, body)
        except NotFound:
            self.send_error(HTTPStatus.NOT_FOUND, "this file does not exist")
        except PermissionDenied:
            self.send_error(HTTPStatus.FORBIDDEN)
        except HowdahError as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, "the storage", render(error))

    def _is_for_us(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        name = re.sub(r":\d*$", "", hosts[0].strip()) if len(hosts) == 1 else ""
        return name.lower() in _OWN_NAMES

    def _refuse(self, body: bool) -> None:
        host = self.headers.get("Host")
        text = (
            f"This server answers only at {', '.join(sorted(_OWN_NAMES))}. The request's Host is"
            f" {'missing' if host is None else ascii(host)}: such a name may belong to a page on"
            " the internet that lets it point to this machine (DNS rebinding).\n"
        ).encode()
        self.send_response(HTTPStatus.FORBIDDEN)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(text)

    def _file(self, path: str, body: bool) -> None:
        length = storage.size(path)
        with storage.open_read(path) as file:
            self._head(_kind(path), length)
            if body:
                shutil.copyfileobj(file, self.wfile)

    def _page(self, parts: list[str], path: str, body: bool) -> None:
        title = html.escape("/" + "/".join(parts))
        rows = ['<li><a href="../">../</a></li>'] if parts else []
        for entry in storage.list_dir(path):
            name = entry.name + ("/" if entry.is_dir else "")
            size = "" if entry.is_dir else f" ({entry.size:,} bytes)"
            rows.append(f'<li><a href="./{_quoted(name)}">{html.escape(name)}</a>{size}</li>')
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            f"<h1>{title}</h1><ul>{''.join(rows)}</ul></html>"
        ).encode("utf-8", "replace")
        self._head("text/html; charset=utf-8", len(page))
        if body:
            self.wfile.write(page)

    def _head(self, kind: str, length: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()


def _quoted(name: str) -> str:
    """A name for an address; the bytes of a file's name need not be UTF-8."""
    return quote(name.encode("utf-8", "surrogateescape"))


def _kind(path: str) -> str:
    ending = "." + storage.name(path).rpartition(".")[2]
    if ending in _TEXT:
        return "text/plain; charset=utf-8"
    kind = mimetypes.guess_type(storage.name(path))[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def main() -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", help="the directory")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    with Pages(arguments.root, arguments.port) as pages:
        pages.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
