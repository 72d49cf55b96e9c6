"""A run directory has one job at a time: `<run.directory>/yarn/owner.json` says which.

Claimed by exclusive creation before YARN is asked, so that two submissions at once cannot both go
on; completed with the application's id afterwards. A submitter that was killed in between is told
by the application's tag. A claim is stale once YARN says that its application is over.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from howdah import storage
from howdah.errors import AlreadyExists, ClusterError, NotFound
from howdah.hadoop.resourcemanager import LIVE, OVER, ResourceManager

__all__ = ["Claim", "Owner", "held_by"]

_SUBMITTING_SECONDS = 600.0
"""How long a submission on another machine may take before it counts as given up."""
_TAKING_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What owner.json says."""

    token: str
    """Of the submission; the application has the tag howdah-<token>."""
    application: str | None = None
    """None until YARN has told its id."""
    fingerprint: str = ""
    """Hash of the configuration."""
    submitted: float = 0.0
    """Seconds since 1970, by the submitter's clock."""
    user: str = ""
    host: str = ""
    pid: int = 0
    boot: str = ""

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def _claim(told: dict[str, Any]) -> Claim:
    known = {name: told[name] for name in Claim.__dataclass_fields__ if name in told}
    return Claim(**{"token": "", **known})


class Owner:
    """The owner file of one run directory.

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
        """The claim there is, stale or not."""
        return _read(self.path)

    def claim(self, token: str, fingerprint: str, user: str) -> Claim | str:
        """Our claim; or the id of the application that owns the directory and is not over.

        Raises:
            ClusterError: somebody is submitting to it at this moment.
        """
        ours = Claim(
            token=token, fingerprint=fingerprint, submitted=time.time(), user=user,
            host=socket.gethostname(), pid=os.getpid(), boot=_boot(),
        )  # fmt: skip
        while True:
            tagged = self._live(self._tag)
            if tagged:  # also where somebody has removed owner.json
                return tagged[0]
            try:
                storage.make_dirs(self._directory)
                storage.create_exclusive(self.path, ours.as_json())
                return ours
            except AlreadyExists:
                there = self.read()
            if there is None:
                continue  # given back this moment
            application = self._alive(there)
            if application is not None:
                return application
            if self._take_over(there, ours):
                return ours

    def complete(self, claim: Claim, application: str) -> Claim:
        """Write down the application's id."""
        done = replace(claim, application=application)
        storage.write_whole(self.path, done.as_json())
        return done

    def give_back(self, claim: Claim) -> None:
        """Remove our claim; that of another stays."""
        there = self.read()
        if there is not None and there.token == claim.token:
            storage.remove(self.path)

    # ------------------------------------------------------------------------------ others'
    def _live(self, tag: str) -> list[str]:
        found = self._manager.applications(applicationTags=tag, states=LIVE)
        return [app["id"] for app in found]

    def _alive(self, there: Claim) -> str | None:
        """The application of a claim, if it is not over; None: the claim is stale."""
        if there.application is not None:
            try:
                over = self._manager.application(there.application)["state"] in OVER
            except NotFound:
                return None
            return None if over else there.application
        found = self._live(f"howdah-{there.token}") if there.token else []
        if found:
            return found[0]
        if self._submitting(there):
            raise ClusterError(
                "this run is being submitted at this moment",
                where=self.path,
                got=f"{there.user}@{there.host}, process {there.pid}",
                remedy="wait for it; a submission that was killed is given up after"
                f" {_SUBMITTING_SECONDS / 60:.0f} minutes",
            )
        return None

    def _submitting(self, there: Claim) -> bool:
        if there.host == socket.gethostname() and there.boot == _boot():
            return there.pid != os.getpid() and os.path.exists(f"/proc/{there.pid}")
        return self._age(self.path) < _SUBMITTING_SECONDS

    def _age(self, path: str) -> float:
        """Seconds since a file was written, by the storage's own clock."""
        probe = storage.join(self._directory, f"clock-{socket.gethostname()}-{os.getpid()}")
        try:
            storage.write_whole(probe, b"")
            return storage.modified(probe) - storage.modified(path)
        except NotFound:
            return 0.0
        finally:
            storage.remove(probe)

    def _take_over(self, stale: Claim, ours: Claim) -> bool:
        """Put our claim in a stale one's place; False: another was faster.

        Who creates the mark may; the claim is read again after that, so that a mark which its
        maker has removed by now misleads nobody.
        """
        for number in range(100):
            mark = storage.join(self._directory, f"owner-{stale.token or 'none'}.{number}")
            try:
                storage.create_exclusive(mark, ours.as_json())
            except AlreadyExists:
                if self._age(mark) < _TAKING_SECONDS:
                    return False
                continue  # whoever made it died on the way
            try:
                there = self.read()
                if there != stale:  # taken over, or completed by a submitter that has ended since
                    return False
                storage.write_whole(self.path, ours.as_json())
                return True
            finally:
                storage.remove(mark)
        return False


def held_by(directory: str) -> Claim | None:
    """The claim on a run directory, stale or not."""
    return _read(storage.join(directory, "yarn", "owner.json"))


def _read(path: str) -> Claim | None:
    try:
        told = storage.read_json(path)
    except NotFound:
        return None
    return _claim(told)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
