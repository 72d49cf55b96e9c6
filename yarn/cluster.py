"""Training jobs on YARN: what a submission checks, uploads and requests from YARN."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.errors import ClusterError, ConfigError, HowdahError, NotFound, StorageError
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop import web
from howdah.hadoop.conf import HadoopConf, as_xml
from howdah.hadoop.kerberos import logged_in
from howdah.hadoop.resourcemanager import APPLICATION, LIVE, OVER, ResourceManager
from howdah.jobs import checks, secret_file
from howdah.jobs.application import Application
from howdah.jobs.cluster import Cluster
from howdah.jobs.net.signing import new_key
from howdah.jobs.record import Record
from howdah.models.runs import applications
from howdah.packaging import cluster_paths
from howdah.packaging.staging import PACKAGES
from howdah.storage.directories import owner_here
from howdah.yarn import registry, shipping, spec
from howdah.yarn.application import YarnApplication, directory_of, listed, user_of
from howdah.yarn.preflight import locality, preflight


class YarnCluster(Cluster):
    """The YARN cluster of this machine's Hadoop settings.

    Args:
        tokens: reads the tokens of a server's clients, when its address is verified.
    """

    name = "yarn"
    submits_finished = True

    def __init__(self, config: Config, tokens: Callable[[], list[bytes]] = list) -> None:
        super().__init__(config)
        self._tokens = tokens
        self._accepted: str | None = None
        """The application that YARN has accepted."""

    @cached_property
    def manager(self) -> ResourceManager:
        return ResourceManager(user=self.config.run.user)

    def session(self) -> contextlib.AbstractContextManager[None]:
        return logged_in(*self.config.yarn.login)

    # ---------------------------------------------------------------------------- submission
    def check(self, progress: Progress) -> None:
        secret_file.values(self.config, os.environ)
        loader.require_secrets(self.config)
        cluster_paths.refuse_local(checks.paths_of_ranks(self.config))
        preflight.check(self.config, self.manager, progress)

    def plan(self, progress: Progress) -> dict[str, Any]:
        config = self.config
        shipment, packages = shipping.plan(config, progress)
        directory = storage.join(cluster_paths.staging(config, config.yarn), PACKAGES)
        application = spec.application(
            config, shipment, config_file=f"(the configuration)/{spec.CONFIG}",
            secret_file=f"(a new secret)/{spec.SECRET}", token="(a new token)",
            hadoop_file="(this machine's settings)", secure=self.manager.conf.kerberos,
            nodes=locality.hosts(config, self.manager, progress),
        )  # fmt: skip
        missing = [p for p in packages if not storage.exists(storage.join(directory, p.name))]
        return {
            "application": application.as_dict(),
            "uploads": [{**p.as_dict(), "to": directory} for p in missing],
        }

    def plan_lines(self, plan: dict[str, Any]) -> list[str]:
        request = plan["application"]
        out = [
            f"application {request['name']}: queue {request['queue']}, {request['workers']} workers"
        ]
        for role in ("driver", "worker"):
            part = request[role]
            gpus = f", {part['gpus']} GPUs" if part["gpus"] else ""
            out.append(f"{role}: {part['memory_mib']:,} MiB, {part['vcores']} vcores{gpus}")
            out += [f"    {line}" for line in part["script"].splitlines()]
            out += [f"    file {name}: {file['url']}" for name, file in part["files"].items()]
        for key in ("user", "node_label", "priority", "attempts"):
            if request[key] is not None:
                out.append(f"{key}: {request[key]}")
        for key in ("tags", "view_users", "modify_users", "file_systems", "nodes"):
            if request[key]:
                out.append(f"{key}: {', '.join(request[key])}")
        out += [
            f"to upload: {p['name']} ({p['bytes']:,} bytes) to {p['to']}" for p in plan["uploads"]
        ]
        return out

    def request(self, claim: Record, directory: str, progress: Progress) -> spec.ApplicationRequest:
        """Ship what the application needs, and return the request to YARN.

        Args:
            directory: a private directory for the files that skein uploads.
        """
        config, conf = self.config, self.manager.conf
        shipment, packages = shipping.plan(config, progress)
        shipping.upload(config, packages, progress)
        secrets = secret_file.JobSecrets(
            secret=new_key(), env=secret_file.values(config, os.environ)
        )
        write = secret_file.write_private
        return spec.application(
            config, shipment, nodes=locality.hosts(config, self.manager, progress),
            token=claim.token, config_file=write(directory, spec.CONFIG, shipped(config)),
            secret_file=write(directory, spec.SECRET, secrets.text()),
            hadoop_file=zip_settings(directory, conf), secure=conf.kerberos,
        )  # fmt: skip

    def start(self, claim: Record, progress: Progress) -> Application:
        from howdah.yarn import skein_backend

        config = self.config
        with tempfile.TemporaryDirectory(prefix="howdah-submit-") as directory:  # 0700
            request = self.request(claim, directory, progress)
            progress(f"submitting {request.name} to queue {request.queue}")
            application = self._accepted = skein_backend.submit(
                request, keytab=config.yarn.keytab, principal=config.yarn.principal
            )
        completed = self._complete(claim, application)
        applications.note_submission(self.directory, application)
        if completed.user != claim.user:  # the claim has looked up tags of another user
            progress(f"YARN's name for the submitter is {completed.user}, not {claim.user}")
        self._say_queue(application, request.queue, progress)
        warning = registry.announce(config, application, self.directory)
        if warning is not None:
            progress(warning)
        if config.yarn.priority is not None:
            _set_priority(self.manager, application, config.yarn.priority, progress)
        return self.application(completed)

    def _complete(self, claim: Record, application: str) -> Record:
        """Record the application's id, and its user's name as YARN reports it."""
        user = claim.user
        with contextlib.suppress(HowdahError):
            user = str(self.manager.application(application).get("user") or user)
        completed = replace(claim, application=application, user=user)
        completed.write()
        return completed

    def _say_queue(self, application: str, queue: str, progress: Progress) -> None:
        """Say where the application is, if the cluster's placement rules have put it elsewhere."""
        with contextlib.suppress(HowdahError):
            place = str(self.manager.application(application).get("queue") or queue)
            if place.rpartition(".")[2] != queue.rpartition(".")[2]:
                progress(f"YARN's placement rules have put it into queue {place}, not {queue}")

    def announce(self, application: Application, progress: Progress) -> str | None:
        """The URL of its job's page, which is a guess until YARN reports its proxy's address."""
        try:
            report = self.manager.application(application.id)
        except (ClusterError, StorageError) as error:
            progress(f"submitted {application.id}; state not known: {_brief(error)}")
            report = {"id": application.id, "state": "SUBMITTED"}
        return self.manager.job_page(report)

    def undo(self, claim: Record, progress: Progress) -> bool:
        """Kill this submission's application, if YARN has accepted it; its tag finds it if its id
        is not known."""
        accepted = self._accepted
        try:
            for application in [accepted] if accepted else self._tagged(claim, states=None):
                self.manager.kill(application, "its submission was interrupted")
                progress(f"killed {application}")
        except HowdahError as error:
            name = accepted or "an application, if YARN has accepted one,"
            progress(
                f"{name} may still be running: {_brief(error)};"
                f" `howdah kill {accepted or 'APPLICATION'}` ends it, `howdah ps` shows all"
            )
            return False  # the record lets the next submission find the application
        return True

    def submitter(self) -> str:
        return self._submitter

    @cached_property
    def _submitter(self) -> str:
        return submitter(self.config, self.directory)

    # ------------------------------------------------------------------------------- looking
    def application(self, record: Record) -> Application:
        return self._of(record.application, record.run_directory)

    def _of(self, application: str, directory: str | None) -> YarnApplication:
        login = self.config.yarn.login
        return YarnApplication(
            self.manager, application, directory, login=login, tokens=self._tokens
        )

    def by_id(self, application: str) -> Application | None:
        if not APPLICATION.fullmatch(application):
            return None
        return self._of(application, directory_of(self.manager, application))

    def in_directory(self, record: Record | None) -> Application | None:
        """The application of `directory` where its record has no id yet, or was removed.

        Any user can set any tag, so that a tag only counts on the submitter's applications.
        """
        tag = spec.tag(self.directory) if record is None else spec.claim_tag(record.token)
        user = (record and record.user) or self.config.run.user or user_of(self.manager)
        live = self.manager.applications(applicationTags=tag, user=user) if user else []
        return self._of(live[0]["id"], self.directory) if live else None

    def listed(self, *, all_users: bool, finished: bool) -> Sequence[dict[str, Any]]:
        if not self._is_configured:
            return []
        user = None if all_users else self.user
        return listed(self.manager, user=user, finished=finished)

    @property
    def user(self) -> str | None:
        return user_of(self.manager) if self._is_configured else None

    @property
    def _is_configured(self) -> bool:
        """True if this machine has the settings of a ResourceManager; some have HDFS's alone."""
        settings = hadoop_conf.load(names=hadoop_conf.YARN_FILES)
        return any(key.startswith("yarn.resourcemanager.") for key in settings.values)

    def is_live(self, record: Record) -> bool:
        try:
            return self.manager.application(record.application)["state"] not in OVER
        except NotFound:
            return False
        except ConfigError:  # YARN is not configured here, but the driver's status is readable
            return record.is_heard()

    def submitted(self, record: Record) -> str | None:
        if not record.token:
            return None
        try:
            return next(iter(self._tagged(record, states=LIVE)), None)
        except ConfigError:  # YARN is not configured here: the claim's age decides
            return None

    def _tagged(self, record: Record, states: str | None) -> list[str]:
        filters = {"applicationTags": spec.claim_tag(record.token)}
        filters |= {"states": states} if states else {}
        user = record.user or self.submitter()
        return [one["id"] for one in self.manager.applications(**filters, user=user)]

    def unrecorded(self, present: Record | None) -> str | None:
        live = self.manager.applications(
            applicationTags=spec.tag(self.directory), user=self.submitter(), states=LIVE
        )
        return live[0]["id"] if live else None


