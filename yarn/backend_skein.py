"""Jobs on YARN by skein: its Java master holds the containers, our driver runs beside it.

The one module that imports skein. What it lacks is made up for here: it ends containers oldest
first (we name them), it cannot fail for good while attempts are left (the verdict is kept), it
hides exit codes (agents tell their own), and nothing of a job's traffic goes through its master:
agents find their driver by a sealed file in the run directory, so they need no route to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Literal

from howdah import storage
from howdah.config_model import Config
from howdah.errors import ClusterError, HowdahError, NotFound, StorageError
from howdah.hadoop import conf as settings
from yarn import sealed, spec
from yarn.backend import AgentBackend, Container, DriverAddress, DriverBackend, Reason

__all__ = ["SkeinAgent", "SkeinDriver", "attempt_of", "submit", "verdict"]

_CALL_SECONDS = 20.0
_SUBMIT_SECONDS = 300.0  # it uploads nothing large: what is large has been shipped before
_PUBLISHED = "driver address"
_ALL_STATES = ("WAITING", "REQUESTED", "RUNNING", "SUCCEEDED", "FAILED", "KILLED")
_LIVE = ("WAITING", "REQUESTED", "RUNNING")
_DIAGNOSTICS_CHARACTERS = 8000
_POLL_SECONDS = 0.5
_NO_PROXY = "no_grpc_proxy"  # gRPC's, in small letters


# ------------------------------------------------------------------------- inside a container
def attempt_of(container: str) -> int:
    """The application attempt of container_[eN_]TIME_APPLICATION_ATTEMPT_NUMBER.

    >>> attempt_of("container_e17_1410901177871_0001_02_000005")
    2
    """
    return int(container.rsplit("_", 2)[1])


def application_of(container: str) -> str:
    """Its application's id.

    >>> application_of("container_e17_1410901177871_0001_02_000005")
    'application_1410901177871_0001'
    """
    return "application_" + "_".join(container.rsplit("_", 4)[1:3])


def _here(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ClusterError(
            "this is no container of a job on YARN",
            where=name,
            got="not set",
            remedy="`howdah submit` starts what runs here",
        )
    return value


def _secret() -> str:
    try:
        with open(spec.SECRET, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        raise ClusterError(
            "the job's secret is not in this container",
            where=os.path.join(os.getcwd(), spec.SECRET),
            got=error.strerror or str(error),
            remedy="`howdah submit` ships it",
        ) from None


def yarn_directory(config: Config) -> str:
    """Where driver, agents and clients of a run leave word for each other."""
    return storage.join(config.run.directory, "yarn")


def _published(config: Config, application: str, attempt: int) -> str:
    return storage.join(yarn_directory(config), f"driver-{application}-{attempt}.json")


def verdict(config: Config, application: str) -> dict[str, str] | None:
    """How an attempt before has ended the application: {"status", "diagnostics"}, if it has."""
    try:
        return storage.read_json(_verdict(config, application))
    except NotFound:
        return None


def _verdict(config: Config, application: str) -> str:
    return storage.join(yarn_directory(config), f"verdict-{application}.json")


class SkeinDriver(DriverBackend):
    """The driver's side, in the container of skein's master."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._secret = _secret()
        container = _here("CONTAINER_ID")
        self.application = application_of(container)
        self.attempt = attempt_of(container)
        self._connected: Any = None

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
            "no address to listen on",
            where=conf.directory or "HADOOP_CONF_DIR (not set)",
            expected="yarn.resourcemanager.hostname in yarn-site.xml on the nodes",
            remedy="look at the nodes' Hadoop configuration and name service",
        )

    def publish(self, driver: DriverAddress) -> None:
        directory = yarn_directory(self._config)
        storage.make_dirs(directory)
        target = _published(self._config, self.application, self.attempt)
        storage.write_whole(target, sealed.seal(self._secret, _PUBLISHED, driver.to_dict()))
        ours = {storage.name(target), storage.name(_verdict(self._config, self.application))}
        for entry in storage.list_dir(directory):  # what jobs before have left
            if entry.name.startswith(("driver-", "verdict-")) and entry.name not in ours:
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
        for found in self._all():
            if container in (found.yarn_container_id, found.id) and str(found.state) in _LIVE:
                self._kill(found.id)

    def progress(self, fraction: float) -> None:
        with _typed():
            self._skein().set_progress(min(max(fraction, 0.0), 1.0))

    def add_page(self, url: str) -> str | None:
        with _typed():
            page = self._skein().ui.add_page("job", url, "Job")
        return page.address

    def finish(self, status: Literal["SUCCEEDED", "FAILED", "KILLED"], diagnostics: str) -> None:
        diagnostics = diagnostics[:_DIAGNOSTICS_CHARACTERS]
        if status != "SUCCEEDED" and self.attempt < self._config.yarn.attempts:
            # skein leaves what failed to YARN's next attempt, which repeats this at once.
            told = json.dumps({"status": status, "diagnostics": diagnostics}).encode()
            with contextlib.suppress(StorageError):  # without it the job is tried once more
                storage.write_whole(_verdict(self._config, self.application), told)
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

        with _typed(), contextlib.suppress(KeyError, ValueError):  # it has ended meanwhile
            try:
                self._skein().kill_container(name)
            except skein.exceptions.SkeinError as error:
                if "not found" not in str(error).lower():
                    raise

    def _skein(self) -> Any:
        if self._connected is None:
            _no_proxy(_here("SKEIN_APPMASTER_ADDRESS").rpartition(":")[0])
            import skein

            class Bounded(skein.ApplicationClient):
                """Each call with a time limit: a master that hangs must not hang us."""

                def _call(self, method, req, timeout=None):
                    return super()._call(method, req, timeout or _CALL_SECONDS)

            self._connected = Bounded.from_current()
        return self._connected


