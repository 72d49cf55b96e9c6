"""`howdah serve --yarn`: start a model's server on YARN, show it, end it.

skein's master holds the application and starts a container anew when the server in it ends, however
it ended; YARN starts the master anew. No driver of Howdah's runs: there is no world of ranks to
keep.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import tempfile
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ClusterError, HowdahError, NotFound, UsageError
from howdah.hadoop.kerberos import logged_in
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from howdah.models import server_file
from howdah.models.server_file import ADDRESS_VARIABLE, MODEL_VARIABLE, TOKENS
from howdah.packaging import cluster_paths
from howdah.yarn import shipping, spec
from howdah.yarn.client.status import own_user
from howdah.yarn.submit import write_private, zip_settings

START_SECONDS = 300.0
"""From the application's start to the first answer: a node may have to fetch the environment."""
KILL_SECONDS = 30.0
_POLL_SECONDS = 0.5
ATTEMPTS = 10
"""Of skein's master; the cluster's own limit holds as well."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server on YARN."""

    application: str | None
    """None: there is none."""
    state: str | None
    """YARN's."""
    url: str | None
    """None: no container answers yet."""
    container: str | None
    health: dict[str, Any] | None
    """What /health says; None: it does not answer."""
    file: str

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return dict(vars(self))

    @property
    def lines(self) -> list[str]:
        """As text."""
        if self.application is None:
            return ["no server of this model is on YARN"]
        health = "it does not answer" if self.health is None else str(self.health.get("status"))
        models = (self.health or {}).get("models") or []
        versions = [f"{one.get('model')} version {one.get('version')}" for one in models]
        return [
            f"{self.application}  {self.state}",
            f"{self.url or 'no address yet'}  {health}  {', '.join(versions)}".rstrip(),
            f"address: {self.file}",
        ]


def tag(model_directory: str) -> str:
    """The tag of a model's servers."""
    digest = hashlib.sha256(model_directory.rstrip("/").encode()).hexdigest()
    return f"howdah-serve-{digest[:16]}"


def start(config: Config, model_directory: str, tokens: list[bytes], progress: Progress) -> Served:
    """Start the model's server, or find the one that is there; returns once it answers.

    Args:
        config: with the sections serve and yarn.
        model_directory: the published model's, on the cluster's storage.
        tokens: of its clients; [] with serve.open.
    Raises:
        ConfigError, StorageError, ClusterError: it cannot be submitted, or does not answer in time.
        Interrupted, Terminated: after what was submitted was killed.
    """
    _require_tokens(config, tokens)
    cluster_paths.refuse_local({"--model": model_directory})
    with logged_in(*config.yarn.login):
        manager = ResourceManager(user=config.run.user)
        live = _live(manager, model_directory)
        if live is not None:
            progress(f"its server is on YARN already: {live['id']}")
            return _wait(manager, live["id"], model_directory, tokens, progress)
        application = _submit(config, manager, model_directory, tokens, progress)
        progress(f"submitted {application}")
        try:
            return _wait(manager, application, model_directory, tokens, progress)
        except BaseException:
            with contextlib.suppress(HowdahError):
                _kill(manager, application)
                progress(f"killed {application}")
            raise


def _require_tokens(config: Config, tokens: list[bytes]) -> None:
    if not tokens and not config.serve.open:
        raise UsageError(
            "a server on YARN listens on its node's address, and requests would need no token",
            where="--token-file",
            expected="a file of tokens, or --open",
            remedy="python3 -c 'import secrets; print(secrets.token_hex(32))' > token; chmod 600"
            " token",
        )


def status(config: Config, model_directory: str, tokens: list[bytes]) -> Served:
    """The model's server."""
    with logged_in(*config.yarn.login):
        manager = ResourceManager(user=config.run.user)
        return _look(_live(manager, model_directory), model_directory, tokens)