def submitter(config: Config, directory: str) -> str:
    """The name that YARN will give the application's user.

    Without Kerberos, and for a proxied user, it is the name that the client sends. With Kerberos
    the cluster's rules (hadoop.security.auth_to_local) derive it from the principal, and the
    ResourceManager does not report it beforehand. The NameNode has the same rules, and shows the
    name as the owner of a new file. For a directory elsewhere it is the principal's first part.
    """
    user = cluster_paths.user(config, config.yarn)
    if config.run.user or not hadoop_conf.load().kerberos or os.environ.get("HADOOP_PROXY_USER"):
        return user
    if not storage.on_hdfs(directory):
        return user
    return owner_here(directory) or user


def shipped(config: Config) -> str:
    """The configuration for containers, whose tokens are already the proxied user's."""
    run = config.run.model_copy(update={"user": None})
    staging = cluster_paths.staging(config, config.yarn)
    yarn = config.yarn.model_copy(update={"staging": staging, "keytab": None, "principal": None})
    return loader.dump_yaml(config.model_copy(update={"run": run, "yarn": yarn}))


def zip_settings(directory: str, conf: HadoopConf) -> str:
    """Write a .zip of the settings and of the certificates trusted here, and return its path."""
    path = os.path.join(directory, f"{spec.HADOOP}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("core-site.xml", as_xml(conf))
        if (authorities := web.authorities_file()) is not None:
            with open(authorities, "rb") as file:
                archive.writestr(web.AUTHORITIES, file.read())
    return path


def _brief(error: HowdahError) -> str:
    return f"{error.what} ({error.got})" if error.got else error.what


def _set_priority(
    manager: ResourceManager, application: str, priority: int, progress: Progress
) -> None:
    """Set the priority, because skein submits with 0."""
    try:
        actual = manager.set_priority(application, priority)
    except (ClusterError, StorageError) as error:
        progress(f"priority {priority} was not set: {_brief(error)}")
        return
    if actual != priority:
        progress(f"YARN set priority {actual}, not {priority}: a queue or the cluster limits it")
