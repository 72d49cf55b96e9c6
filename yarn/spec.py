"""What is asked of YARN for a job: made of the configuration and of what was shipped, nothing else.

Pure: no file, no network, no skein. `backend_skein` turns an `Application` into skein's words;
`howdah submit --dry-run` prints it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from howdah import storage
from howdah.config_model import Config
from howdah.errors import ConfigError

__all__ = ["Application", "Asked", "Shipment", "Source", "application", "refuse_own_paths", "tag"]

CONFIG = "run.yaml"
"""Name of the configuration in each container's working directory."""
SECRET = ".howdah.secret"
"""Name of the file there that holds the submission's secret: only the job's containers get it."""
HADOOP = "hadoop-conf"
"""Name there of the submitter's Hadoop settings, for nodes that give containers none."""
FINISHED = ".howdah.finished"
"""Made there by the driver once it has told YARN how the job ended."""
SUBMISSION = "HOWDAH_SUBMISSION"
"""Variable of the driver: the token of its submission, the same as in owner.json."""
ENVIRONMENT = "environment"
"""Name there of the unpacked Python environment."""
WORKER = "worker"
"""The service whose containers are the workers."""
TAG = "howdah"
"""A tag of every job."""
_MIB = 2**20
_RESERVED = (CONFIG, SECRET, HADOOP, FINISHED, ENVIRONMENT, "home", "tmp")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file for a container's working directory; `url` is one that all nodes see, or local."""

    url: str
    kind: Literal["file", "archive"] = "file"


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """What lies on the cluster's storage for the job's containers."""

    wheel: Source
    wheel_name: str
    environment: Source | None = None
    """None: the nodes have their own (`yarn.environment: path`)."""
    files: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    """`yarn.files`, by the names that they get."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One kind of container: resources, and the bash script that runs in it."""

    memory_mib: int
    vcores: int
    gpus: int
    script: str
    files: Mapping[str, Source]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Application:
    """A whole job."""

    name: str
    queue: str
    user: str | None
    """Whom it is submitted for; None: oneself."""
    node_label: str | None
    priority: int | None
    tags: tuple[str, ...]
    view_users: tuple[str, ...]
    modify_users: tuple[str, ...]
    page_users: tuple[str, ...]
    """Who sees the job's page, besides the owner."""
    file_systems: tuple[str, ...]
    """Those that delegation tokens are fetched for."""
    attempts: int
    workers: int
    nodes: tuple[str, ...]
    """Hosts that hold the dataset's blocks: asked for, not insisted on."""
    driver: Asked
    worker: Asked

    def as_dict(self) -> dict[str, Any]:
        """For --dry-run and --json."""
        return dataclasses.asdict(self)


def tag(run_directory: str) -> str:
    """The tag that tells applications of a run directory, however its path is written."""
    return f"howdah-run-{hashlib.sha256(_canonical(run_directory).encode()).hexdigest()[:16]}"


def _canonical(directory: str) -> str:
    head, slashes, path = directory.partition("://")
    parts = [part for part in path.split("/") if part]
    return head.lower() + slashes + "/".join(parts)


def application(
    config: Config,
    shipment: Shipment,
    *,
    config_file: str,
    secret_file: str,
    hadoop_file: str,
    nodes: Sequence[str] = (),
    secure: bool,
    token: str,
) -> Application:
    """What a job asks of YARN.

    Args:
        config_file, secret_file, hadoop_file: local paths of what becomes CONFIG, SECRET and
            (a .zip) HADOOP.
        nodes: hosts that hold the dataset's blocks.
        secure: whether the cluster has Kerberos.
        token: of this submission; in a tag of its own.
    """
    options = config.yarn
    files = {
        **shipment.files,
        shipment.wheel_name: shipment.wheel,
        CONFIG: Source(url=f"file://{config_file}"),
        SECRET: Source(url=f"file://{secret_file}"),
        HADOOP: Source(url=f"file://{hadoop_file}", kind="archive"),
    }
    if shipment.environment is not None:
        files[ENVIRONMENT] = shipment.environment
    return Application(
        name=config.run.name,
        queue=options.queue or "default",
        user=config.run.user,
        node_label=options.node_label,
        priority=options.priority,
        tags=tuple(
            dict.fromkeys((TAG, tag(config.run.directory), f"howdah-{token}", *options.tags))
        ),
        view_users=tuple(options.view_users),
        modify_users=tuple(options.modify_users),
        # Without Kerberos nobody is known to the ResourceManager's proxy: its pages are open too.
        page_users=tuple(options.view_users) if secure else ("*",),
        file_systems=file_systems(config),
        attempts=options.attempts,
        workers=options.workers,
        nodes=tuple(nodes),
        driver=Asked(
            memory_mib=_mib(options.driver.memory),
            vcores=options.driver.vcores,
            gpus=0,
            script=_driver_script(config, shipment),
            files=files,
            # Java's own, for skein's master: /tmp may not be executable, or not ours to write; from
            # Java 16 on its pages look into java.util by leave alone (Java 8 reads no JDK_...).
            env={
                "_JAVA_OPTIONS": "-Djava.io.tmpdir=$PWD/tmp",
                "JDK_JAVA_OPTIONS": "--add-opens=java.base/java.util=ALL-UNNAMED",
                SUBMISSION: token,
            },
        ),
        worker=Asked(
            memory_mib=_mib(options.worker.memory),
            vcores=options.worker.vcores,
            gpus=options.worker.gpus,
            script=_preamble(config, shipment) + f"exec {_python(config)} -m yarn agent\n",
            files=files,
            env={},
        ),
    )


