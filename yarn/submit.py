"""`howdah submit`: a configuration becomes an application on YARN.

In this order: preflight checks, acquire the run directory's lock, upload what the nodes lack,
submit, record the id. A second submission of the same run attaches to the live application; where
that one is being stopped, the submission waits for its end and starts an application of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from howdah import redact, storage
from howdah.config import loader as config_module
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.data.manifest import content_hash
from howdah.errors import (
    INTERRUPTS,
    ClusterError,
    HowdahError,
    StorageError,
)
from howdah.hadoop.conf import HadoopConf, as_xml
from howdah.hadoop.kerberos import logged_in
from howdah.hadoop.resourcemanager import OVER, PATIENCE_SECONDS, ResourceManager
from howdah.jobs import secret_file
from howdah.jobs.status import status_file
from howdah.models.runs import applications, settings
from howdah.packaging import cluster_paths
from howdah.packaging.staging import PACKAGES
from howdah.yarn import address, shipping, spec
from howdah.yarn.client import control
from howdah.yarn.client.registry import announce
from howdah.yarn.client.status import Job
from howdah.yarn.client.submission_lock import Claim, SubmissionLock, claim_tag, submitter
from howdah.yarn.preflight import locality, preflight

_END_SECONDS = 120.0
"""What a job that is being stopped may need to end besides its ranks' grace period."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """An application that YARN has accepted."""

    application: str
    tracking_url: str
    run_directory: str
    attached: bool
    """An earlier submission of the same run is still live; nothing was submitted."""
    seconds: float
    """From the command to YARN's answer."""

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "application": self.application,
            "tracking_url": self.tracking_url,
            "run_directory": self.run_directory,
            "attached": self.attached,
            "follow": self.follow,
            "seconds": round(self.seconds, 1),
        }

    @property
    def follow(self) -> str:
        """The command that shows its log."""
        return f"howdah logs {self.application} --follow"


def fingerprint(config: Config) -> str:
    """Hash of a configuration without its secrets."""
    return content_hash(redact.config(config).model_dump(mode="json"))


def dry_run(config: Config, progress: Progress) -> dict[str, Any]:
    """What `submit` would ask of YARN and upload, after the same checks; nothing is written."""
    secret_file.values(config, os.environ)
    with logged_in(*config.yarn.login):
        manager = ResourceManager(user=config.run.user)
        _check(config, manager, progress)
        shipment, packages = shipping.plan(config, progress)
        directory = storage.join(cluster_paths.staging(config, config.yarn), PACKAGES)
        application = spec.application(
            config, shipment, config_file=f"(the configuration)/{spec.CONFIG}",
            secret_file=f"(a new secret)/{spec.SECRET}", token="(a new token)",
            hadoop_file="(this machine's settings)", secure=manager.conf.kerberos,
            nodes=locality.hosts(config, manager, progress),
        )  # fmt: skip
    missing = [p for p in packages if not storage.exists(storage.join(directory, p.name))]
    return {
        "application": application.as_dict(),
        "uploads": [{**p.as_dict(), "to": directory} for p in missing],
        "commands": {
            "driver": application.driver.script.splitlines(),
            "worker": application.worker.script.splitlines(),
            "status": "howdah status APPLICATION",
            "logs": "howdah logs APPLICATION --follow",
            "kill": "howdah kill APPLICATION",
        },
    }


def submit(config: Config, progress: Progress) -> Submitted:
    """Submit the job of a configuration, or attach to its live application.

    Raises:
        ConfigError, DataError, ModelError, StorageError: a preflight check failed.
        ClusterError: YARN refuses; another job holds the run directory.
        Interrupted, Terminated: after killing what was submitted by then.
    """
    started = time.monotonic()
    secret_env = secret_file.values(config, os.environ)
    with logged_in(*config.yarn.login):
        # Refused here if it would be described by settings that it was not trained with; asked for
        # the same, the application goes on from the last step and ends, as its caller expects.
        settings.already_finished(config)
        manager = ResourceManager(user=config.run.user)
        _check(config, manager, progress)
        lock = SubmissionLock(config.run.directory, spec.tag(config.run.directory), manager)
        token, digest = secrets.token_hex(6), fingerprint(config)
        claim = lock.acquire(token, digest, submitter(config))
        if isinstance(claim, str) and status_file.is_ending(
            status_file.read(config.run.directory, claim)
        ):
            _wait_for_end(config, manager, claim, progress)
            claim = lock.acquire(token, digest, submitter(config))
        if isinstance(claim, str):
            application = _attach(lock, claim, digest)
            progress(f"this run is submitted already: {application}")
            attached = True
            tracking = _page(manager, application, progress)
        else:
            application, tracking = _new(config, manager, lock, claim, secret_env, progress)
            attached = False
        return Submitted(
            application=application, tracking_url=tracking, attached=attached,
            run_directory=config.run.directory, seconds=time.monotonic() - started,
        )  # fmt: skip


