"""A private PostgreSQL server in a directory, on loopback, that ends with its parent.

It needs only Debian's packages, and neither uses nor changes Debian's database cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from howdah.errors import ClusterError
from tools.local_airflow.servers import HOST, Server, free_port

USER = "howdah"
_START_SECONDS = 60.0  # to detect a hang
_STOP_SECONDS = 20.0
_DEBIAN = "/usr/lib/postgresql"
_STATE_OF_DEBIAN = "/var/lib/postgresql"


def programs() -> Path:
    """The directory of `initdb` and `postgres` of the newest version.

    Raises:
        ClusterError: PostgreSQL is not installed.
    """
    initdbs = sorted(Path(_DEBIAN).glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    if initdbs:
        return initdbs[-1].parent
    if on_path:
        return Path(os.path.realpath(on_path)).parent
    raise ClusterError(
        "PostgreSQL is not installed",
        where=f"{_DEBIAN}/*/bin, PATH",
        remedy="make setup (Debian: apt-get install postgresql)",
    )


class Postgres:
    """A database server whose data are in a directory.

    PostgreSQL refuses to run as root. For root it runs as Debian's user `postgres`; if that user
    cannot reach the directory, the data are below /var/lib/postgresql instead (see `data`).

    Args:
        directory: directory of data and log; created if it does not exist.
        durable: False for tests: a crash of the machine may lose the database.
    """

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.durable = durable
        self.port: int | None = None
        self._child: Server | None = None
        self._account = _account()
        self.data = self._place()

    def _place(self) -> Path:
        """The data directory: in `directory`, if the server's user can reach it."""
        if self._account is None:
            return self.directory / "data"
        self.directory.mkdir(parents=True, exist_ok=True)
        here = ["test", "-x", str(self.directory)]
        if subprocess.run([*self._as_user(), *here], check=False).returncode == 0:
            return self.directory / "data"
        digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
        return Path(_STATE_OF_DEBIAN) / f"howdah-{digest}"

    def _as_user(self) -> list[str]:
        """Prefix of a command that runs it as the server's user."""
        if self._account is None:
            return []
        options = [f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}"]
        return ["setpriv", *options, "--clear-groups", "--"]

    @property
    def exists(self) -> bool:
        """Whether the databases were created."""
        return (self.data / "PG_VERSION").is_file()

    def url(self, database: str, driver: str = "postgresql+psycopg2") -> str:
        """SQLAlchemy's URL of a database, password included: not for logs."""
        return f"{driver}://{USER}:{self._password()}@{HOST}:{self.port}/{database}"

    def _password(self) -> str:
        return (self.directory / "password").read_text().strip()

    def start(self) -> Postgres:
        """Create the databases if necessary, start the server, and wait until it answers.

        Must be called by the main thread: the server ends with the thread that has started it.

        Raises:
            ClusterError: the server does not start; with the end of its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.exists:
            self._make()
        self.port = free_port()
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "64MB",
            **({} if self.durable else {"fsync": "off", "full_page_writes": "off"}),
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self._child = Server(
            "postgres",
            [*self._as_user(), str(programs() / "postgres"), "-D", str(self.data), *options],
            log=self.directory / "postgres.log",
            # PostgreSQL's "fast shutdown": it rolls transactions back and disconnects clients.
            death_signal=signal.SIGINT,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if not self._child.alive or time.monotonic() > deadline:
                tail = self._child.tail()
                self.stop()
                raise ClusterError(
                    "PostgreSQL does not start",
                    where=str(self.directory / "postgres.log"),
                    got=tail,
                )
            time.sleep(0.05)
        return self

    def _make(self) -> None:
        """Run `initdb`, with a private superuser and password."""
        with contextlib.suppress(FileNotFoundError):  # files of an interrupted run
            shutil.rmtree(self.data)
        self.data.mkdir(mode=0o700, parents=True)
        password = secrets.token_hex(16)
        write_secret(self.directory / "password", password + "\n")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(password)
            file.flush()
            if self._account is not None:
                os.chown(self.data, self._account.pw_uid, self._account.pw_gid)
                os.chown(file.name, self._account.pw_uid, self._account.pw_gid)
            options = ["--auth=scram-sha-256", f"--username={USER}", f"--pwfile={file.name}"]
            options += ["--encoding=UTF8", "--locale=C.UTF-8"]
            options += [] if self.durable else ["--no-sync"]
            done = subprocess.run(
                [*self._as_user(), str(programs() / "initdb"), "-D", str(self.data), *options],
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            self.remove()
            raise ClusterError(
                "PostgreSQL's initdb failed",
                where=str(self.data),
                got=(done.stderr or done.stdout).strip()[-2000:],
                remedy="is there disk space, and is the directory writable?",
            )

    @contextlib.contextmanager
    def _connection(self) -> Iterator:
        import psycopg2

        connection = psycopg2.connect(
            host=HOST, port=self.port, user=USER, password=self._password(), dbname="postgres"
        )
        connection.autocommit = True
        try:
            yield connection
        finally:
            connection.close()

    def _answers(self) -> bool:
        import psycopg2

        try:
            with self._connection():
                return True
        except psycopg2.OperationalError:
            return False

    def create_database(self, name: str) -> bool:
        """Create a database unless it exists; whether it was created.

        Args:
            name: lower-case letters, digits and underscores.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(name)
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone():
                return False
            cursor.execute(f"CREATE DATABASE {name}")
            return True

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._child is not None and self._child.alive

    def stop(self) -> None:
        """End the server: it disconnects its clients and keeps all committed data."""
        if self._child is not None:
            self._child.end(signal.SIGINT, _STOP_SECONDS)
            self._child = None

    def remove(self) -> None:
        """Delete the databases."""
        self.stop()
        for path in (self.data, self.directory):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)


def _account() -> pwd.struct_passwd | None:
    """The account of the server; None: that of this process.

    Raises:
        ClusterError: this is root, and the user `postgres` does not exist.
    """
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise ClusterError(
            "PostgreSQL does not run as root, and the user `postgres` does not exist",
            remedy="make setup (Debian's package creates that user), or work as another user",
        ) from None


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(temporary, path)
