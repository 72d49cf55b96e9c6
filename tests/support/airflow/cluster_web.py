"""A ResourceManager's web server for tests of what watches applications, and what it answers."""

import contextlib
import http.server
import json
import threading

from howdah.airflow.application import watching as app
from howdah.airflow.application.ownership import TaskKey
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.resourcemanager import ResourceManager

APP = "application_1_0001"
KEY = TaskKey("dag", "manual 1", "train")


def job(lines, events=(), attempt=1):
    return {
        "application": APP,
        "attempt": attempt,
        "lines": [[number, f"line {number}"] for number in lines],
        "events": [{"time": when, "what": f"event {when}"} for when in events],
    }


def fetched(state="RUNNING", status=None, **yarn):
    return app.ApplicationReport(yarn={"id": APP, "state": state, **yarn}, status=status)


@contextlib.contextmanager
def serving():
    """A ResourceManager's web server: `.answers` path -> (status, type, body)."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(answers[self.path.partition("?")[0]])

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(server.puts)

        def _send(self, answer):
            status, kind, body = answer() if callable(answer) else answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url, server.answers = f"http://127.0.0.1:{server.server_address[1]}", answers
    settings = {"yarn.resourcemanager.webapp.address": server.url.removeprefix("http://")}
    server.manager = ResourceManager(hadoop_conf.HadoopConf(None, settings), patience=0.0)
    yield server
    server.shutdown()


PAGE = f"/proxy/{APP}/pages/job/status.json"


def report(web, **more):
    yarn = {"id": APP, "state": "RUNNING", "trackingUrl": f"{web.url}/proxy/{APP}/", **more}
    web.answers[f"/ws/v1/cluster/apps/{APP}"] = (
        200, "application/json", json.dumps({"app": yarn}),
    )  # fmt: skip
