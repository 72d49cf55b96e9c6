"""The lock that gives a run directory one job at a time: `<run.directory>/yarn/owner.json`.

A submission creates the file exclusively before it asks YARN, so that of two at once one fails, and
completes it with the application's id afterwards. If the submitter is killed in between, the
application is found by its tag. A claim is stale once YARN reports its application as over.

Any user can set and read tags, so a tag counts only on an application of the claim's own user. A
claim's tag holds its random token: no application can have it before that submission.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace

from howdah import storage
from howdah.config.model import Config
from howdah.core.processes import boot_id
from howdah.errors import AlreadyExists, ClusterError, HowdahError, NotFound
from howdah.hadoop import conf as settings
from howdah.hadoop.resourcemanager import LIVE, OVER, ResourceManager
from howdah.jobs.status import beats
from howdah.packaging import cluster_paths
from howdah.storage.directories import owner_here

_SUBMITTING_SECONDS = 600.0
"""How long a submission on another machine may take before it counts as dead."""
_TAKEOVER_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The contents of owner.json."""

    token: str
    """Of the submission; the application has the tag howdah-<token>."""
    application: str | None = None
    """None until YARN has assigned its id."""
    fingerprint: str = ""
    """Hash of the configuration."""
    submitted: float = 0.0
    """Seconds since 1970, by the submitter's clock."""
    user: str = ""
    """The application's user, by YARN's name; until it is submitted, the expected one."""
    host: str = ""
    pid: int = 0
    boot: str = ""

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def claim_tag(token: str) -> str:
    """The tag of a submission's application."""
    return f"howdah-{token}"


def submitter(config: Config) -> str:
    """The name that YARN will give the application's user.

    Without Kerberos, and for a proxied user, it is the name that the client sends. With Kerberos
    the cluster's rules (hadoop.security.auth_to_local) derive it from the principal, and the
    ResourceManager does not report it beforehand. The NameNode has the same rules, and names the
    owner of a file written there. For a run directory elsewhere it is the principal's first part.
    """
    user = cluster_paths.user(config, config.yarn)
    if config.run.user or not settings.load().kerberos or os.environ.get("HADOOP_PROXY_USER"):
        return user
    if not storage.on_hdfs(config.run.directory):
        return user
    return owner_here(config.run.directory) or user


class SubmissionLock:
    """The lock file of one run directory.

    Args:
        directory: the run directory.
        tag: the tag that its applications have.
        manager: the cluster's ResourceManager.
    """

    def __init__(self, directory: str, tag: str, manager: ResourceManager) -> None:
        self._directory = storage.join(directory, "yarn")
        self.path = storage.join(self._directory, "owner.json")
        self._tag = tag
        self._manager = manager

    def read(self) -> Claim | None:
        """The present claim, stale or not; None: there is none."""
        return _read(self.path)

    def acquire(self, token: str, fingerprint: str, user: str) -> Claim | str:
        """Our claim; or the id of the live application that holds the directory.

        Args:
            token: random, of this submission.
            fingerprint: of the configuration.
            user: `submitter`'s.
        Raises:
            ClusterError: another process is submitting to it at this moment.
        """
        ours = Claim(
            token=token, fingerprint=fingerprint, submitted=time.time(), user=user,
            host=socket.gethostname(), pid=os.getpid(), boot=_boot(),
        )  # fmt: skip
        while True:
            tagged = self._live(self._tag, user)
            if tagged:  # also if owner.json was removed
                return tagged[0]
            try:
                storage.make_dirs(self._directory)
                storage.create_exclusive(self.path, ours.as_json())
                return ours
            except AlreadyExists:
                present = self.read()
            if present is None:
                continue  # released at this moment
            application = self._live_application(present, user)
            if application is not None:
                return application
            if self._take_over(present, ours):
                return ours

    def complete(self, claim: Claim, application: str) -> Claim:
        """Write the application's id, and its user's name as YARN reports it."""
        user = claim.user
        with contextlib.suppress(HowdahError):
            user = str(self._manager.application(application).get("user") or user)
        done = replace(claim, application=application, user=user)
        storage.write_whole(self.path, done.as_json())
        return done

    def release(self, claim: Claim) -> None:
        """Remove our claim; another submission's stays."""
        present = self.read()
        if present is not None and present.token == claim.token:
            storage.remove(self.path)

    # ------------------------------------------------------------------------ stale claims
    def _live(self, tag: str, user: str) -> list[str]:
        found = self._manager.applications(applicationTags=tag, user=user, states=LIVE)
        return [app["id"] for app in found]

    def _live_application(self, claim: Claim, user: str) -> str | None:
        """The application of a claim, if it is not over; None: the claim is stale."""
        if claim.application is not None:
            try:
                over = self._manager.application(claim.application)["state"] in OVER
            except NotFound:
                return None
            return None if over else claim.application
        found = self._live(claim_tag(claim.token), claim.user or user) if claim.token else []
        if found:
            return found[0]
        if self._submitting(claim):
            raise ClusterError(
                "this run is being submitted at this moment",
                where=self.path,
                got=f"{claim.user}@{claim.host}, process {claim.pid}",
                remedy="wait for it; a submission that was killed is given up after"
                f" {_SUBMITTING_SECONDS / 60:.0f} minutes",
            )
        return None

    def _submitting(self, claim: Claim) -> bool:
        if claim.host == socket.gethostname() and claim.boot == _boot():
            import psutil

            return claim.pid != os.getpid() and psutil.pid_exists(claim.pid)
        return beats.age(self.path) < _SUBMITTING_SECONDS

    def _take_over(self, stale: Claim, ours: Claim) -> bool:
        """Replace a stale claim by ours; False: another process did it first.

        Only the process that creates the mark file may replace the claim. It reads the claim again
        after that, because another one may have replaced it and removed its own mark meanwhile.
        """
        for number in range(100):
            mark = storage.join(self._directory, f"owner-{stale.token or 'none'}.{number}")
            try:
                storage.create_exclusive(mark, ours.as_json())
            except AlreadyExists:
                if beats.age(mark) < _TAKEOVER_SECONDS:
                    return False
                continue  # the process that created it was killed
            try:
                if self.read() != stale:  # replaced, or completed by a submitter that has ended
                    return False
                storage.write_whole(self.path, ours.as_json())
                return True
            finally:
                storage.remove(mark)
        return False


def read_claim(directory: str) -> Claim | None:
    """The claim on a run directory, stale or not; None: there is none."""
    return _read(storage.join(directory, "yarn", "owner.json"))


def _read(path: str) -> Claim | None:
    try:
        fields = storage.read_object(path)
    except NotFound:
        return None
    known = {name: fields[name] for name in Claim.__dataclass_fields__ if name in fields}
    return Claim(**{"token": "", **known})


def _boot() -> str:
    try:
        return boot_id()
    except OSError:
        return ""