def _container(found: Any) -> Container:
    state = str(found.state)
    node = (found.yarn_node_http_address or "").rpartition(":")[0]
    told = found.exit_message or ""
    if state in ("WAITING", "REQUESTED"):
        return Container(found.id, "", "requested")
    name = found.yarn_container_id or found.id
    if state == "RUNNING":
        return Container(name, node, "running")
    if state == "SUCCEEDED":
        return Container(name, node, "ended", exit_code=0)
    return Container(name, node, "ended", reason=_reason(state, told), message=told.strip())


def _reason(state: str, told: str) -> Reason:
    """Why a container ended, by skein's state and YARN's diagnostics."""
    told = told.lower()
    if state == "KILLED":
        return "killed"
    if "preempted" in told:
        return "preempted"
    if "lost" in told and "node" in told:
        return "lost"
    if "killed by" in told or "released by" in told:
        return "killed"
    return "failed"


def _routed_from(host: str) -> str:
    """Our address towards a host; no packet is sent."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


class SkeinAgent(AgentBackend):
    """An agent's side: it needs the run directory and YARN's variables, no skein."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._secret = _secret()
        self.container_id = _here("CONTAINER_ID")
        self.node = os.environ.get("NM_HOST") or socket.gethostname()

    def find_driver(self, timeout: float) -> DriverAddress:
        path = _published(
            self._config, application_of(self.container_id), attempt_of(self.container_id)
        )
        until = time.monotonic() + timeout
        while True:
            try:
                told = sealed.open_sealed(self._secret, _PUBLISHED, storage.read_bytes(path))
                return DriverAddress.from_dict(told)
            except NotFound:
                cause = "it has not published where it is"
            except (ValueError, KeyError) as error:
                cause = str(error)
            if time.monotonic() > until:
                raise ClusterError(
                    "the job's driver was not found",
                    where=path,
                    got=f"{cause}, after {timeout:.0f} s",
                    remedy="read its log: howdah logs, or yarn logs -applicationId"
                    f" {application_of(self.container_id)}",
                )
            time.sleep(_POLL_SECONDS)


