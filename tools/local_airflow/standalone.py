"""A whole Airflow on this machine's loopback: database, scheduler, DAG processor, triggerer, API.

    airflow = Standalone(directory, dags=directory_of_dags)
    airflow.start()
    airflow.client.trigger("howdah_finetune", {"data.source": "texts.csv"})
    airflow.stop()

`airflow standalone` leaves its children behind when it is terminated, restarts nothing, and lets
log servers listen on every interface. So the components are started here, each as a child that ends
with its parent. All files are in the home: settings (rewritten by each start), secrets, the
database, logs. It is for trials and tests, never for production: one user, a password in a file.
"""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from howdah.errors import ClusterError, UsageError
from tools.local_airflow.api import AirflowApi
from tools.local_airflow.components import COMPONENTS, Components
from tools.local_airflow.home import USER, Home
from tools.local_airflow.postgres import Postgres
from tools.local_airflow.servers import HOST, end_all, free_port, is_free, send

Say = Callable[[str], None]


def _quiet(_line: str) -> None:
    pass


class Standalone:
    """An Airflow whose state is a directory: a `home`, its `components`, a database, a `client`.

    Args:
        directory: AIRFLOW_HOME; created if it does not exist.
        dags: the directory of DAG files.
        port: port of the pages and the API; None: a free one.
        env: more variables for its processes, tasks included.
        settings: more settings for airflow.cfg, {section: {key: value}}.
        durable: False for tests, see `Postgres`.
        say: called with lines of progress.

    The files in `files`, such as reports of runs, are served to browsers, read-only and on
    loopback. So are those in `remote_files`, a directory of any storage, if it is set before the
    start.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        dags: Path | str,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        durable: bool = True,
        say: Say = _quiet,
    ) -> None:
        self.home = Home(directory, env)
        self.components = Components(self.home, lambda: self.client)
        self.postgres = Postgres(self.home.directory / "postgres", durable=durable)
        self.dags = Path(os.path.abspath(dags))
        self.requested_port = port
        self.port: int | None = None
        self.files = self.home.directory / "output" / "runs"
        self.remote_files: str | None = None
        self.settings = settings or {}
        self.say = say
        self.new_password = False
        self.ending = False
        self._client: AirflowApi | None = None

    @property
    def url(self) -> str:
        """URL of its pages."""
        return f"http://{HOST}:{self.port}"

    @property
    def files_url(self) -> str:
        """URL of the directory `files`."""
        return self.components.file_servers.url("files")

    @property
    def remote_files_url(self) -> str:
        """URL of the directory `remote_files`."""
        return self.components.file_servers.url("remote-files")

    @property
    def client(self) -> AirflowApi:
        """A client of its REST API."""
        if self._client is None or self._client.url != self.url:
            self._client = AirflowApi(self.url, USER, self.home.password)
        return self._client

    def check_port(self) -> None:
        """Refuse a used port before the slow steps of a start.

        Raises:
            UsageError: another process listens there.
        """
        if self.requested_port is None or is_free(self.requested_port):
            return
        raise UsageError(
            f"port {self.requested_port} is taken",
            where=HOST,
            remedy="choose another one (make airflow PORT=8081), or end its process"
            f" (ss -ltnp 'sport = :{self.requested_port}')",
        )

    def start(self) -> Standalone:
        """Start everything and wait until all components are healthy; on failure, stop all.

        Must be called by the main thread: the components end with the thread that starts them.

        Raises:
            UsageError: the port is taken.
            ClusterError: another Airflow runs in this home; a component does not become healthy.
        """
        self.home.lock()
        try:
            left = end_all(self.home.processes, grace=5)
            if left:
                raise ClusterError(
                    "processes of an earlier start do not end",
                    where=str(self.home.directory),
                    got=str(left),
                )
            self.check_port()
            self.port = self.requested_port or free_port()

            self.say("database: PostgreSQL on loopback")
            self.postgres.start()
            self.new_password = self.home.make_password()
            database = self.postgres.url("airflow")
            settings = self.home.settings(url=self.url, dags=self.dags, database=database)
            self.home.write_settings(settings, self.settings)
            self.home.note_holder(self.url)
            self.home.migrate(fresh=self.postgres.create_database("airflow"), say=self.say)

            self.say("components: " + ", ".join(COMPONENTS) + " (about 20 s)")
            begun = datetime.datetime.now(datetime.UTC)
            self.components.start()
            self.files.mkdir(parents=True, exist_ok=True)
            self.components.serve("files", str(self.files))
            if self.remote_files is not None:
                self.components.serve("remote-files", self.remote_files)
            self.components.wait_healthy(begun)
        except BaseException:
            self.stop()
            raise
        return self

    def wait_dags(self, dag_ids: Collection[str], seconds: float = 120.0) -> None:
        """Wait until these DAGs can be triggered.

        Raises:
            ClusterError: a DAG file cannot be loaded (with its traceback), or a DAG is missing
                after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while missing := set(dag_ids) - set(self.client.dag_ids()):
            if broken := self.client.import_errors():
                raise ClusterError(
                    "a DAG file cannot be loaded",
                    where=broken[0]["filename"],
                    got=broken[0]["stack_trace"],
                )
            if time.monotonic() > deadline:
                raise ClusterError("DAGs are missing", where=str(self.dags), got=str(missing))
            time.sleep(0.3)

    def stop(self, *, remove: bool = False) -> None:
        """End everything, running tasks first; what does not end in time is killed.

        Args:
            remove: delete the home, database included.
        """
        self.ending = True
        self.components.stop(self.say)
        end_all(self.home.processes, grace=3)
        self.postgres.stop()
        if remove:
            self.postgres.remove()
            shutil.rmtree(self.home.directory, ignore_errors=True)
        self.home.unlock()
        self.ending = False

    def hurry(self) -> None:
        """Kill all processes that `stop` still waits for."""
        send(self.home.processes(), signal.SIGKILL)

    def __enter__(self) -> Standalone:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
