"""`howdah submit`: a configuration becomes an application on YARN.

In this order: check what can be checked, claim the run directory, ship what the nodes lack, submit,
write the id down. Whoever comes second with the same run is led to the application that is there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from howdah import config as config_module
from howdah import storage
from howdah.config_model import Config
from howdah.errors import ClusterError, HowdahError, Interrupted, StorageError, Terminated
from howdah.hadoop.conf import HadoopConf, as_xml
from howdah.hadoop.kerberos import logged_in
from howdah.hadoop.resourcemanager import PATIENCE_SECONDS, ResourceManager
from howdah.manifest import content_hash
from yarn import locality, preflight, sealed, shipping, spec, steer, watch
from yarn.owner import Claim, Owner
from yarn.registry import announce

__all__ = ["Submitted", "dry_run", "submit"]

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """An application that runs, or will."""

    application: str
    tracking_url: str
    run_directory: str
    attached: bool
    """It was there before."""
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
        """The command that follows it."""
        return f"howdah logs {self.application} --follow"


def fingerprint(config: Config) -> str:
    """Tells configurations apart."""
    return content_hash(config.model_dump(mode="json"))


def dry_run(config: Config, progress: Progress) -> dict[str, Any]:
    """What would be asked of YARN and shipped, after the same checks; nothing is written."""
    with logged_in(config.yarn.keytab, config.yarn.principal, "yarn.keytab"):
        manager = ResourceManager(user=config.run.user)
        _check(config, manager, progress)
        shipment, packages = shipping.plan(config, progress)
        directory = storage.join(shipping.staging(config), "packages")
        asked = spec.application(
            config, shipment, config_file=f"(the configuration)/{spec.CONFIG}",
            secret_file=f"(a new secret)/{spec.SECRET}", token="(a new token)",
            hadoop_file="(this machine's settings)", secure=manager.conf.kerberos,
            nodes=locality.hosts(config, manager, progress),
        )  # fmt: skip
    missing = [p for p in packages if not storage.exists(storage.join(directory, p.name))]
    return {
        "application": asked.as_dict(),
        "uploads": [{**p.as_dict(), "to": directory} for p in missing],
        "commands": {
            "driver": asked.driver.script.splitlines(),
            "worker": asked.worker.script.splitlines(),
            "status": "howdah status APPLICATION",
            "logs": "howdah logs APPLICATION --follow",
            "kill": "howdah kill APPLICATION",
        },
    }


def submit(config: Config, progress: Progress) -> Submitted:
    """Submit the job of a configuration, or lead to the one that runs.

    Raises:
        ConfigError, DataError, ModelError, StorageError: what the preflight finds.
        ClusterError: YARN refuses; the run directory is another job's.
        Interrupted, Terminated: what was submitted by then is killed.
    """
    started = time.monotonic()
    with logged_in(config.yarn.keytab, config.yarn.principal, "yarn.keytab"):
        manager = ResourceManager(user=config.run.user)
        _check(config, manager, progress)
        owner = Owner(config.run.directory, spec.tag(config.run.directory), manager)
        token, print_ = secrets.token_hex(6), fingerprint(config)
        claim = owner.claim(token, print_, shipping.user(config))
        if isinstance(claim, str):
            application = _attach(owner, claim, print_)
            progress(f"this run is submitted already: {application}")
            attached = True
        else:
            application = _new(config, manager, owner, claim, progress)
            attached = False
        tracking = manager.job_page(manager.application(application))
        return Submitted(
            application=application, tracking_url=tracking, attached=attached,
            run_directory=config.run.directory, seconds=time.monotonic() - started,
        )  # fmt: skip


def _check(config: Config, manager: ResourceManager, progress: Progress) -> None:
    local_model = os.path.isdir(config.model.base)
    spec.refuse_own_paths(config, local_model=local_model)
    preflight.check(config, manager, progress)


def _attach(owner: Owner, application: str, print_: str) -> str:
    """The application that runs, if it is the same job."""
    there = owner.read()
    if there is not None and there.application is None:  # its submitter was killed before
        owner.complete(there, application)
    if there is None or there.fingerprint != print_:
        raise ClusterError(
            "another job is using this run directory",
            where=storage.parent(owner.path),
            expected="no application, or one of the same configuration",
            got=application,
            remedy=f"give run.directory another value, or end it: howdah kill {application}",
        )
    return application


def _new(
    config: Config, manager: ResourceManager, owner: Owner, claim: Claim, progress: Progress
) -> str:
    """Ship and submit; when that ends badly, nothing stays behind."""
    from yarn import backend_skein

    try:
        shipment, packages = shipping.plan(config, progress)
        shipping.upload(config, packages, progress)
        nodes = locality.hosts(config, manager, progress)
        with tempfile.TemporaryDirectory(prefix="howdah-submit-") as place:  # 0700
            asked = spec.application(
                config, shipment, nodes=nodes, token=claim.token,
                config_file=_written(place, spec.CONFIG, _shipped(config)),
                secret_file=_written(place, spec.SECRET, sealed.new_secret()),
                hadoop_file=_zipped(place, manager.conf), secure=manager.conf.kerberos,
            )  # fmt: skip
            progress(f"submitting {asked.name} to queue {asked.queue}")
            application = backend_skein.submit(
                asked, keytab=config.yarn.keytab, principal=config.yarn.principal
            )
        owner.complete(claim, application)
        unknown = announce(config, application)
        if unknown is not None:
            progress(unknown)
    except BaseException:
        _undo(manager, owner, claim, progress)
        raise
    if config.yarn.priority is not None:
        _prioritise(manager, application, config.yarn.priority, progress)
    return application


def _shipped(config: Config) -> str:
    """The configuration as containers see it: they are the proxied user already, by tokens."""
    run = config.run.model_copy(update={"user": None})
    told = {"staging": shipping.staging(config), "keytab": None, "principal": None}
    yarn = config.yarn.model_copy(update=told)
    return config_module.dump_yaml(config.model_copy(update={"run": run, "yarn": yarn}))


def _written(directory: str, name: str, text: str) -> str:
    path = os.path.join(directory, name.lstrip("."))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return path


def _zipped(directory: str, conf: HadoopConf) -> str:
    """The settings as a .zip of one file."""
    path = os.path.join(directory, f"{spec.HADOOP}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("core-site.xml", as_xml(conf))
    return path


def _undo(manager: ResourceManager, owner: Owner, claim: Claim, progress: Progress) -> None:
    """Kill what YARN has taken of this submission, and give the run directory back."""
    with contextlib.suppress(HowdahError):
        for app in manager.applications(applicationTags=f"howdah-{claim.token}"):
            manager.kill(app["id"], "its submission was interrupted")
            progress(f"killed {app['id']}")
        owner.give_back(claim)


def _prioritise(
    manager: ResourceManager, application: str, priority: int, progress: Progress
) -> None:
    """skein submits with priority 0: it is set right after that."""
    try:
        given = manager.set_priority(application, priority)
    except (ClusterError, StorageError) as error:
        progress(f"priority {priority} was not given: {error.what} ({error.got})")
        return
    if given != priority:
        progress(f"YARN gave priority {given}, not {priority}: a queue or the cluster bounds it")


def follow(config: Config, submitted: Submitted, progress: Progress) -> dict[str, Any]:
    """Follow a job to its end; its last status. An interrupt ends the job as well.

    Raises:
        TrainingError, ClusterError...: what the job died of.
        Interrupted, Terminated: the job has saved what it could, and is killed.
    """
    with logged_in(config.yarn.keytab, config.yarn.principal, "yarn.keytab"):
        # It may take its time to come back: the job goes on meanwhile.
        patience = max(PATIENCE_SECONDS, config.run.storage_retry_seconds)
        manager = ResourceManager(user=config.run.user, patience=patience)
        job = watch.Job(submitted.application, config.run.directory)
        try:
            return steer.wait(manager, job, progress)
        except (KeyboardInterrupt, Interrupted, Terminated):
            progress("ending the job; once more to end it at once")
            seconds = config.checkpoint.grace_seconds
            try:
                steer.kill(manager, job, save=True, save_seconds=seconds, progress=progress)
            except (KeyboardInterrupt, Interrupted, Terminated):
                steer.kill(manager, job, save=False, save_seconds=0, progress=progress)
            progress(f"{job.application} is over")
            raise


def lines(told: dict[str, Any]) -> list[str]:
    """A dry run for people."""
    asked = told["application"]
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
    out += [f"to upload: {p['name']} ({p['bytes']:,} bytes) to {p['to']}" for p in told["uploads"]]
    return out + [f"then: {told['commands'][name]}" for name in ("status", "logs", "kill")]