# ---------------------------------------------------------------------------------- submission
def submit(
    application: spec.Application, *, keytab: str | None = None, principal: str | None = None
) -> str:
    """Hand an application to YARN; its id.

    Raises:
        ClusterError: Hadoop's `yarn` or Java is not here, or YARN refuses.
    """
    with tempfile.TemporaryDirectory(prefix="howdah-skein-") as directory, _client_environment():
        _no_proxy("127.0.0.1")
        log = os.path.join(directory, "client.log")
        with _typed(log):
            import skein

            security = skein.Security.new_credentials()

            class Bounded(skein.Client):
                """Each call with a time limit: without one a lost ResourceManager hangs it."""

                __slots__ = ()

                def _call(self, method, req, timeout=None):
                    return super()._call(method, req, timeout or _SUBMIT_SECONDS)

            # A key of the job's own, not the user's ~/.skein: nothing is left on this machine.
            client = Bounded(
                security=security, keytab=keytab, principal=principal, log=log,
                java_options=_client_java_options(),
            )  # fmt: skip
            with client:
                return client.submit(_specification(skein, application, security))


def _client_java_options() -> str:
    """Flags of the JVM that submits: it lives for seconds, so no second compiler (0.8 s less).

    SKEIN_DRIVER_JAVA_OPTIONS, skein's own setting, is used in their place where it is set.
    """
    return os.environ.get("SKEIN_DRIVER_JAVA_OPTIONS") or (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    )


def _specification(skein: Any, application: spec.Application, security: Any) -> Any:
    """In skein's words."""

    def files(asked: spec.Asked) -> dict[str, Any]:
        return {
            name: skein.File(source=source.url, type=source.kind, visibility="application")
            if source.url.startswith("file://")
            else skein.File(source=source.url, type=source.kind, visibility="private")
            for name, source in asked.files.items()
        }

    def resources(asked: spec.Asked) -> Any:
        return skein.Resources(f"{asked.memory_mib} MiB", asked.vcores, gpus=asked.gpus)

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
        # Who is replaced is the driver's to say: skein would count preemption as a failure.
        max_restarts=0,
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


@contextlib.contextmanager
def _client_environment() -> Iterator[None]:
    """The environment of skein's client.

    `yarn` is asked for the class path: HADOOP_HOME's, where PATH has none. Whom to act for is in
    the specification: by Hadoop's own variable it would be done twice.
    """
    before = {name: os.environ.get(name) for name in ("PATH", "HADOOP_PROXY_USER")}
    home = os.environ.get("HADOOP_HOME")
    if home:
        places = filter(None, [before["PATH"], os.path.join(home, "bin")])
        os.environ["PATH"] = os.pathsep.join(places)
    os.environ.pop("HADOOP_PROXY_USER", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value


def _no_proxy(host: str) -> None:
    """gRPC reads proxy variables, and would ask a proxy for a master that is a neighbour."""
    held = [part for part in os.environ.get(_NO_PROXY, "").split(",") if part]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys([*held, host, "127.0.0.1", "localhost"]))


@contextlib.contextmanager
def _typed(log: str | None = None) -> Iterator[None]:
    """skein's errors as ours."""
    try:
        yield
    except HowdahError:
        raise
    except FileNotFoundError as error:
        raise ClusterError(
            "a program that submits to YARN is not here",
            where=str(error.filename or error),
            expected="Hadoop's `yarn` and Java on PATH (or HADOOP_HOME and JAVA_HOME)",
            remedy="submit from a machine with a Hadoop client",
        ) from None
    except subprocess.CalledProcessError as error:
        raise ClusterError(
            "Hadoop's `yarn classpath --glob` failed",
            got=f"exit code {error.returncode}",
            remedy="run it by hand",
        ) from None
    except ImportError as error:
        raise ClusterError(
            "skein cannot be imported",
            got=str(error),
            remedy="pip install 'howdah[yarn]'",
        ) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("skein", "grpc", "grpc._channel"):
            raise
        raise ClusterError(
            "YARN refused the application" if log else "skein's master does not answer",
            got=_cause(str(error), log),
            remedy="look at what it says; `howdah doctor` checks this machine",
        ) from None


def _cause(said: str, log: str | None) -> str:
    """The error's own words; where they tell nothing, the last cause in the client's log."""
    if log is None or not os.path.exists(log):
        return said
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file]
    causes = [line for line in lines if "Exception" in line or line.startswith("Caused by")]
    return f"{said}\n{causes[-1]}" if causes and causes[-1] not in said else said
