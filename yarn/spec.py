"""What a job asks of YARN, computed from the configuration and the shipped files alone.

Pure: no file, no network, no skein. `skein_backend` converts an `Application` to skein's objects;
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
from howdah.config.model import Config
from howdah.errors import ConfigError
from howdah.packaging import cluster_paths
from howdah.process import isolation

CONFIG = "run.yaml"
"""Name of the configuration in each container's working directory."""
SECRET = ".howdah.secret"
"""Name of the file there with the job's secrets (jobs/secret_file.py)."""
HADOOP = "hadoop-conf"
"""Name there of the submitter's Hadoop settings, for nodes that give containers none."""
FINISHED = ".howdah.finished"
"""Name of an empty file there: the driver has reported the job's end to YARN."""
SUBMISSION = "HOWDAH_SUBMISSION"
"""Variable of the driver: the token of its submission, the same as in owner.json."""
ENVIRONMENT = "environment"
"""Name there of the unpacked Python environment."""
WORKER = "worker"
"""The service whose containers are the workers."""
TAG = "howdah"
"""A tag that every job has."""
MASTER_ENV = {
    "_JAVA_OPTIONS": "-Djava.io.tmpdir=$PWD/tmp",
    "JDK_JAVA_OPTIONS": "--add-opens=java.base/java.util=ALL-UNNAMED",
}
"""For skein's master, a Java program: /tmp may not be executable or writable, and from Java 16 on
its pages reflect on java.util only if it is opened (Java 8 ignores JDK_*)."""
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
    wheel_sha256: str
    """Of the wheel: containers run it only if it is the one that was submitted."""
    environment: Source | None = None
    """None: the nodes have their own (`yarn.environment: path`)."""
    files: Mapping[str, Source] = dataclasses.field(default_factory=dict)
    """`yarn.files`, by the names that they get."""


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
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
    """The proxied user; None: the submitter."""
    node_label: str | None
    priority: int | None
    tags: tuple[str, ...]
    view_users: tuple[str, ...]
    modify_users: tuple[str, ...]
    page_users: tuple[str, ...]
    """Users, besides the owner, who may see the job's page."""
    file_systems: tuple[str, ...]
    """URLs of the HDFS clusters that need delegation tokens."""
    attempts: int
    workers: int
    nodes: tuple[str, ...]
    """Hosts that hold the dataset's blocks: preferred, not required."""
    driver: ContainerRequest
    worker: ContainerRequest
    restarts: int = 0
    """How often skein starts a worker anew that has failed; -1: always. 0: the driver decides."""

    def as_dict(self) -> dict[str, Any]:
        """For --dry-run and --json."""
        return dataclasses.asdict(self)


def tag(run_directory: str) -> str:
    """The tag of a run directory's applications, the same however its path is written."""
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
        # Without Kerberos the ResourceManager's proxy knows no user names: the page is open.
        page_users=tuple(options.view_users) if secure else ("*",),
        file_systems=file_systems(config),
        attempts=config.job.attempts,
        workers=config.job.workers,
        nodes=tuple(nodes),
        driver=ContainerRequest(
            memory_mib=_mib(options.driver.memory),
            vcores=options.driver.vcores,
            gpus=0,
            script=_driver_script(config, shipment),
            files=files,
            env={**MASTER_ENV, SUBMISSION: token},
        ),
        worker=ContainerRequest(
            memory_mib=_mib(config.job.worker.memory),
            vcores=config.job.worker.vcores,
            gpus=config.job.worker.gpus,
            script=preamble(shipment) + f"exec {words(config, 'howdah.yarn', 'agent')}\n",
            files=files,
            env={},
        ),
    )


def file_systems(config: Config) -> tuple[str, ...]:
    """The HDFS clusters of a job's paths ("hdfs://host:port"), each once."""
    found = {}
    for path in cluster_paths.of_ranks(config).values():
        scheme, slashes, rest = path.partition("://")
        if slashes and scheme.lower() in storage.HDFS_SCHEMES:
            authority = rest.partition("/")[0]
            if authority:
                found[f"{scheme}://{authority}"] = None
    return tuple(found)


def refuse_local_paths(config: Config, *, local_model: bool) -> None:
    """Refuse paths on this machine, which containers cannot read.

    Args:
        local_model: whether model.base is a directory here (else it is a hub's name).
    Raises:
        ConfigError: with every such key at once.
    """
    paths = cluster_paths.of_ranks(config)
    if not local_model:
        paths.pop("model.base", None)
    cluster_paths.refuse_local(paths)


def file_names(config: Config) -> dict[str, str]:
    """{name in a container: path} of `yarn.files`.

    Raises:
        ConfigError: two have the same name, or a name is reserved.
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
def python(config: Config) -> str:
    """The interpreter in a container, as its script names it."""
    return {
        "archive": f"./{ENVIRONMENT}/bin/python",
        "path": shlex.quote(config.yarn.python or ""),
    }[config.yarn.environment]


def words(config: Config, name: str, *arguments: str) -> str:
    """The command of a container's script that runs a module of Howdah's."""
    return " ".join(isolation.module(name, *arguments, python=python(config)))


def preamble(shipment: Shipment) -> str:
    """The beginning of each container's script.

    It sets a home and a temporary directory of the container's own (/tmp may be noexec, the user
    may have no home), and a cache that the job's containers on a node share: YARN's directory of
    the application there.

    It verifies the wheel's hash, because YARN pins the size and time of localised files, not their
    contents. The environment's archive is unpacked by YARN itself.
    """
    return (
        f'if test "$(sha256sum < {shipment.wheel_name})" != "{shipment.wheel_sha256}  -"; then\n'
        f'  echo "howdah: {shipment.wheel_name} is not the one that was submitted" >&2\n'
        "  exit 5\n"
        "fi\n"
        'export HOME="$PWD/home" TMPDIR="$PWD/tmp"\n'
        'mkdir -p "$HOME" "$TMPDIR"\n'
        f'test -d "$HADOOP_CONF_DIR" || export HADOOP_CONF_DIR="$PWD/{HADOOP}"\n'
        f'export PYTHONPATH="$PWD/{shipment.wheel_name}"\n'
        f"export PYTHONSAFEPATH={isolation.SAFE_PATH} PYTHONUNBUFFERED=1"
        ' HOWDAH_CACHE="${LOCAL_DIRS%%,*}/howdah"\n'
    )


def _driver_script(config: Config, shipment: Shipment) -> str:
    """The driver's script; skein's master, its parent, starts it.

    If the driver dies before it has reported the job's end, the script kills the master, so that
    YARN starts the next attempt and shows the driver's last lines. skein would end the whole
    application because of the driver's exit code.
    """
    return preamble(shipment) + (
        "unset _JAVA_OPTIONS JDK_JAVA_OPTIONS\n"
        f"{words(config, 'howdah.yarn', 'driver')}\n"
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
