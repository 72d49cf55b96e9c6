"""The files of an AIRFLOW_HOME: settings, keys, the password; and the environment beside it."""

from __future__ import annotations

import configparser
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools.children import HOST
from tools.postgres import write_secret

Settings = dict[str, dict[str, Any]]


def environment(home: Path) -> dict[str, str]:
    """The environment of an Airflow's processes: no setting of another Airflow gets in."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("AIRFLOW_", "_AIRFLOW_"))
    }
    # Tasks ask the API server by HTTP: that is no matter for a proxy.
    around = ",".join(filter(None, (kept.get("no_proxy"), HOST, "localhost")))
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
        "no_proxy": around,
        "NO_PROXY": around,
        "PYTHONUNBUFFERED": "1",
        "AIRFLOW_HOME": str(home),
    }


def password_file(home: Path) -> Path:
    """Users and their passwords, readable to the owner alone."""
    return home / "passwords.json"


def make_password(home: Path, user: str) -> bool:
    """Give the user a password unless there is one; whether it was made."""
    path = password_file(home)
    if path.is_file():
        return False
    write_secret(path, json.dumps({user: secrets.token_urlsafe(9)}) + "\n")
    return True


def _keys(home: Path) -> dict[str, str]:
    """Keys that all components share and that outlive a restart; made by the first start."""
    path = home / "secrets.json"
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


def settings(home: Path, *, url: str, dags: Path, user: str, database: str) -> Settings:
    """What airflow.cfg holds.

    Args:
        url: of the pages, on loopback.
        dags: the directory of DAG files.
        user: who may log in, as an administrator.
        database: SQLAlchemy's URL.
    """
    keys, place = _keys(home), urlsplit(url)
    return {
        "core": {
            "dags_folder": dags,
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": 8,
            "fernet_key": keys["fernet"],
            "simple_auth_manager_users": f"{user}:admin",
            "simple_auth_manager_passwords_file": password_file(home),
            "execution_api_server_url": f"{url}/execution/",
        },
        "database": {"sql_alchemy_conn": database},
        "api": {
            "host": place.hostname,
            "port": place.port,
            "base_url": url,
            "workers": 1,
            "secret_key": keys["api"],
        },
        "api_auth": {"jwt_secret": keys["jwt"]},
        "logging": {"base_log_folder": home / "logs"},
        "dag_processor": {"parsing_processes": 1},
        # A machine that also trains is slow to answer at times; a task that is not heard is failed.
        "workers": {"execution_api_timeout": 60},
        "usage_data_collection": {"enabled": False},
    }


def write_settings(home: Path, wanted: Settings, more: Mapping[str, Mapping[str, Any]]) -> None:
    """airflow.cfg, readable to the owner alone: it has the database's password.

    Args:
        more: what wins over `wanted`.
    """
    config = configparser.RawConfigParser()
    for section in {**wanted, **more}:
        values = {**wanted.get(section, {}), **more.get(section, {})}
        config[section] = {key: str(value) for key, value in values.items()}
    path = home / "airflow.cfg"
    write_secret(path, "# Written anew by each start.\n")
    with open(path, "a", encoding="utf-8") as file:
        config.write(file)