def file_systems(config: Config) -> tuple[str, ...]:
    """The HDFS clusters of a job's paths ("hdfs://host:port"), each once."""
    found = {}
    for path in _paths(config).values():
        scheme, slashes, rest = (path or "").partition("://")
        if slashes and scheme.lower() in ("hdfs", "webhdfs", "swebhdfs"):
            authority = rest.partition("/")[0]
            if authority:
                found[f"{scheme}://{authority}"] = None
    return tuple(found)


def _paths(config: Config) -> dict[str, str]:
    """Paths that containers use, by their keys."""
    found = {
        "run.directory": config.run.directory,
        "data.dataset": config.data.dataset,
        "model.base": config.model.base,
        "checkpoint.directory": config.checkpoint.directory,
    }
    return {key: path for key, path in found.items() if path}


def refuse_own_paths(config: Config, *, local_model: bool) -> None:
    """Plain paths are this machine's: containers do not see them.

    Args:
        local_model: whether model.base is a directory here (else it is a hub's name).
    Raises:
        ConfigError: with every such key at once.
    """
    own = {key: path for key, path in _paths(config).items() if "://" not in path}
    if not local_model:
        own.pop("model.base", None)
    if own:
        raise ConfigError(
            "on YARN a path must be one that every node sees",
            where=", ".join(own),
            expected="hdfs://..., or file://... on a file system that all nodes mount",
            got=", ".join(own.values()),
            remedy="put the data on HDFS (hdfs dfs -put), and name it there",
        )


def file_names(config: Config) -> dict[str, str]:
    """`yarn.files` by the names that they get in a container.

    Raises:
        ConfigError: two of the same name, or one that is in use.
    """
    found: dict[str, str] = {}
    for path in config.yarn.files:
        name = storage.name(path)
        if name in found or name in _RESERVED or not name or name.startswith(".skein"):
            raise ConfigError(
                "a file's name is taken in the containers",
                where="yarn.files",
                expected=f"names of their own, none of {', '.join(_RESERVED)}",
                got=f"{found.get(name, name)}, {path}",
                remedy="rename it",
            )
        found[name] = path
    return found


# ------------------------------------------------------------------------------------- scripts
def _python(config: Config) -> str:
    if config.yarn.environment == "archive":
        return f"./{ENVIRONMENT}/bin/python"
    return shlex.quote(config.yarn.python or "")


def _preamble(config: Config, shipment: Shipment) -> str:
    """What each container's script begins with.

    A home and temporary files of its own (/tmp may be noexec, the user may have no home), and a
    cache that the job's containers on a node share: YARN's directory of the application there.
    """
    return (
        'export HOME="$PWD/home" TMPDIR="$PWD/tmp"\n'
        'mkdir -p "$HOME" "$TMPDIR"\n'
        f'test -d "$HADOOP_CONF_DIR" || export HADOOP_CONF_DIR="$PWD/{HADOOP}"\n'
        f'export PYTHONPATH="$PWD/{shipment.wheel_name}"\n'
        'export PYTHONUNBUFFERED=1 HOWDAH_CACHE="${LOCAL_DIRS%%,*}/howdah"\n'
    )


def _driver_script(config: Config, shipment: Shipment) -> str:
    """The driver beside skein's master, its parent.

    A driver that dies without a word takes the master with it: YARN starts the next attempt, and
    tells what the driver said last. By its exit code skein would end the whole application.
    """
    return _preamble(config, shipment) + (
        "unset _JAVA_OPTIONS JDK_JAVA_OPTIONS\n"
        f"{_python(config)} -m yarn driver\n"
        "code=$?\n"
        f"if test ! -e {FINISHED}; then\n"
        '  log="${LOG_DIRS%%,*}"\n'
        # YARN shows the end of such a file in the application's diagnostics.
        '  tail -c 3000 "$log/application.driver.log" > "$log/driver.stderr"\n'
        "  kill -KILL $PPID\n"
        "fi\n"
        "exit $code\n"
    )


def _mib(size: int) -> int:
    return -(-size // _MIB)
