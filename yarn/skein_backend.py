"""Jobs on YARN through skein: its Java master holds the containers, our driver runs beside it.

Only this module imports skein. It works around skein's limits: skein ends the oldest containers
first (we name the containers to end), cannot fail an application for good while attempts are left
(we store the verdict for the next attempt), and hides exit codes (agents report their own). A job's
traffic does not pass skein's master: agents find their driver by a signed file in the run
directory, and need no route to the master.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from howdah import storage
from howdah.config.model import Config
from howdah.core.processes import environ, stat_fields
from howdah.errors import ClusterError, DataError, HowdahError, NotFound, StorageError
from howdah.hadoop import conf as settings
from howdah.jobs import record, secret_file
from howdah.jobs.backend import AgentBackend, Container, DriverAddress, DriverBackend, Reason
from howdah.jobs.status import status_file
from howdah.storage.shapes import TEXT, Fields, one_of
from howdah.yarn import address, certificate, spec

_CALL_SECONDS = 20.0
_SUBMIT_SECONDS = 300.0  # it only uploads small files: shipping.py has uploaded the packages
_ALL_STATES = ("WAITING", "REQUESTED", "RUNNING", "SUCCEEDED", "FAILED", "KILLED")
_LIVE = ("WAITING", "REQUESTED", "RUNNING")
_ORPHAN_SECONDS = 60.0  # in which YARN ends a container, or its next attempt makes itself known
_DIAGNOSTICS_CHARACTERS = 8000
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 3.0
_VERDICT = Fields(
    {"status": one_of(("SUCCEEDED", "FAILED", "KILLED")), "diagnostics": TEXT},
    needed=("status", "diagnostics"),
)
_NO_PROXY = "no_grpc_proxy"  # gRPC only reads it in lower case


# ------------------------------------------------------------------------- inside a container
def attempt_of(container: str) -> int:
    """The application attempt of container_[eN_]TIME_APPLICATION_ATTEMPT_NUMBER.

    >>> attempt_of("container_e17_1410901177871_0001_02_000005")
    2
    """
    return int(container.rsplit("_", 2)[1])


def application_of(container: str) -> str:
    """The id of a container's application.

    >>> application_of("container_e17_1410901177871_0001_02_000005")
    'application_1410901177871_0001'
    """
    return "application_" + "_".join(container.rsplit("_", 4)[1:3])


def _variable(name: str) -> str:
    """A variable that YARN sets in each container."""
    value = os.environ.get(name)
    if not value:
        raise ClusterError(
            f"this process is not in a container of a job on YARN: {name} is not set",
            remedy="submit the job with `howdah submit`",
        )
    return value


def _secrets() -> secret_file.JobSecrets:
    try:
        with open(spec.SECRET, encoding="utf-8") as file:
            return secret_file.parse(file.read())
    except (OSError, ValueError, KeyError) as error:
        raise ClusterError(
            "the job's secret, which `howdah submit` ships, is not in this container",
            where=os.path.join(os.getcwd(), spec.SECRET),
            got=getattr(error, "strerror", None) or type(error).__name__,
        ) from None


def verdict(config: Config, application: str) -> dict[str, str] | None:
    """The end of the application in an earlier attempt: {"status", "diagnostics"}; None: it has not
    ended, or the file is malformed, so that this attempt runs the job."""
    try:
        return storage.read_object(_verdict(config, application), _VERDICT)
    except (NotFound, DataError):
        return None


def _verdict(config: Config, application: str) -> str:
    return storage.join(status_file.directory(config.run.directory), f"verdict-{application}.json")


class SkeinDriver(DriverBackend):
    """The driver's backend, in the container of skein's master."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._secret, self._nonce = _secrets().secret, address.new_nonce()
        container = _variable("CONTAINER_ID")
        self.application = application_of(container)
        self.attempt = attempt_of(container)
        claim = record.read(config.run.directory)
        self.started = claim.submitted if claim is not None else 0.0
        self._connected: Any = None
        self._parents, self._orphaned = _parents(), 0.0

    def listen_address(self) -> str:
        """The address of the interface that routes to the ResourceManager."""
        conf = settings.load(names=settings.YARN_FILES)
        names = ["yarn.resourcemanager.scheduler.address", "yarn.resourcemanager.hostname"]
        for member in (conf.get("yarn.resourcemanager.ha.rm-ids") or "").split(","):
            names += [f"{name}.{member.strip()}" for name in names[:2] if member.strip()]
        hosts = [(conf.get(name) or "").partition(":")[0].strip() for name in names]
        for host in [*hosts, os.environ.get("NM_HOST", "")]:
            if host and host != "0.0.0.0" and "$" not in host:
                with contextlib.suppress(OSError):
                    return _routed_from(host)
        raise ClusterError(
            "cannot find an address to listen on",
            where=conf.directory or "HADOOP_CONF_DIR (not set)",
            expected="yarn.resourcemanager.hostname in the nodes' yarn-site.xml, and its address",
        )

    def session_key(self) -> str:
        return address.session_key(self._secret, self._nonce)

    def publish(self, driver: DriverAddress) -> None:
        """Write the address and the key's nonce, signed, and remove files of earlier drivers."""
        directory = status_file.directory(self._config.run.directory)
        storage.make_dirs(directory)
        application, attempt = self.application, self.attempt
        address.publish(directory, application, attempt, driver, self._secret, self._nonce)
        path = address.file_path(directory, application, attempt)
        names = {storage.name(path), storage.name(_verdict(self._config, application))}
        for entry in storage.list_dir(directory):
            if entry.name.startswith(("driver-", "verdict-")) and entry.name not in names:
                storage.remove(entry.path)

    def containers(self) -> list[Container]:
        return [_container(c) for c in self._all()]

    def keep(self, count: int) -> None:
        live = [c for c in self._all() if str(c.state) in _LIVE]
        if len(live) < count:
            with _typed():
                self._skein().scale(spec.WORKER, delta=count - len(live))
            return
        waiting = [c for c in live if str(c.state) != "RUNNING"]
        for container in waiting[: len(live) - count]:
            self._kill(container.id)

    def release(self, container: str) -> None:
        for one in self._all():
            if container in (one.yarn_container_id, one.id) and str(one.state) in _LIVE:
                self._kill(one.id)

    def superseded(self) -> str | None:
        published = address.attempts(
            status_file.directory(self._config.run.directory), self.application
        )
        if (newest := max(published, default=0)) > self.attempt:
            return f"attempt {newest} of {self.application}"
        claim = None
        with contextlib.suppress(DataError):  # a damaged record must not end this job
            claim = record.read(self._config.run.directory)
        if claim is not None and claim.token != os.environ.get(spec.SUBMISSION, ""):
            return f"{claim.application or 'an application'}, submitted later by {claim.user}"
        return None

    def abandoned(self) -> str | None:
        """YARN does not always end a driver with its application master. What follows the master's
        end, another attempt or the application's end, may be out of reach: YARN has removed the
        container's directory, with the tokens."""
        if _parents() == self._parents:
            return None
        self._orphaned = self._orphaned or time.monotonic()
        if time.monotonic() - self._orphaned < _ORPHAN_SECONDS:
            return None
        return "its application master has ended"

    def progress(self, fraction: float) -> None:
        with _typed():
            self._skein().set_progress(min(max(fraction, 0.0), 1.0))

    def add_page(self, url: str) -> str | None:
        with _typed():
            page = self._skein().ui.add_page("job", url, "Job")
        return page.address

    def finish(self, status: Literal["SUCCEEDED", "FAILED", "KILLED"], diagnostics: str) -> None:
        diagnostics = diagnostics[:_DIAGNOSTICS_CHARACTERS]
        if status != "SUCCEEDED" and self.attempt < self._config.job.attempts:
            # YARN starts another attempt, which reads this verdict and ends.
            data = json.dumps({"status": status, "diagnostics": diagnostics}).encode()
            with contextlib.suppress(StorageError):  # without it the next attempt runs the job
                storage.write_whole(_verdict(self._config, self.application), data)
        with open(spec.FINISHED, "w", encoding="ascii") as file:
            file.write(status)
        with _typed():
            self._skein().shutdown(status, diagnostics or "the job is done")

    # ---------------------------------------------------------------------------- the master
    def _all(self) -> list[Any]:
        with _typed():
            return self._skein().get_containers(services=[spec.WORKER], states=_ALL_STATES)

    def _kill(self, name: str) -> None:
        import skein

        with _typed(), contextlib.suppress(KeyError, ValueError):  # the container has just ended
            try:
                self._skein().kill_container(name)
            except skein.exceptions.SkeinError as error:
                if "not found" not in str(error).lower():
                    raise

    def _skein(self) -> Any:
        if self._connected is None:
            _no_proxy(_variable("SKEIN_APPMASTER_ADDRESS").rpartition(":")[0])
            import skein

            class Bounded(skein.ApplicationClient):
                """Gives each call a time limit: a master that hangs must not stop the driver."""

                def _call(self, method, req, timeout=None):
                    return super()._call(method, req, timeout or _CALL_SECONDS)

            self._connected = Bounded.from_current()
        return self._connected


