"""Real jobs whose phases take long, and ranks that really stop inside them.

hang_seconds is small and slowness is injected (tests/workers/slow): an evaluation of many times
hang_seconds is then one of a minute. By default one framework and one kind of job; all in
`make test-all`.
"""

import json
import os

import pytest

from tests.fixtures.dataset import build_dataset
from tests.runs import fault_table
from tests.runs.jobs.local_jobs import ROOT, LocalJob
from tests.runs.training_runs import NO_DROPOUT, SETTINGS
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mpi

LIMIT = 600  # seconds; detects a hang
HANG = 5
CALM = 8  # where no rank may be lost: other tests beside may hold a process back for seconds
full = pytest.mark.full


@pytest.fixture
def job(tmp_path, tiny_model_dir):
    """Makes jobs of two workers, and ends them."""
    made = []
    rows = {"train": 96, "validation": 900}  # enough batches that each of them is short
    build_dataset(str(tmp_path / "data"), model_dir=tiny_model_dir, rows=rows)

    def make(framework, *, elastic, slow=None, stop=None, steps=12, hang=HANG, **settings):
        values = SETTINGS | NO_DROPOUT | {
            "data.dataset": str(tmp_path / "data"),
            "model.base": tiny_model_dir,
            "training.framework": framework,
            "training.max_steps": steps,
            "training.num_train_epochs": 10**6,
            "checkpoint.every_steps": 5,
            "evaluation.every_steps": 10**6,
            "evaluation.splits": [],
            "job.hang_seconds": hang,
            "job.workers": 2,
            "job.commit_every": 2,
        } | settings  # fmt: skip
        if elastic:
            values |= {"job.min_workers": 1, "job.max_workers": 2}
        path = os.pathsep.join([os.path.join(ROOT, "tests", "workers", "slow"), str(ROOT)])
        env = {
            "PYTHONPATH": path, "SLOW": json.dumps(slow or {}), "STOP": json.dumps(stop or {}),
            "STRUCK": str(tmp_path), "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        one = LocalJob(tmp_path / f"job{len(made)}", light=False, env=env, **nested(values))
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()


BRIEF = {"verify": 3.0, "evaluate": 3.0 * CALM, "save": 2.0 * CALM, "away": 1.5 * CALM}
# Of these the old limit was ten times hang_seconds for a phase, and hang_seconds inside a step.
SHORT = {"verify": 3.0, "evaluate": 11.0 * CALM, "save": 2.0 * CALM, "away": 1.5 * CALM}
LONG = {"verify": 10.0 * CALM, "evaluate": 30.0 * CALM, "save": 5.0 * CALM, "away": 3.0 * CALM}


def check_long_phases(one, evaluation):
    status = one.wait(
        lambda s: any("evaluating validation:" in r["doing"] for r in s["ranks"]),
        "an evaluation that says how far it is", LIMIT,
    )  # fmt: skip
    assert "evaluating validation: " in one.page()
    assert any("rows" in r["doing"] for r in status["ranks"])
    code, verdict, status = one.end(LIMIT)
    what = "\n".join(event["what"] for event in status["events"]) + "\n" + one.log.read_text()
    assert (code, verdict["status"]) == (0, "SUCCEEDED"), what
    assert (status["restarts"], status["tries"], status["generation"]) == (0, 1, 1), what
    lines = [line for _, line in status["lines"]]
    if evaluation > 40:  # a phase is spoken of after half a minute
        assert any(line.startswith("evaluating validation: ") for line in lines)
    assert any("trying again for up to" in line for line in lines)
    assert status["last_checkpoint"]["step"] == 12


@pytest.mark.full  # a rank that does stop in a phase is in every run
def test_phases_that_take_a_few_limits_cost_no_rank(job):
    check_long_phases(job("torch", elastic=True, slow=BRIEF, hang=CALM), BRIEF["evaluate"])


@full
@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_phases_that_take_many_limits_cost_no_rank(job, framework, elastic):
    check_long_phases(job(framework, elastic=elastic, slow=SHORT, hang=CALM), SHORT["evaluate"])


@full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_an_evaluation_of_thirty_limits(job, framework, elastic):
    check_long_phases(job(framework, elastic=elastic, slow=LONG, hang=CALM), LONG["evaluate"])
    kind = "elastic" if elastic else "static"
    fault = f"{kind}: evaluation of 30, save of 5, storage away for 3 times hang_seconds"
    fault_table.add_local(framework, fault, None, "undisturbed")


WAYS = [
    pytest.param(phase, how, marks=[] if (phase, how) in shown else full)
    for shown in [{("save", "read")}]
    for phase in ("verify", "step", "input", "evaluate", "save", "away")
    for how in ("SIGSTOP", "deadlock", "read")
]
KINDS = [
    ("torch", True),
    *[pytest.param(*kind, marks=full)
      for kind in (("tensorflow", True), ("torch", False), ("tensorflow", False))],
]  # fmt: skip


@pytest.mark.parametrize(("framework", "elastic"), KINDS)
@pytest.mark.parametrize(("phase", "how"), WAYS)
def test_a_rank_that_stops_inside_a_phase_is_found(job, tmp_path, framework, elastic, phase, how):
    """After hang_seconds, and 10 s at most: twice that detects a hang of the driver itself."""
    settings = {} if elastic else {"job.max_restarts": 1}
    stop = {"phase": phase, "how": how, "rank": 0}
    slow = {"away": 4.0 * HANG} if phase == "away" else None
    one = job(framework, elastic=elastic, slow=slow, stop=stop, **settings)
    status = one.wait(
        lambda s: any(") hangs: " in e["what"] for e in s["events"]), "the rank that hangs", LIMIT
    )
    verdict = next(e for e in status["events"] if ") hangs: " in e["what"])
    seconds = verdict["time"] - os.stat(tmp_path / "stopped").st_mtime
    kind = "elastic" if elastic else "static"
    fault_table.add_local(framework, f"{kind}: stops in {phase} by {how}", seconds, "-")
    assert seconds < 2 * (HANG + 10)
    assert verdict["what"].startswith("rank 0 ")
    code, verdict, status = one.end(LIMIT)
    what = "\n".join(event["what"] for event in status["events"])
    assert (code, verdict["status"]) == (0, "SUCCEEDED"), what
    assert what.count(") hangs: ") == 1, what  # and no other
    wait_until(lambda: not one.processes())


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=full)])
def test_a_stopped_rank_that_the_others_gave_up_before_hang_seconds_is_named(job, framework):
    """Gloo's limit is shorter: the rank that waited ends first. (Where only the main thread hangs,
    Horovod's own still answers, and hang_seconds finds it.)"""
    stop = {"phase": "evaluate", "how": "SIGSTOP", "rank": 0}
    limits = {"job.max_restarts": 1, "job.gloo_timeout_seconds": 3}
    one = job(framework, elastic=False, stop=stop, hang=120, **limits)
    code, verdict, status = one.end(LIMIT)
    events = [event["what"] for event in status["events"]]
    what = "\n".join(events)
    assert (code, verdict["status"]) == (0, "SUCCEEDED"), what
    [waited, stopped] = [event for event in events if " was lost: " in event]
    assert waited.startswith("rank 1 ") and "missed a collective" in waited, what
    assert stopped.startswith("rank 0 "), what
    assert "the other ranks waited for it in vain: stopped by a signal for" in stopped, what
    wait_until(lambda: not one.processes())
