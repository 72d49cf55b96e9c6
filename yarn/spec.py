"""A job's request to YARN, computed from only the configuration and the shipped files.

These are pure functions without files, network or skein. `skein_backend` converts an
`ApplicationRequest` to skein's objects; `howdah submit --dry-run` prints it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from howdah import storage
from howdah.config.model import Config
from howdah.errors import ConfigError
from howdah.hadoop import web
from howdah.packaging import cluster_paths
from howdah.process import isolation

CONFIG = "run.yaml"
"""Name of the configuration in each container's working directory."""
SECRET = ".howdah.secret"
"""Name of the file with the job's secrets in that directory (jobs/secret_file.py)."""
HADOOP = "hadoop-conf"
"""Name of the submitter's Hadoop settings there, for nodes that do not give containers any."""
FINISHED = ".howdah.finished"
"""Name of a file there, written once the driver has reported the job's end to YARN."""
SUBMISSION = "HOWDAH_SUBMISSION"
"""Variable of the driver: the token of its submission, the same as in its record."""
ENVIRONMENT = "environment"
"""Name of the unpacked Python environment in that directory."""
WORKER = "worker"
"""Name of skein's service whose containers are the workers."""
TAG = "howdah"
"""Tag that every job has."""
MASTER_ENV = {
    "_JAVA_OPTIONS": "-Djava.io.tmpdir=$PWD/tmp",
    "JDK_JAVA_OPTIONS": "--add-opens=java.base/java.util=ALL-UNNAMED",
}
"""Variables for skein's master, a Java program: /tmp may not be executable or writable, and from
Java 16 on its pages can only reflect on java.util if that is opened (Java 8 ignores JDK_*)."""
_RESERVED = (CONFIG, SECRET, HADOOP, FINISHED, ENVIRONMENT, "home", "tmp")


@dataclass(frozen=True, kw_only=True)
class ContainerFile:
    """A file for a container's working directory; `url` is local, or readable from all nodes."""

    url: str
    kind: Literal["file", "archive"] = "file"


@dataclass(frozen=True, kw_only=True)
class YarnShipment:
    """The files on the cluster's storage for the job's containers."""

    wheel: ContainerFile
    wheel_name: str
    wheel_sha256: str
    """Hash of the submitted wheel; containers refuse to run any other."""
    environment: ContainerFile | None = None
    """The Python environment; None: the nodes have one (`yarn.python`)."""
    files: Mapping[str, ContainerFile] = dataclasses.field(default_factory=dict)
    """The files of `yarn.files`, by their names in containers."""


@dataclass(frozen=True, kw_only=True)
class ContainerRequest:
    """One kind of container: its resources, and the bash script that runs in it."""

    memory_mib: int
    vcores: int
    gpus: int
    script: str
    files: Mapping[str, ContainerFile]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ApplicationRequest:
    """The request for a whole job or server."""

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
    """Users besides the owner who may see the job's page."""
    file_systems: tuple[str, ...]
    """URLs of the HDFS clusters that need delegation tokens."""
    attempts: int
    workers: int
    nodes: tuple[str, ...]
    """Preferred hosts, which hold the dataset's blocks."""
    driver: ContainerRequest
    worker: ContainerRequest
    restarts: int = 0
    """How often skein restarts a failed worker; -1: always; 0: the driver decides instead."""

    def as_dict(self) -> dict[str, Any]:
        """The output of --dry-run and --json."""
        return dataclasses.asdict(self)


def tag(run_directory: str) -> str:
    """The tag of a run directory's applications, which does not depend on its path's spelling."""
    return f"howdah-run-{hashlib.sha256(_canonical(run_directory).encode()).hexdigest()[:16]}"


def claim_tag(token: str) -> str:
    """The tag of one submission's application. Its random token ensures that no application has it
    before that submission."""
    return f"howdah-{token}"


def _canonical(directory: str) -> str:
    head, slashes, path = directory.partition("://")
    parts = [part for part in path.split("/") if part]
    return head.lower() + slashes + "/".join(parts)


def application(
    config: Config,
    shipment: YarnShipment,
    *,
    config_file: str,
    secret_file: str,
    hadoop_file: str,
    nodes: Sequence[str] = (),
    secure: bool,
    token: str,
) -> ApplicationRequest:
    """A job's request to YARN.

    Args:
        config_file, secret_file, hadoop_file: local paths of the files that become CONFIG, SECRET
            and (a .zip) HADOOP.
        nodes: hosts that hold the dataset's blocks.
        secure: True if the cluster has Kerberos.
        token: this submission's token, which one of its tags contains.
    """
    options = config.yarn
    files = localised(shipment, hadoop_file, {CONFIG: config_file, SECRET: secret_file})
    return ApplicationRequest(
        name=config.run.name,
        **common(config, config.run.directory, secure=secure, token=token),
        file_systems=file_systems(cluster_paths.of_ranks(config).values()),
        attempts=config.job.attempts,
        workers=config.job.workers,
        nodes=tuple(nodes),
        driver=ContainerRequest(
            memory_mib=mib(options.driver.memory),
            vcores=1,
            gpus=0,
            script=_driver_script(config, shipment),
            files=files,
            env={**MASTER_ENV, SUBMISSION: token},
        ),
        worker=ContainerRequest(
            memory_mib=mib(config.job.worker.memory),
            vcores=config.job.worker.vcores,
            gpus=config.job.worker.gpus,
            script=preamble(shipment) + f"exec {words(config, 'howdah.yarn', 'agent')}\n",
            files=files,
            env={},
        ),
    )


