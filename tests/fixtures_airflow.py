"""A real Airflow for the tests marked `airflow`: a whole one on loopback, a home for dag.test().

Airflow reads its settings when it is first imported. So a home of our own is set here, before any
test module can import it: no test reads or writes the Airflow of whoever runs the tests.
"""

import atexit
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _own_home():
    """A home for this process and what it starts, removed at its end."""
    for name in [key for key in os.environ if key.startswith(("AIRFLOW_", "_AIRFLOW_"))]:
        del os.environ[name]
    home, owner = tempfile.mkdtemp(prefix="howdah-airflow-home-"), os.getpid()

    def remove():
        if os.getpid() == owner:  # not in a child that was forked
            shutil.rmtree(home, ignore_errors=True)

    atexit.register(remove)
    os.environ["AIRFLOW_HOME"] = home
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(ROOT / "dags")
    os.environ["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] = "False"
    return Path(home)


AIRFLOW_HOME = _own_home()


@pytest.fixture(scope="session")
def airflow_home():
    """AIRFLOW_HOME of this process with a migrated SQLite database, for `dag.test()`; a Path.

    `dag.test()` does not raise: assert the state of the run that it returns.
    """
    from airflow.utils import db

    db.initdb()
    return AIRFLOW_HOME


@pytest.fixture(scope="session")
def airflow_standalone():
    """A whole Airflow on loopback with PostgreSQL and the DAGs of `dags/`.

    `.url`, `.home`, `.env`, `.password`; `.api(method, path, json=)`, `.trigger`, `.state`, `.run`,
    `.task`, `.tasks`, `.log`, `.xcom`, `.links`, `.wait_task`, `.wait_run`, `.mark`, `.clear`,
    `.connection` (tools/airflow_api.py); `.kill(component)`, `.restart(component)`, `.pid`; and
    `.add_dag(name, text)` for a DAG file of a test's own. The Connection howdah_default is this
    machine.
    """
    from tools.airflow_standalone import Standalone

    class Airflow(Standalone):
        def __getattr__(self, name):  # what a user asks of it
            return getattr(self.client, name)

        def add_dag(self, name, text):
            """Add a DAG file, and wait until its DAGs are there; their ids."""
            known = set(self.client.dag_ids())
            (self.dags / f"{name}.py").write_text(text)
            self.wait_dags([name])
            return sorted(set(self.client.dag_ids()) - known)

    # Not below pytest's directory: as root the database is another user's, who must get there.
    home = Path(tempfile.mkdtemp(prefix="howdah-airflow-"))
    home.chmod(0o711)
    dags = home / "dags"
    dags.mkdir()
    for file in sorted((ROOT / "dags").glob("*.py")):
        (dags / file.name).symlink_to(file)
    airflow = Airflow(
        home,
        dags=dags,
        durable=False,
        # A DAG file that a test adds is seen at once; a file that is known is not parsed again.
        settings={
            "dag_processor": {"refresh_interval": 2, "min_file_process_interval": 3600},
            "scheduler": {"scheduler_idle_sleep_time": 0.5},
        },
    )
    try:
        airflow.start()
        airflow.connection(
            "howdah_default",
            {
                "backend": "local",
                "run_root": str(airflow.files),
                "files_url": airflow.files_url,
                "working_directory": str(ROOT),
            },
        )
        yield airflow
    finally:
        airflow.stop(remove=True)


@pytest.fixture
def browser(tmp_path, request):
    """A headless Chromium (tests/browser.py); its screenshots go to build/screenshots/."""
    from tests.browser import Browser

    pictures = request.config.rootpath / "build" / "screenshots"
    page = Browser(pictures, tmp_path / "profile")
    yield page
    page.quit()


@pytest.fixture
def mlflow_server(tmp_path):
    """The URL of a real MLflow tracking server on loopback."""
    from tests.waiting import wait_until
    from tools.children import HOST, Child, free_port

    place = tmp_path / "mlflow"
    place.mkdir()
    port = free_port()
    child = Child(
        "mlflow",
        [
            sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port),
            "--workers", "1", "--backend-store-uri", f"sqlite:///{place}/mlflow.db",
            "--artifacts-destination", str(place / "artifacts"),
        ],
        log=place / "server.log",
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )  # fmt: skip

    def serves():
        assert child.alive, child.tail()
        with socket.socket() as line:
            return line.connect_ex((HOST, port)) == 0

    try:
        wait_until(serves, 240)
        yield f"http://{HOST}:{port}"
    finally:
        child.end(signal.SIGTERM, 10)


@pytest.fixture
def connection(monkeypatch):
    """Makes a Connection (an environment variable, as Airflow's own tests do); its id."""

    def make(conn_id, extra=None, conn_type="howdah", **fields):
        told = {"conn_type": conn_type, "extra": extra or {}, **fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(told))
        return conn_id

    return make


@pytest.fixture
def hook(connection, tmp_path):
    """A hook on this machine with these fields of its Connection."""
    from howdah.airflow.hook import HowdahHook

    def make(**extra):
        extra = {"environment": {"HOWDAH_CACHE": str(tmp_path / "cache")}} | extra
        return HowdahHook(connection("howdah_test", {"working_directory": str(tmp_path)} | extra))

    return make


@pytest.fixture
def endless(tmp_path):
    """A command that never ends by itself: nobody writes the pipe that its configuration is."""
    os.mkfifo(tmp_path / "config.yaml")
    return ["config", "check", "--json", "--config", str(tmp_path / "config.yaml")]
