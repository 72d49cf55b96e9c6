"""The claim on a run directory: one submission at a time, with a stand-in for YARN."""

import dataclasses
import multiprocessing
import os
import socket

import pytest

from howdah.config import loader
from howdah.core.processes import process_start
from howdah.errors import ClusterError, NotFound
from howdah.jobs import record
from howdah.jobs.record import Record
from howdah.jobs.submit import Claims
from howdah.yarn import spec
from howdah.yarn.cluster import YarnCluster


class Manager:
    """The ResourceManager's answers about applications."""

    def __init__(self):
        self.states = {}
        self.tags = {}

    def application(self, application):
        if application not in self.states:
            raise NotFound("YARN has no such application or resource", where=application)
        return {"id": application, "state": self.states[application], "user": "me"}

    def applications(self, applicationTags, user, states=None):
        live = [a for a in self.tags.get(applicationTags, []) if self.states[a] == "RUNNING"]
        return [{"id": application} for application in live]


APP = "application_1_0001"


@pytest.fixture
def manager():
    return Manager()


class Submitter(YarnCluster):
    """A submitter with a stand-in for its ResourceManager."""

    def __init__(self, directory, manager):
        super().__init__(loader.from_dict({"run": {"directory": directory}}))
        self.manager = manager
        self.claims = Claims(self, lambda name: self)

    def submitter(self):
        return "me"

    def acquire(self, token):
        ours = Record.of_this_process(
            token=token, on="yarn", run_directory=self.directory, fingerprint="f", user="me"
        )
        return self.claims.acquire(ours)

    def complete(self, claim, application):
        return self._complete(claim, application)

    def read(self):
        return record.read(self.directory)


@pytest.fixture
def lock(tmp_path, manager):
    return Submitter(str(tmp_path / "run"), manager)


def test_a_run_directory_is_claimed_and_completed_once(lock, manager):
    mine = lock.acquire("t1")
    assert mine.token == "t1"
    lock.complete(mine, APP)
    manager.states[APP] = "RUNNING"
    assert lock.acquire("t2").application == APP
    assert lock.read().application == APP
    manager.states[APP] = "FINISHED"
    assert lock.acquire("t3").token == "t3"
    lock.claims.release(mine)  # another claim has replaced it
    assert lock.read().token == "t3"
    lock.claims.release(lock.read())
    assert lock.read() is None


def test_an_application_that_yarn_has_forgotten_is_over(lock):
    lock.complete(lock.acquire("t1"), APP)
    assert lock.acquire("t2").token == "t2"


def test_a_submitter_that_was_killed_before_it_wrote_the_id_is_found_by_its_tag(lock, manager):
    dataclasses.replace(lock.acquire("t1"), pid=2**22 + 1).write()
    manager.states[APP], manager.tags["howdah-t1"] = "RUNNING", [APP]
    assert lock.acquire("t2").application == APP
    manager.states[APP] = "KILLED"
    assert lock.acquire("t2").token == "t2"


def test_the_application_is_found_by_its_tag_if_the_record_was_removed(lock, manager):
    manager.states[APP], manager.tags[spec.tag(lock.directory)] = "RUNNING", [APP]
    claim = lock.acquire("t2")
    assert (claim.application, claim.fingerprint) == (APP, "")  # attached to by no submission
    assert lock.read() is None


def test_the_record_of_a_killed_submitter_is_completed_by_the_run_s_tag(lock, manager):
    dataclasses.replace(lock.acquire("t1"), pid=2**22 + 1).write()
    manager.states[APP], manager.tags[spec.tag(lock.directory)] = "RUNNING", [APP]
    assert lock.acquire("t2") == lock.read()
    assert (lock.read().application, lock.read().token) == (APP, "t1")


def test_a_submission_in_progress_is_not_taken_over(lock):
    here = lock.acquire("t1")
    parent = os.getppid()
    running = dataclasses.replace(here, pid=parent, start=process_start(parent))
    elsewhere = dataclasses.replace(here, host=socket.gethostname() + "-other", pid=1)
    for claim in (running, elsewhere):
        claim.write()
        with pytest.raises(ClusterError, match="at this moment") as caught:
            lock.acquire("t2")
        assert caught.value.got == f"process {claim.pid} on {claim.host}, user me"


def _race(directory, number, start, results):
    """One submitter in a process of its own; for its ResourceManager only APP is over."""

    class Others(Manager):
        def application(self, application):
            return {"state": "FAILED" if application == APP else "RUNNING"}

    mine = Submitter(directory, Others())
    start.wait()
    try:
        claim = mine.acquire(f"n{number}")
    except ClusterError:
        results.put(None)
        return
    if not claim.application:
        mine.complete(claim, f"{APP}{number}")
    results.put(claim.application or claim.token)


def test_one_of_many_submissions_replaces_a_stale_claim(lock, manager, tmp_path):
    lock.complete(lock.acquire("t0"), APP)
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        lock.complete(lock.read(), APP)  # stale again
        start, results = context.Barrier(6), context.Queue()
        racers = [
            context.Process(target=_race, args=(str(tmp_path / "run"), n, start, results))
            for n in range(6)
        ]
        for racer in racers:
            racer.start()
        answers = [results.get(timeout=60) for _ in racers]
        for racer in racers:
            racer.join()
        winners = [t for t in answers if t is not None and t.startswith("n")]
        assert len(winners) == 1, answers
        assert lock.read().token == winners[0]
        assert {t for t in answers if t is not None} <= {winners[0], f"{APP}{winners[0][1:]}"}
