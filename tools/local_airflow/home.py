"""An AIRFLOW_HOME: its lock, settings, keys and password, the migration of its database."""

from __future__ import annotations

import configparser
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from howdah.core.processes import locked, marked
from howdah.errors import ClusterError
from tools.local_airflow.postgres import write_secret
from tools.local_airflow.servers import HOST

USER = "admin"
MARK = "HOWDAH_AIRFLOW"
"""Environment variable of every process of a local Airflow: its home."""

Settings = dict[str, dict[str, Any]]


class Home:
    """The directory that holds the state of one Airflow.

    Args:
        directory: AIRFLOW_HOME; made if it is not there.
        extra_env: more for the environment of its processes, tasks included.
    """

    def __init__(self, directory: Path | str, extra_env: Mapping[str, str] | None = None) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.extra_env = dict(extra_env or {})
        self._lock: TextIO | None = None

    # --------------------------------------------------------------------------------- the lock
    def lock(self) -> None:
        """Take the home for this process; the kernel releases it when the process ends.

        Raises:
            ClusterError: another process runs an Airflow in it.
        """
        file = open(self.directory / "lock", "a+", encoding="utf-8")  # noqa: SIM115
        if not locked(file):
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise ClusterError(
                "another Airflow already runs in this home",
                where=str(self.directory),
                got=holder or None,
            )
        self._lock = file

    def note_holder(self, url: str) -> None:
        """Write into the lock file which process holds it, and where its pages are."""
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"process {os.getpid()}, {url}\n")
        self._lock.flush()

    def unlock(self) -> None:
        """Release the home; nothing if this process does not hold it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ------------------------------------------------------------------------------ environment
    @property
    def environment(self) -> dict[str, str]:
        """The environment of its processes, without any setting of another Airflow."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("AIRFLOW_", "_AIRFLOW_"))
        }
        # Tasks reach the API server by HTTP on loopback, without a proxy.
        around = ",".join(filter(None, (kept.get("no_proxy"), HOST, "localhost")))
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "no_proxy": around,
            "NO_PROXY": around,
            "PYTHONUNBUFFERED": "1",
            "AIRFLOW_HOME": str(self.directory),
            **self.extra_env,
            MARK: str(self.directory),
        }

    def processes(self) -> list[int]:
        """Ids of all processes of an Airflow in this home, tasks included."""
        return marked(MARK, str(self.directory))

    def log_of(self, component: str) -> Path:
        """The file with a component's output."""
        return self.directory / "logs" / "components" / f"{component}.log"

    # --------------------------------------------------------------------------------- password
    @property
    def password_file(self) -> Path:
        """Users and their passwords, readable to the owner alone."""
        return self.directory / "passwords.json"

    @property
    def password(self) -> str:
        """The password of the user `admin`."""
        return json.loads(self.password_file.read_text())[USER]

    def make_password(self) -> bool:
        """Give the user `admin` a password unless it has one; whether it was created."""
        if self.password_file.is_file():
            return False
        write_secret(self.password_file, json.dumps({USER: secrets.token_urlsafe(9)}) + "\n")
        return True

    # --------------------------------------------------------------------------------- settings
    def settings(self, *, url: str, dags: Path, database: str) -> Settings:
        """The contents of airflow.cfg.

        Args:
            url: URL of the pages, on loopback.
            dags: the directory of DAG files.
            database: SQLAlchemy's URL.
        """
        keys, address = self._keys(), urlsplit(url)
        return {
            "core": {
                "dags_folder": dags,
                "load_examples": False,
                "executor": "LocalExecutor",
                "parallelism": 8,
                # A whole configuration is longer than the 4,096 characters of a task's rendered
                # field that Airflow keeps by default.
                "max_templated_field_length": 16_384,
                "fernet_key": keys["fernet"],
                "simple_auth_manager_users": f"{USER}:admin",
                "simple_auth_manager_passwords_file": self.password_file,
                "execution_api_server_url": f"{url}/execution/",
            },
            "database": {"sql_alchemy_conn": database},
            "api": {
                "host": address.hostname,
                "port": address.port,
                "base_url": url,
                "workers": 1,
                "secret_key": keys["api"],
            },
            "api_auth": {"jwt_secret": keys["jwt"]},
            "logging": {"base_log_folder": self.directory / "logs"},
            "dag_processor": {"parsing_processes": 1},
            # A machine that also trains answers slowly at times; a task that gets no answer fails.
            "workers": {"execution_api_timeout": 60},
            "usage_data_collection": {"enabled": False},
        }

    def _keys(self) -> dict[str, str]:
        """Keys that all components share and that outlive a restart; made by the first start."""
        path = self.directory / "secrets.json"
        if path.is_file():
            return json.loads(path.read_text())
        from cryptography.fernet import Fernet

        made = {
            "fernet": Fernet.generate_key().decode(),
            "jwt": secrets.token_urlsafe(48),
            "api": secrets.token_urlsafe(32),
        }
        write_secret(path, json.dumps(made) + "\n")
        return made

    def write_settings(self, settings: Settings, more: Mapping[str, Mapping[str, Any]]) -> None:
        """Write airflow.cfg, readable to the owner alone: it has the database's password.

        Args:
            more: values that override `settings`.
        """
        config = configparser.RawConfigParser()
        for section in {**settings, **more}:
            values = {**settings.get(section, {}), **more.get(section, {})}
            # Airflow would take a "%" in a path for a reference to another key.
            config[section] = {k: str(v).replace("%", "%%") for k, v in values.items()}
        path = self.directory / "airflow.cfg"
        write_secret(path, "# Written anew by each start.\n")
        with open(path, "a", encoding="utf-8") as file:
            config.write(file)

    def write_policy(self) -> Path:
        """Write a policy for an Airflow of one user, and return its path.

        Only the user who started this Airflow logs in, and may do anything as that user anyway.
        """
        path = self.directory / "policy.yaml"
        path.write_text(
            "# For one user: everyone who can log in may act as the user that runs this Airflow.\n"
            "# `howdah config policy` explains the policy of an Airflow with several users.\n"
            "trusted: true\n"
        )
        return path

    # --------------------------------------------------------------------------------- database
    def migrate(self, *, fresh: bool, say: Callable[[str], None]) -> None:
        """Make the database's tables, unless this version of Airflow has made them.

        Args:
            fresh: the database is empty.
            say: called with a line of progress.
        Raises:
            ClusterError: `airflow db migrate` failed; the message has the end of its log.
        """
        done, now = self.directory / "migrated", version("apache-airflow-core")
        if not fresh and done.is_file() and done.read_text() == now:
            return
        say(f"database: tables of Airflow {now} (10 s, the first time)")
        log = self.log_of("migrate")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            code = subprocess.run(
                [sys.executable, "-P", "-m", "airflow", "db", "migrate"],
                env=self.environment, cwd=self.directory, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
        if code:
            raise ClusterError(
                "`airflow db migrate` failed", where=str(log), got=log.read_text()[-3000:]
            )
        done.write_text(now)
