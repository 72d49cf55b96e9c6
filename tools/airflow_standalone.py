"""A whole Airflow on this machine's loopback: database, scheduler, DAG processor, triggerer, API.

    airflow = Standalone(home, dags=directory)
    airflow.start()
    airflow.client.trigger("howdah_finetune", {"data.source": "texts.csv"})
    airflow.stop()

`airflow standalone` leaves its children behind when it is terminated, restarts nothing, and lets
log servers listen on every interface; so the components are started here, each as a child that ends
with its parent. Everything lies in the home: settings (written anew by each start), secrets, the
database, logs. For trials and tests, never for production: one user, a password in a file.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from howdah.errors import ClusterError, UsageError
from howdah.processes import marked
from tools import airflow_home
from tools.airflow_api import AirflowApi
from tools.children import HOST, Child, end_marked, free_port, is_free
from tools.postgres import Postgres

COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    # Their log servers would listen on every interface; the API server reads the files itself.
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
# What /monitor/health calls them, with their heartbeat.
_HEALTH = {
    "scheduler": ("scheduler", "latest_scheduler_heartbeat"),
    "triggerer": ("triggerer", "latest_triggerer_heartbeat"),
    "dag-processor": ("dag_processor", "latest_dag_processor_heartbeat"),
}
USER = "admin"
MARK = "HOWDAH_AIRFLOW"
"""In the environment of every process of an Airflow that was started here: its home."""
_START_SECONDS = 240.0  # only to notice that it does not come
_END_SECONDS = 30.0  # for tasks to end what they have started
_REST_SECONDS = 10.0
Say = Callable[[str], None]


def _quiet(_line: str) -> None:
    pass


_ROOT = Path(__file__).resolve().parent.parent


class Standalone:
    """An Airflow whose state is a directory.

    Args:
        home: AIRFLOW_HOME; made if it is not there.
        dags: the directory of DAG files.
        port: of the pages and the API; None: a free one.
        env: more for its processes, tasks included.
        settings: more of airflow.cfg, {section: {key: value}}.
        durable: False for tests, see `Postgres`.
        say: told of progress.

    What lies in `files` is served to browsers, reports of runs for instance: for reading alone, on
    loopback like everything else; likewise what lies in `remote_files`, a directory of any storage,
    if it is set before the start.
    """

    def __init__(
        self,
        home: Path | str,
        *,
        dags: Path | str,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        durable: bool = True,
        say: Say = _quiet,
    ) -> None:
        self.home = Path(os.path.abspath(home))
        self.dags = Path(os.path.abspath(dags))
        self.wanted_port = port
        self.port: int | None = None
        self.files = self.home / "output" / "runs"
        self.remote_files: str | None = None
        self._ports: dict[str, int] = {}
        self.settings = settings or {}
        self.say = say
        self.new_password = False
        self.extra_env = dict(env or {})
        self.ending = False
        self._children: dict[str, Child] = {}
        self._client: AirflowApi | None = None
        self._lock: Any = None
        self.home.mkdir(parents=True, exist_ok=True)
        self.postgres = Postgres(self.home / "postgres", durable=durable)

    # ----------------------------------------------------------------------------------- what it is
    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://{HOST}:{self.port}"

    @property
    def files_url(self) -> str:
        """Where what lies in `files` can be read."""
        return f"http://{HOST}:{self._ports['files']}"

    @property
    def remote_files_url(self) -> str:
        """Where what lies in `remote_files` can be read."""
        return f"http://{HOST}:{self._ports['remote-files']}"

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        return {**airflow_home.environment(self.home), **self.extra_env, MARK: str(self.home)}

    @property
    def password_file(self) -> Path:
        """Users and their passwords, readable to the owner alone."""
        return airflow_home.password_file(self.home)

    @property
    def password(self) -> str:
        """Of the user `admin`."""
        return json.loads(self.password_file.read_text())[USER]

    @property
    def client(self) -> AirflowApi:
        """A client of its REST API."""
        if self._client is None or self._client.url != self.url:
            self._client = AirflowApi(self.url, USER, self.password)
        return self._client

    def log_of(self, component: str) -> Path:
        """The file with a component's output."""
        return self.home / "logs" / "components" / f"{component}.log"

    # -------------------------------------------------------------------------------------- start
    def start(self) -> Standalone:
        """Start everything, and wait until all components are well; or leave nothing running.

        To be called by the main thread: the components end with the thread that starts them.

        Raises:
            UsageError: the port is taken.
            ClusterError: another one runs in this home; a component does not come, with its words.
        """
        self._take_home()
        try:
            left = end_marked(MARK, str(self.home), grace=5)
            if left:
                raise ClusterError(
                    "processes of an earlier start do not end", where=str(self.home), got=str(left)
                )
            self.check_port()
            self.port = self.wanted_port or free_port()
            self.say("database: PostgreSQL on loopback")
            self.postgres.start()
            self._write_settings()
            self._migrate()
            self.say("components: " + ", ".join(COMPONENTS) + " (about 20 s)")
            begun = _now()
            for name in COMPONENTS:
                self._spawn(name)
            self._serve_files()
            self._wait_well(begun, COMPONENTS)
        except BaseException:
            self.stop()
            raise
        return self

    def _take_home(self) -> None:
        """One runner a home: the kernel's lock goes with this process."""
        self._lock = open(self.home / "lock", "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            got = self._lock.read().strip()
            self._lock.close()
            self._lock = None
            raise ClusterError(
                "an Airflow runs in this home already",
                where=str(self.home),
                got=got or None,
                remedy="use that one, end it, or name another home",
            ) from None

    def check_port(self) -> None:
        """Refuse a port that is taken, before anything else takes time.

        Raises:
            UsageError: somebody listens there.
        """
        if self.wanted_port is None or is_free(self.wanted_port):
            return
        raise UsageError(
            f"port {self.wanted_port} is taken",
            where=HOST,
            expected="a port that nobody listens on",
            remedy="name another one (make airflow PORT=8081), or end what listens there "
            f"(ss -ltnp 'sport = :{self.wanted_port}')",
        )

    def _write_settings(self) -> None:
        """airflow.cfg, the password file, and who runs here."""
        self.new_password = airflow_home.make_password(self.home, USER)
        wanted = airflow_home.settings(
            self.home,
            url=self.url,
            dags=self.dags,
            user=USER,
            database=self.postgres.url("airflow"),
        )
        airflow_home.write_settings(self.home, wanted, self.settings)
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"process {os.getpid()}, {self.url}\n")
        self._lock.flush()

    def _migrate(self) -> None:
        """Make the database's tables, unless this version of Airflow has."""
        from importlib.metadata import version

        fresh = self.postgres.create_database("airflow")
        done, now = self.home / "migrated", version("apache-airflow-core")
        if not fresh and done.is_file() and done.read_text() == now:
            return
        self.say(f"database: tables of Airflow {now} (10 s, the first time)")
        log = self.log_of("migrate")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            code = subprocess.run(
                [sys.executable, "-P", "-m", "airflow", "db", "migrate"],
                env=self.env, cwd=self.home, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
        if code:
            raise ClusterError(
                "`airflow db migrate` failed", where=str(log), got=log.read_text()[-3000:]
            )
        done.write_text(now)

    def _spawn(self, name: str) -> None:
        self._children[name] = Child(
            name,
            [sys.executable, "-P", "-m", "airflow", *COMPONENTS[name]],
            log=self.log_of(name),
            env=self.env,
            cwd=self.home,
        )

    def _serve_files(self) -> None:
        """Plain file servers, which have nothing to do with Airflow's own components."""
        self.files.mkdir(parents=True, exist_ok=True)
        self._serve("files")
        if self.remote_files is not None:
            self._serve("remote-files")

    def _serve(self, name: str) -> None:
        if name not in self._ports:
            self._ports[name] = self._kept_port(name)
        port = str(self._ports[name])
        words = ["-P", "-m", "http.server", "--bind", HOST, "--directory", str(self.files), port]
        if name == "remote-files":  # a program of this repository, found from its root
            words = ["-m", "tools.file_pages", str(self.remote_files), "--port", port]
        self._children[name] = Child(
            name, [sys.executable, *words], log=self.log_of(name), env=self.env, cwd=_ROOT
        )

    def _kept_port(self, name: str) -> int:
        """The port of an earlier start, if it is free: links that Airflow has kept lead there."""
        file = self.home / "ports.json"
        kept = json.loads(file.read_text()) if file.is_file() else {}
        port = kept.get(name)
        if port is None or not is_free(port):
            port = free_port()
            file.write_text(json.dumps({**kept, name: port}) + "\n")
        return port

    def _wait_well(self, begun: datetime.datetime, names: Any) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while problem := self.problem(begun, names):
            ended = [name for name in names if not self._children[name].alive]
            if ended or time.monotonic() > deadline:
                self.complain(ended[0] if ended else problem.split(":")[0], problem)
            time.sleep(0.3)

    def complain(self, name: str, problem: str) -> None:
        """Raise what is wrong with a component, with its last words.

        Raises:
            ClusterError: always.
        """
        raise ClusterError(
            f"Airflow's {name} does not run",
            where=str(self.log_of(name)),
            got=f"{problem}\n{self._children[name].tail()}",
        )

    def components(self) -> list[str]:
        """The names of all children."""
        return list(self._children)

    def dead(self) -> list[str]:
        """Those that have ended by themselves."""
        return [name for name, child in self._children.items() if not child.alive]

    def problem(self, since: datetime.datetime | None = None, names: Any = COMPONENTS) -> str:
        """What is not well, as "component: what"; empty: all is well.

        Args:
            since: heartbeats before that do not count.
            names: the components asked for.
        """
        for name in names:
            if name not in self._children or not self._children[name].alive:
                return f"{name}: it does not run"
        try:
            health = self.client.health()
        except ClusterError as error:
            return f"api-server: {error.got}"
        for name in names:
            if name not in _HEALTH:
                continue
            key, beat = _HEALTH[name]
            found = health.get(key) or {}
            if found.get("status") != "healthy":
                return f"{name}: {found.get('status') or 'not known yet'}"
            if since and datetime.datetime.fromisoformat(found[beat]) < since:
                return f"{name}: no heartbeat yet"
        return ""

    def wait_dags(self, wanted: Any, seconds: float = 120.0) -> None:
        """Wait until these DAGs can be triggered.

        Raises:
            ClusterError: a DAG file cannot be loaded, with its words; or they do not come.
        """
        deadline = time.monotonic() + seconds
        while missing := set(wanted) - set(self.client.dag_ids()):
            if broken := self.client.import_errors():
                raise ClusterError(
                    "a DAG file cannot be loaded",
                    where=broken[0]["filename"],
                    got=broken[0]["stack_trace"],
                )
            if time.monotonic() > deadline:
                raise ClusterError("DAGs do not come", where=str(self.dags), got=str(missing))
            time.sleep(0.3)

    # ------------------------------------------------------------------------------------- faults
    def pid(self, component: str) -> int:
        """The process id of a component."""
        return self._children[component].pid

    def kill(self, component: str, *, group: bool = False) -> None:
        """SIGKILL a component; with `group` also its workers (for the scheduler: running tasks)."""
        child = self._children[component]
        child.send(signal.SIGKILL, group=group)
        child.wait()

    def restart(self, component: str) -> None:
        """Start a component that was killed or ended, and wait until it is well."""
        child = self._children[component]
        if child.alive:
            child.end(signal.SIGTERM, _REST_SECONDS)
        begun = _now()
        if component in self._ports:
            self._serve(component)
            return
        self._spawn(component)
        self._wait_well(begun, [component])

    # --------------------------------------------------------------------------------------- stop
    def stop(self, *, remove: bool = False) -> None:
        """End everything, running tasks first; what does not end in time is killed.

        Args:
            remove: delete the home, database included.
        """
        self.ending = True
        scheduler = self._children.pop("scheduler", None)
        if scheduler is not None:
            # Its workers hand the signal on to their tasks (on_kill), and report while the API
            # server is still there; alone, it would wait for tasks for as long as they take.
            self.say("ending: scheduler and running tasks")
            scheduler.end(signal.SIGTERM, _END_SECONDS, group=True)
        if self._children:
            self.say("ending: " + ", ".join(self._children))
        for child in self._children.values():
            child.send(signal.SIGTERM)
        for child in self._children.values():
            child.end(signal.SIGTERM, _REST_SECONDS)
        self._children.clear()
        end_marked(MARK, str(self.home), grace=3)
        self.postgres.stop()
        if remove:
            import shutil

            self.postgres.remove()
            shutil.rmtree(self.home, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self.ending = False

    def hurry(self) -> None:
        """While it is being stopped: kill what still runs, instead of waiting for it."""
        for pid in marked(MARK, str(self.home)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Standalone:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