def stop(config: Config, model_directory: str, progress: Progress) -> Served:
    """End the model's server and remove its address.

    Raises:
        NotFound: there is none.
        ClusterError: YARN does not confirm.
    """
    with logged_in(*config.yarn.login):
        manager = ResourceManager(user=config.run.user)
        live = _live(manager, model_directory)
        if live is None:
            raise NotFound(
                "no server of this model is on YARN", where=model_directory,
                remedy="howdah serve --yarn starts one",
            )  # fmt: skip
        state = _kill(manager, live["id"])
        progress(f"{live['id']} is {state}")
        path = server_file.path_of(model_directory)
        with contextlib.suppress(NotFound):
            if server_file.read(path, []).application == live["id"]:
                storage.remove(path)
        return Served(application=live["id"], state=state, url=None, container=None, health=None,
                      file=path)  # fmt: skip


# ------------------------------------------------------------------------------------- YARN
def _live(manager: ResourceManager, model_directory: str) -> dict[str, Any] | None:
    """The application of this user that serves the model; any user can set a tag."""
    user = own_user(manager)
    filters = {"applicationTags": tag(model_directory)} | ({"user": user} if user else {})
    found = [one for one in manager.applications(**filters) if one["state"] not in OVER]
    return found[0] if found else None


def _kill(manager: ResourceManager, application: str) -> str:
    until = time.monotonic() + KILL_SECONDS
    while (state := manager.kill(application, "ended by howdah serve stop")) not in OVER:
        if time.monotonic() > until:
            raise ClusterError(
                "YARN has not confirmed the end", where=application, got=state,
                expected=f"KILLED within {KILL_SECONDS:.0f} s",
                remedy=f"yarn application -kill {application}",
            )  # fmt: skip
        time.sleep(_POLL_SECONDS)
    return state


def _submit(
    config: Config,
    manager: ResourceManager,
    model_directory: str,
    tokens: list[bytes],
    progress: Progress,
) -> str:
    from howdah.yarn import skein_backend

    shipment, packages = shipping.plan(config, progress, kind="serve")
    shipping.upload(config, packages, progress)
    with tempfile.TemporaryDirectory(prefix="howdah-serve-") as directory:  # 0700
        text = "".join(f"{one.decode('ascii')}\n" for one in tokens)
        request = application(
            config, shipment, model_directory,
            config_file=write_private(directory, spec.CONFIG, _shipped(config)),
            token_file=write_private(directory, TOKENS, text) if tokens else None,
            hadoop_file=zip_settings(directory, manager.conf), secure=manager.conf.kerberos,
        )  # fmt: skip
        progress(f"submitting {request.name} to queue {request.queue}")
        return skein_backend.submit(
            request, keytab=config.yarn.keytab, principal=config.yarn.principal
        )


def _shipped(config: Config) -> str:
    run = config.run.model_copy(update={"user": None})
    yarn = config.yarn.model_copy(update={"keytab": None, "principal": None})
    serve = config.serve.model_copy(update={"token_file": None})
    return loader.dump_yaml(config.model_copy(update={"run": run, "yarn": yarn, "serve": serve}))