def _parents() -> tuple[int, str | None]:
    """The process of the driver's script, and that of skein's master, which has started it."""
    script = os.getppid()
    fields = stat_fields(script)
    return script, fields[1] if fields else None


def _container(container: Any) -> Container:
    state = str(container.state)
    node = (container.yarn_node_http_address or "").rpartition(":")[0]
    message = container.exit_message or ""
    if state in ("WAITING", "REQUESTED"):
        return Container(container.id, "", "requested")
    name = container.yarn_container_id or container.id
    if state == "RUNNING":
        return Container(name, node, "running")
    if state == "SUCCEEDED":
        return Container(name, node, "ended", exit_code=0)
    return Container(name, node, "ended", reason=_reason(state, message), message=message.strip())


def _reason(state: str, diagnostics: str) -> Reason:
    """Why a container ended, from skein's state and YARN's diagnostics."""
    text = diagnostics.lower()
    if state == "KILLED":
        return "killed"
    if "preempted" in text:
        return "preempted"
    if "lost" in text and "node" in text:
        return "lost"
    if "killed by" in text or "released by" in text:
        return "killed"
    return "failed"


def _routed_from(host: str) -> str:
    """The address of our interface that routes to a host; no packet is sent."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


class SkeinAgent(AgentBackend):
    """An agent's backend: it needs the run directory and YARN's variables, not skein."""

    def __init__(self, config: Config) -> None:
        self._config = config
        secrets = _secrets()
        self._secret, self._secret_env = secrets.secret, secrets.env
        self.container_id = _variable("CONTAINER_ID")
        self.node = os.environ.get("NM_HOST") or socket.gethostname()

    def secret_env(self) -> Mapping[str, str]:
        return self._secret_env

    def find_driver(self, timeout: float) -> DriverAddress:
        application, attempt = application_of(self.container_id), attempt_of(self.container_id)
        directory = status_file.directory(self._config.run.directory)
        until, pause = time.monotonic() + timeout, _FIRST_PAUSE_SECONDS
        while True:
            try:
                return address.read(directory, application, attempt, self._secret)
            except NotFound:
                cause = "it has not published its address"
            except (ValueError, KeyError) as error:
                cause = str(error)
            if time.monotonic() > until:
                raise ClusterError(
                    f"the job's driver was not found within {timeout:.0f} s",
                    where=address.file_path(directory, application, attempt),
                    got=cause,
                    remedy=f"read its log: howdah logs, or yarn logs -applicationId {application}",
                )
            # Pauses grow and differ between agents, since all of a job's read from one NameNode.
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS)


# ---------------------------------------------------------------------------------- submission
def submit(
    application: spec.ApplicationRequest, *, keytab: str | None = None, principal: str | None = None
) -> str:
    """Submit an application to YARN, and return its id.

    Raises:
        ClusterError: Hadoop's `yarn` or Java is not installed, or YARN refuses.
    """
    with tempfile.TemporaryDirectory(prefix="howdah-skein-") as directory, _client_environment():
        _no_proxy("127.0.0.1")
        log = os.path.join(directory, "client.log")
        with _typed(log):
            import skein

            held, key = certificate.make()
            security = skein.Security(cert_bytes=held, key_bytes=key)

            class Bounded(skein.Client):
                """Gives each call a time limit: a lost ResourceManager would hang it."""

                __slots__ = ()

                def _call(self, method, req, timeout=None):
                    return super()._call(method, req, timeout or _SUBMIT_SECONDS)

            # A key for this job instead of the user's ~/.skein, so that no file stays here.
            login = {"security": security, "keytab": keytab, "principal": principal}
            # Without the second compiler the JVM that submits takes 0.8 s less. The variable is
            # skein's own setting for these flags.
            flags = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
            flags = os.environ.get("SKEIN_DRIVER_JAVA_OPTIONS") or flags
            with Bounded(**login, log=log, java_options=flags) as client:
                return client.submit(_specification(skein, application, security))


def _specification(skein: Any, application: spec.ApplicationRequest, security: Any) -> Any:
    """The application as skein's objects."""

    def files(request: spec.ContainerRequest) -> dict[str, Any]:
        return {
            name: skein.File(
                source=source.url, type=source.kind,
                visibility="application" if source.url.startswith("file://") else "private",
            )
            for name, source in request.files.items()
        }  # fmt: skip

    def resources(request: spec.ContainerRequest) -> Any:
        return skein.Resources(f"{request.memory_mib} MiB", request.vcores, gpus=request.gpus)

    acls = skein.ACLs(
        enable=True,
        view_users=list(application.view_users),
        modify_users=list(application.modify_users),
        ui_users=list(application.page_users),
    )
    worker = skein.Service(
        resources=resources(application.worker),
        script=application.worker.script,
        files=files(application.worker),
        env=dict(application.worker.env),
        instances=application.workers,
        nodes=list(application.nodes) or None,
        relax_locality=True,
        # A job's driver decides which containers to replace, since skein counts preemption as a
        # failure.
        max_restarts=application.restarts,
        allow_failures=True,
    )
    master = skein.Master(
        resources=resources(application.driver),
        script=application.driver.script,
        files=files(application.driver),
        env=dict(application.driver.env),
        security=security,
    )
    return skein.ApplicationSpec(
        name=application.name,
        queue=application.queue,
        user=application.user or "",
        node_label=application.node_label or "",
        tags=set(application.tags),
        file_systems=list(application.file_systems),
        acls=acls,
        max_attempts=application.attempts,
        master=master,
        services={spec.WORKER: worker},
    )