def localised(
    shipment: YarnShipment, hadoop_file: str, private: Mapping[str, str]
) -> dict[str, ContainerFile]:
    """The files of a container's working directory.

    Args:
        hadoop_file: local path of the .zip that becomes HADOOP.
        private: {name in the directory: local path} of files for this submission alone.
    """
    files = {
        **shipment.files,
        shipment.wheel_name: shipment.wheel,
        **{name: ContainerFile(url=f"file://{path}") for name, path in private.items()},
        HADOOP: ContainerFile(url=f"file://{hadoop_file}", kind="archive"),
    }
    if shipment.environment is not None:
        files[ENVIRONMENT] = shipment.environment
    return files


def common(config: Config, directory: str, *, secure: bool, token: str) -> dict[str, Any]:
    """The fields of an `ApplicationRequest` that jobs and servers share.

    Args:
        directory: the run directory, or the served model's.
        secure: True if the cluster has Kerberos.
        token: this submission's token.
    """
    options = config.yarn
    tags = (TAG, tag(directory), claim_tag(token), *options.tags)
    return {
        "queue": options.queue or "default",
        "user": config.run.user,
        "node_label": options.node_label,
        "priority": options.priority,
        "tags": tuple(dict.fromkeys(tags)),
        "view_users": tuple(options.view_users),
        "modify_users": tuple(options.modify_users),
        # Without Kerberos the ResourceManager's proxy does not know users, so the page is open.
        "page_users": tuple(options.view_users) if secure else ("*",),
    }


def file_systems(paths: Iterable[str]) -> tuple[str, ...]:
    """The HDFS clusters of paths ("hdfs://host:port"), each once."""
    urls = {}
    for path in paths:
        scheme, slashes, rest = path.partition("://")
        if slashes and scheme.lower() in storage.HDFS_SCHEMES:
            authority = rest.partition("/")[0]
            if authority:
                urls[f"{scheme}://{authority}"] = None
    return tuple(urls)


def file_names(config: Config) -> dict[str, str]:
    """{name in a container: path} of `yarn.files`.

    Raises:
        ConfigError: two files have the same name, or a name is reserved.
    """
    files: dict[str, str] = {}
    for path in config.yarn.files:
        name = storage.name(path)
        if name in files or name in _RESERVED or not name or name.startswith(".skein"):
            raise ConfigError(
                "this file's name is already in use in the containers",
                where="yarn.files",
                expected=f"unique names, and none of {', '.join(_RESERVED)}",
                got=f"{files.get(name, name)}, {path}",
            )
        files[name] = path
    return files


# ------------------------------------------------------------------------------------- scripts
def words(config: Config, name: str, *arguments: str) -> str:
    """The command in a container's script that runs one of Howdah's modules."""
    if config.yarn.python is None:
        python = f"./{ENVIRONMENT}/bin/python"
    else:
        python = shlex.quote(config.yarn.python)
    return " ".join(isolation.module(name, *arguments, python=python))


def preamble(shipment: YarnShipment) -> str:
    """The beginning of each container's script.

    It sets a home and a temporary directory for the container (/tmp may be noexec, the user may
    have no home), and a cache that the job's containers on a node share: YARN's directory of the
    application there.

    A node's own settings and certificates go before the submitter's.

    It verifies the wheel's hash, because YARN pins the size and time of localised files, not their
    contents. YARN itself unpacks the environment's archive.
    """
    authorities = f"{HADOOP}/{web.AUTHORITIES}"
    return (
        f'if test "$(sha256sum < {shipment.wheel_name})" != "{shipment.wheel_sha256}  -"; then\n'
        f'  echo "howdah: {shipment.wheel_name} is not the one that was submitted" >&2\n'
        "  exit 5\n"
        "fi\n"
        'export HOME="$PWD/home" TMPDIR="$PWD/tmp"\n'
        'mkdir -p "$HOME" "$TMPDIR"\n'
        f'test -d "$HADOOP_CONF_DIR" || export HADOOP_CONF_DIR="$PWD/{HADOOP}"\n'
        f'if test ! -e "${{{web.TRUST}:-$CURL_CA_BUNDLE}}" -a -e {authorities}; then\n'
        f'  export {web.TRUST}="$PWD/{authorities}"\n'
        "fi\n"
        f'export PYTHONPATH="$PWD/{shipment.wheel_name}"\n'
        f"export PYTHONSAFEPATH={isolation.SAFE_PATH} PYTHONUNBUFFERED=1"
        ' HOWDAH_CACHE="${LOCAL_DIRS%%,*}/howdah"\n'
    )


def _driver_script(config: Config, shipment: YarnShipment) -> str:
    """The driver's script, which skein's master starts as its child.

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
        # YARN shows the end of a file of this name in the application's diagnostics.
        '  tail -c 3000 "$log/application.driver.log" > "$log/driver.stderr"\n'
        "  kill -KILL $PPID\n"
        "fi\n"
        "exit $code\n"
    )


def mib(size: int) -> int:
    """A number of bytes in mebibytes, YARN's unit, rounded up."""
    return -(-size // 2**20)