def _check(config: Config, manager: ResourceManager, progress: Progress) -> None:
    config_module.require_secrets(config)
    local_model = os.path.isdir(config.model.base)
    spec.refuse_local_paths(config, local_model=local_model)
    preflight.check(config, manager, progress)


def _wait_for_end(
    config: Config, manager: ResourceManager, application: str, progress: Progress
) -> None:
    """Wait until YARN says that an application has ended.

    Raises:
        ClusterError: it does not end.
    """
    seconds = config.checkpoint.grace_seconds + _END_SECONDS
    status_file.wait_for_end(
        lambda: manager.application(application)["state"] in OVER,
        application=application, seconds=seconds, pause=_POLL_SECONDS, progress=progress,
        refused=ClusterError(
            "the application that has this run directory is being stopped and does not end",
            where=config.run.directory, expected=f"its end within {seconds:.0f} s",
            got=application, remedy=f"howdah kill {application}",
        ),
    )  # fmt: skip


def _attach(lock: SubmissionLock, application: str, digest: str) -> str:
    """The live application, if it has the same configuration."""
    claim = lock.read()
    if claim is not None and claim.application is None:  # its submitter was killed
        lock.complete(claim, application)
    if claim is None or claim.fingerprint != digest:
        raise ClusterError(
            "another job is using this run directory",
            where=storage.parent(lock.path),
            expected="no application, or one of the same configuration",
            got=application,
            remedy=f"give run.directory another value, or end it: howdah kill {application}",
        )
    return application


def _new(
    config: Config,
    manager: ResourceManager,
    lock: SubmissionLock,
    claim: Claim,
    secret_env: dict[str, str],
    progress: Progress,
) -> tuple[str, str]:
    """Upload and submit; the application's id and its job's page.

    A failure and an interrupt kill it and release the lock, up to the last question to YARN: the
    user cannot end an application whose id this command has not printed.
    """
    from howdah.yarn import skein_backend

    application = None
    try:
        shipment, packages = shipping.plan(config, progress)
        shipping.upload(config, packages, progress)
        nodes = locality.hosts(config, manager, progress)
        job_secrets = secret_file.Secrets(secret=address.new_secret(), env=secret_env)
        with tempfile.TemporaryDirectory(prefix="howdah-submit-") as directory:  # 0700
            request = spec.application(
                config, shipment, nodes=nodes, token=claim.token,
                config_file=write_private(directory, spec.CONFIG, _shipped(config)),
                secret_file=write_private(directory, spec.SECRET, job_secrets.text()),
                hadoop_file=zip_settings(directory, manager.conf), secure=manager.conf.kerberos,
            )  # fmt: skip
            progress(f"submitting {request.name} to queue {request.queue}")
            application = skein_backend.submit(
                request, keytab=config.yarn.keytab, principal=config.yarn.principal
            )
        completed = lock.complete(claim, application)
        applications.note_submission(config.run.directory, application)
        if completed.user != claim.user:  # the lock has looked up tags of the wrong user
            progress(f"YARN's name for the submitter is {completed.user}, not {claim.user}")
        not_registered = announce(config, application)
        if not_registered is not None:
            progress(not_registered)
        if config.yarn.priority is not None:
            _set_priority(manager, application, config.yarn.priority, progress)
        return application, _page(manager, application, progress)
    except BaseException:
        try:
            _undo(manager, lock, claim, application, progress)
        except INTERRUPTS:  # a second one does not leave what the first one was to end
            _undo(manager, lock, claim, application, progress)
        raise


def _shipped(config: Config) -> str:
    """The configuration for containers, whose tokens are the proxied user's already."""
    run = config.run.model_copy(update={"user": None})
    staging = cluster_paths.staging(config, config.yarn)
    yarn = config.yarn.model_copy(update={"staging": staging, "keytab": None, "principal": None})
    return config_module.dump_yaml(config.model_copy(update={"run": run, "yarn": yarn}))