def _client_environment() -> contextlib.AbstractContextManager[None]:
    """The environment of skein's client.

    HADOOP_HOME/bin is appended to PATH, since skein runs `yarn` for the class path. The
    specification has the proxied user; HADOOP_PROXY_USER would impersonate a second time.
    """
    home = os.environ.get("HADOOP_HOME")
    directories = [os.environ.get("PATH"), os.path.join(home, "bin") if home else None]
    path = os.pathsep.join(filter(None, directories))
    return environ({"PATH": path or None, "HADOOP_PROXY_USER": None})


def _no_proxy(host: str) -> None:
    """Prevent gRPC, which reads proxy variables, from calling a host through a proxy."""
    hosts = [part for part in os.environ.get(_NO_PROXY, "").split(",") if part]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys([*hosts, host, "127.0.0.1", "localhost"]))


@contextlib.contextmanager
def _typed(log: str | None = None) -> Iterator[None]:
    """Translate skein's errors to ClusterError."""
    try:
        yield
    except HowdahError:
        raise
    except FileNotFoundError as error:
        raise ClusterError(
            "a program that submits to YARN is not installed",
            where=str(error.filename or error),
            expected="Hadoop's `yarn` and Java on PATH (or HADOOP_HOME and JAVA_HOME)",
        ) from None
    except subprocess.CalledProcessError as error:
        code = f"exit code {error.returncode}"
        raise ClusterError("Hadoop's `yarn classpath --glob` failed", got=code) from None
    except ImportError as error:
        raise ClusterError(
            "skein cannot be imported", got=str(error), remedy="pip install 'howdah[yarn]'"
        ) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("skein", "grpc", "grpc._channel"):
            raise
        raise ClusterError(
            "YARN refused the application" if log else "skein's master does not answer",
            got=_cause(str(error), log),
            remedy="`howdah doctor` checks this machine",
        ) from None


def _cause(message: str, log: str | None) -> str:
    """The error's message, followed by the last cause in the client's log if that differs."""
    if log is None or not os.path.exists(log):
        return message
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file]
    causes = [line for line in lines if "Exception" in line or line.startswith("Caused by")]
    return f"{message}\n{causes[-1]}" if causes and causes[-1] not in message else message
