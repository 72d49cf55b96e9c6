"""Shows the files below a directory of any storage to browsers of this machine, for reading alone.

    python -m tools.local_airflow.file_pages hdfs://localhost:8020/howdah/runs --port 8090

The NameNode's own pages give a report to be saved, not to be read; and a mini cluster has none, for
Hadoop's jars on Maven come without them. It listens on loopback, and asks for no password: so
it answers only where the browser itself says that it means this machine. (A page on the internet
may have its own name point to 127.0.0.1 and read on from there: DNS rebinding. The browser then
sends that name.)
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
"""What a browser of this machine calls it; with any port: it may come through a tunnel."""


class Pages(ThreadingHTTPServer):
    """A server of what lies below `root`.

    Args:
        root: a directory, plain, file:// or hdfs://; it need not be there yet.
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
        asked = urlsplit(self.path).path
        parts = [part for part in unquote(asked).split("/") if part]
        # A name is a name: nothing leads out of the root, or to another storage.
        if any(part in (".", "..") or "\0" in part for part in parts):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        path = storage.join(self.server.root, *parts) if parts else self.server.root
        try:
            if not storage.is_dir(path):
                self._file(path, body)
            elif not asked.endswith("/"):
                self.send_response(HTTPStatus.MOVED_PERMANENTLY)
                self.send_header("Location", f"/{quote('/'.join(parts))}/")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._page(parts, path, body)
        except NotFound:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such file")
        except PermissionDenied:
            self.send_error(HTTPStatus.FORBIDDEN)
        except HowdahError as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, "the storage", render(error))

    def _is_for_us(self) -> bool:
        asked = self.headers.get_all("Host") or []
        name = re.sub(r":\d*$", "", asked[0].strip()) if len(asked) == 1 else ""
        return name.lower() in _OWN_NAMES

    def _refuse(self, body: bool) -> None:
        asked = self.headers.get("Host")
        text = (
            "This server shows files of this machine to this machine's own browsers, by the"
            f" addresses {', '.join(sorted(_OWN_NAMES))} alone. It was asked as"
            f" {'nothing' if asked is None else ascii(asked)}: such a name may be that of a page"
            " elsewhere which has it point here (DNS rebinding).\n"
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
            rows.append(f'<li><a href="./{quote(name)}">{html.escape(name)}</a>{size}</li>')
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            f"<h1>{title}</h1><ul>{''.join(rows)}</ul></html>"
        ).encode()
        self._head("text/html; charset=utf-8", len(page))
        if body:
            self.wfile.write(page)

    def _head(self, kind: str, length: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()


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