def application(
    config: Config,
    shipment: spec.Shipment,
    model_directory: str,
    *,
    config_file: str,
    token_file: str | None,
    hadoop_file: str,
    secure: bool,
) -> spec.Application:
    """What the server asks of YARN. Pure.

    Args:
        config_file, token_file, hadoop_file: local paths; None: there are no tokens.
        secure: whether the cluster has Kerberos.
    """
    options = config.yarn
    files = {
        **shipment.files,
        shipment.wheel_name: shipment.wheel,
        spec.CONFIG: spec.Source(url=f"file://{config_file}"),
        spec.HADOOP: spec.Source(url=f"file://{hadoop_file}", kind="archive"),
    }
    if token_file is not None:
        files[TOKENS] = spec.Source(url=f"file://{token_file}")
    if shipment.environment is not None:
        files[spec.ENVIRONMENT] = shipment.environment
    name = storage.name(model_directory.rstrip("/"))
    return spec.Application(
        name=f"serve {name}",
        queue=options.queue or "default",
        user=config.run.user,
        node_label=options.node_label,
        priority=options.priority,
        tags=tuple(dict.fromkeys((spec.TAG, tag(model_directory), *options.tags))),
        view_users=tuple(options.view_users),
        modify_users=tuple(options.modify_users),
        page_users=tuple(options.view_users) if secure else ("*",),
        file_systems=_file_systems(model_directory),
        attempts=ATTEMPTS,
        workers=1,
        nodes=(),
        restarts=-1,
        driver=spec.ContainerRequest(
            memory_mib=-(-options.driver.memory // 2**20), vcores=options.driver.vcores, gpus=0,
            script="", files={}, env=spec.MASTER_ENV,
        ),
        worker=spec.ContainerRequest(
            memory_mib=-(-config.serve.memory // 2**20), vcores=config.serve.vcores, gpus=0,
            script="mkdir -p tmp\n" + spec.preamble(shipment)
            + f"exec {spec.words(config, 'howdah.serving')}\n",
            files=files,
            env={
                MODEL_VARIABLE: model_directory,
                ADDRESS_VARIABLE: server_file.path_of(model_directory),
            },
        ),
    )  # fmt: skip


def _file_systems(path: str) -> tuple[str, ...]:
    scheme, slashes, rest = path.partition("://")
    authority = rest.partition("/")[0]
    is_hdfs = slashes and scheme.lower() in storage.HDFS_SCHEMES and authority
    return (f"{scheme}://{authority}",) if is_hdfs else ()


# --------------------------------------------------------------------------------- the server
def _wait(
    manager: ResourceManager,
    application: str,
    model_directory: str,
    tokens: list[bytes],
    progress: Progress,
) -> Served:
    """Wait until the server answers.

    Raises:
        ClusterError: the application has ended, or does not answer in time.
    """
    until, last = time.monotonic() + START_SECONDS, None
    while True:
        report = manager.application(application)
        if report["state"] != last:
            last, until = report["state"], time.monotonic() + START_SECONDS
            progress(f"{application} is {last}")
        if last in OVER:
            raise ClusterError(
                "the server's application has ended", where=application,
                got=(report.get("diagnostics") or "").strip()[-2000:] or last,
                remedy=f"howdah logs {application}",
            )  # fmt: skip
        found = _look(report, model_directory, tokens)
        if found.health is not None:
            return found
        # It may wait for room in its queue as long as the queue is full.
        if last == "RUNNING" and time.monotonic() > until:
            raise ClusterError(
                "the server does not answer", where=found.url or found.file,
                expected=f"an answer within {START_SECONDS:.0f} s", got=f"{last}, no answer",
                remedy=f"howdah logs {application}",
            )  # fmt: skip
        time.sleep(_POLL_SECONDS)


def _look(report: dict[str, Any] | None, model_directory: str, tokens: list[bytes]) -> Served:
    path = server_file.path_of(model_directory)
    if report is None:
        return Served(application=None, state=None, url=None, container=None, health=None,
                      file=path)  # fmt: skip
    address = None
    with contextlib.suppress(NotFound):
        # The file of a server before this one may have been signed with another token.
        if server_file.read(path, []).application == report["id"]:
            address = server_file.read(path, tokens)
    return Served(
        application=report["id"], state=report["state"],
        url=None if address is None else address.url,
        container=None if address is None else address.container,
        health=None if address is None else _health(address.url), file=path,
    )  # fmt: skip


def _health(url: str) -> dict[str, Any] | None:
    """What /health of an address says. No redirect is followed, and no proxy is asked: without
    tokens any writer of the model's directory can have written the address."""
    try:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    except ValueError:  # a port that is not one
        return None
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        health = json.loads(answer.read(65536)) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return health if isinstance(health, dict) else None
