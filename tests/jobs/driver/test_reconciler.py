"""The thread that carries the job's decisions out on the cluster."""

import threading

import pytest

from howdah.errors import ClusterError
from howdah.jobs.driver import reconciler
from tests.runs.jobs.stand_in_cluster import StandInDriver


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(reconciler, "_LIST_SECONDS", 0.01)
    monkeypatch.setattr(reconciler, "_RETRY_SECONDS", 0.01)


def test_a_cluster_that_does_not_answer_is_asked_until_it_has_left_the_driver(quick):
    class Away(StandInDriver):
        calls = 0

        def __init__(self):
            pass

        def containers(self):
            self.calls += 1
            raise ClusterError("the master does not answer")

        def abandoned(self):
            return "it has ended" if self.calls == 5 else None

    backend, lines, reasons, over = Away(), [], [], threading.Event()

    def abandoned(reason):
        reasons.append(reason)
        over.set()

    made = reconciler.Reconciler(
        backend, listed=pytest.fail, progress=lambda: 0.0, say=lines.append, abandoned=abandoned
    )
    made.start()
    assert over.wait(30)
    made.close(30)
    assert (backend.calls, reasons, len(lines)) == (5, ["it has ended"], 1)