def write_private(directory: str, name: str, text: str) -> str:
    """Write a file that its owner alone can read; its path."""
    path = os.path.join(directory, name.lstrip("."))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def zip_settings(directory: str, conf: HadoopConf) -> str:
    """Write the settings as a .zip of one core-site.xml; its path."""
    path = os.path.join(directory, f"{spec.HADOOP}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("core-site.xml", as_xml(conf))
    return path


def _undo(
    manager: ResourceManager,
    lock: SubmissionLock,
    claim: Claim,
    application: str | None,
    progress: Progress,
) -> None:
    """Kill this submission's application, if YARN has accepted it, and release the lock.

    Args:
        application: its id; None: not known, and it is looked for by its tag.
    """
    try:
        if application is None:
            tagged = manager.applications(applicationTags=claim_tag(claim.token), user=claim.user)
            found = [app["id"] for app in tagged]
        else:
            found = [application]
        for one in found:
            manager.kill(one, "its submission was interrupted")
            progress(f"killed {one}")
    except HowdahError as error:
        name = application or "an application, if YARN has accepted one,"
        progress(
            f"{name} may run on: {error.what}{f' ({error.got})' if error.got else ''};"
            f" `howdah kill {application or 'APPLICATION'}` ends it, `howdah ps` shows all"
        )
        return  # the lock finds the application
    with contextlib.suppress(HowdahError):
        lock.release(claim)


def _page(manager: ResourceManager, application: str, progress: Progress) -> str:
    """The URL of its job's page; while YARN does not say where its proxy is, the usual one."""
    try:
        report = manager.application(application)
    except (ClusterError, StorageError) as error:
        progress(f"{application} is submitted; of its state: {error.what} ({error.got})")
        report = {"id": application, "state": "SUBMITTED"}
    return manager.job_page(report)


def _set_priority(
    manager: ResourceManager, application: str, priority: int, progress: Progress
) -> None:
    """Set the priority, because skein submits with 0."""
    try:
        given = manager.set_priority(application, priority)
    except (ClusterError, StorageError) as error:
        progress(f"priority {priority} was not given: {error.what} ({error.got})")
        return
    if given != priority:
        progress(f"YARN gave priority {given}, not {priority}: a queue or the cluster bounds it")


def follow(config: Config, submitted: Submitted, progress: Progress) -> dict[str, Any]:
    """Follow a job to its end; its last status. An interrupt saves a checkpoint and ends the job.

    Raises:
        TrainingError, ClusterError...: the job's own error.
        Interrupted, Terminated: after the job was killed.
    """
    job = Job(submitted.application, config.run.directory)
    manager = None
    with contextlib.ExitStack() as stack:
        try:
            progress(f"submitted {submitted.application}: {submitted.tracking_url}")
            manager = stack.enter_context(_patient(config))
            return control.wait(manager, job, progress)
        except INTERRUPTS:
            try:
                progress("ending the job; once more to end it at once")
                manager = manager or stack.enter_context(_patient(config))
                seconds = config.checkpoint.grace_seconds
                control.kill(manager, job, save=True, save_seconds=seconds, progress=progress)
            except INTERRUPTS:
                manager = manager or stack.enter_context(_patient(config))
                control.kill(manager, job, save=False, save_seconds=0, progress=progress)
            progress(f"{job.application} is over")
            raise


@contextlib.contextmanager
def _patient(config: Config) -> Iterator[ResourceManager]:
    """A ResourceManager that may be away for a while: the job goes on meanwhile."""
    patience = max(PATIENCE_SECONDS, storage.retry_seconds())
    with logged_in(*config.yarn.login):
        yield ResourceManager(user=config.run.user, patience=patience)


def lines(result: dict[str, Any]) -> list[str]:
    """A `dry_run` as text."""
    asked = result["application"]
    out = [f"application {asked['name']}: queue {asked['queue']}, {asked['workers']} workers"]
    for role in ("driver", "worker"):
        part = asked[role]
        gpus = f", {part['gpus']} GPUs" if part["gpus"] else ""
        out.append(f"{role}: {part['memory_mib']:,} MiB, {part['vcores']} vcores{gpus}")
        out += [f"    {line}" for line in part["script"].splitlines()]
        out += [f"    file {name}: {file['url']}" for name, file in part["files"].items()]
    for key in ("user", "node_label", "priority", "attempts"):
        if asked[key] is not None:
            out.append(f"{key}: {asked[key]}")
    for key in ("tags", "view_users", "modify_users", "file_systems", "nodes"):
        if asked[key]:
            out.append(f"{key}: {', '.join(asked[key])}")
    out += [
        f"to upload: {p['name']} ({p['bytes']:,} bytes) to {p['to']}" for p in result["uploads"]
    ]
    return out + [f"then: {result['commands'][name]}" for name in ("status", "logs", "kill")]
