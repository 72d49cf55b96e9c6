"""Driver and agents with real processes and real signals, and light workers in training's place."""

import json
import os
import signal
import time

import pytest

from tests.runs.jobs.local_jobs import LocalJob, kill, parent
from tests.runs.jobs.watched_job import in_step
from tests.support.jobs.steps import check_state
from tests.support.waiting import wait_until

ENDLESS = 10**6
full = pytest.mark.full


@pytest.fixture
def job(tmp_path):
    """Makes jobs, and ends them."""
    made = []

    def make(*, workers=2, steps=30, env=None, nodes="a,b", directory=tmp_path, attempt=1, **keys):
        one = LocalJob(
            directory,
            nodes=nodes,
            env=env,
            attempt=attempt,
            training={"max_steps": steps},
            job={"workers": workers, "commit_every": 5, **keys},
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()


def elastic(job, **keys):
    return job(steps=keys.pop("steps", ENDLESS), **{"min_workers": 1, "max_workers": 3, **keys})


def fault(**what):
    return {"FAULT": json.dumps(what)}


def repeated(one, pid):
    steps = [row["step"] for row in one.did() if row["what"] == "step" and row["pid"] == pid]
    return len(steps) - len(set(steps))


# -------------------------------------------------------------------------------- fixed size
def test_a_job_runs_to_its_end(job):
    one = job(workers=3, nodes="a,b,a")
    code, verdict, status = one.end()
    assert (code, verdict["status"], status["state"]) == (0, "SUCCEEDED", "finished")
    assert (status["step"], status["total_steps"], status["exit_code"]) == (30, 30, 0)
    worlds = {row["rank"]: row["env"] for row in one.did() if row["what"] == "world"}
    places = [
        tuple(int(worlds[rank][f"HOROVOD_{word}"]) for word in
              ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"))
        for rank in range(3)
    ]  # fmt: skip
    by_node = {rank: worlds[rank]["HOROVOD_HOSTNAME"] for rank in range(3)}
    assert sorted(by_node.values()) == ["a", "a", "b"]
    of_a = [places[rank] for rank in range(3) if by_node[rank] == "a"]
    assert [place[:2] for place in of_a] == [(0, 2), (1, 2)]
    assert of_a[1][2:] == (0, 1)  # the only node with a second rank
    assert worlds[0]["HOROVOD_GLOO_IFACE"] == "lo"
    assert worlds[0]["HOROVOD_ELASTIC"] == "0"
    assert status["last_checkpoint"]["step"] == 20
    check_state(one)
    wait_until(lambda: not one.processes())


@pytest.mark.parametrize("attempts", [1, pytest.param(2, marks=full)])
def test_a_lost_worker_ends_the_job_or_begins_the_next_try(job, attempts):
    one = job(steps=60, max_restarts=attempts - 1, env=fault(rank=1, step=45, do="crash"))
    code, verdict, status = one.end()
    if attempts == 2:
        assert (code, status["state"], status["tries"]) == (0, "finished", 2)
        begun = [row["step"] for row in one.did() if row["what"] == "world"]
        assert begun == [0, 0, 0, 0]
        first = next(r for r in one.did() if r["what"] == "step" and r["generation"] == 2)
        assert first["step"] == 41  # after the checkpoint of step 40
        return
    assert (code, verdict["status"], status["state"]) == (6, "FAILED", "failed")
    error = status["error"]
    assert "rank 1 on" in error["what"]
    assert "signal 11" in error["what"]
    assert "the last words of a crash" in error["got"]
    assert error["what"] in verdict["diagnostics"]
    assert "container_01_" in error["where"]


@full
def test_an_error_that_would_come_again_is_not_tried_again(job):
    one = job(max_restarts=2, env=fault(rank=1, step=5, do="data error"))
    code, verdict, status = one.end()
    assert (code, status["tries"], status["error"]["error"]) == (3, 1, "DataError")
    assert "a shard is damaged" in verdict["diagnostics"]
    assert "rank 1 on" in verdict["diagnostics"]


def test_workers_that_do_not_all_come_are_given_back_and_asked_for_again(job):
    one = job(gang_seconds=2, gang_attempts=50)
    one.capacity(1)
    one.wait(lambda s: any("releasing all" in e["what"] for e in s["events"]), "a pause")
    one.wait(lambda s: s["state"] == "waiting", "another try")
    one.capacity(2)
    assert one.end()[0] == 0


@full
def test_a_job_that_never_gets_its_workers_says_what_it_got(job):
    one = job(gang_seconds=10, gang_attempts=2)
    one.capacity(1)
    code, verdict, status = one.end()
    assert (code, verdict["status"]) == (5, "FAILED")
    assert "1 of 2 workers" in status["error"]["got"]
    assert "in 2 requests" in status["error"]["got"]


# ------------------------------------------------------------------------------------ elastic
def test_a_killed_process_is_replaced_and_the_survivor_goes_on(job):
    one = elastic(job)
    status = one.trains(2)
    survivor, victim = one.rank(0), one.rank(1)
    kill(victim["pid"])
    status = one.trains(2, status["generation"] + 1)
    assert status["restarts"] == 1
    assert one.rank(0)["pid"] == survivor["pid"]
    assert one.rank(1)["container"] == victim["container"]  # a new process in its place
    assert repeated(one, survivor["pid"]) <= 5
    check_state(one)


@full
def test_the_new_rank_0_is_a_survivor(job):
    one = elastic(job)
    status = one.trains(2)
    second = one.rank(1)
    kill(one.rank(0)["pid"])
    one.trains(2, status["generation"] + 1)
    assert one.rank(0)["pid"] == second["pid"]
    assert repeated(one, second["pid"]) <= 5
    check_state(one)


def test_a_killed_agent_takes_its_process_along_and_is_replaced(job):
    one = elastic(job)
    status = one.trains(2)
    victim = one.rank(1)
    kill(parent(victim["pid"]))
    one.trains(2, status["generation"] + 1)
    wait_until(lambda: not os.path.exists(f"/proc/{victim['pid']}"))
    assert one.rank(1)["container"] != victim["container"]
    check_state(one)


def test_workers_that_find_no_gpu_are_refused_and_the_job_names_their_node(job, tmp_path):
    # A real agent on a machine without a GPU; YARN would have counted one.
    one = job(worker={"gpus": 1}, nodes="a", env={"CUDA_VISIBLE_DEVICES": ""})
    code, verdict, _ = one.end()
    assert (code, verdict["status"]) == (5, "FAILED")
    assert "requested GPUs and cannot use enough" in verdict["diagnostics"]
    assert "node a" in verdict["diagnostics"]
    assert "CUDA_VISIBLE_DEVICES=''" in verdict["diagnostics"]
    assert not one.did()  # no step on a CPU
    refused = [event for event in one.events() if "is refused" in event]
    assert len(refused) == 3
    logs = [path.read_text() for path in one.job.glob("containers/*/**/*") if path.is_file()]
    assert any("requested GPUs and cannot use enough" in text for text in logs)


def test_a_stopped_process_is_named_and_replaced(job):
    one = elastic(job, hang_seconds=5)
    status = one.trains(2)
    victim = one.rank(1)
    kill(victim["pid"], signal.SIGSTOP)
    one.trains(2, status["generation"] + 1)
    events = " ".join(one.events())
    assert f"rank 1 on {victim['node']} ({victim['container']}) hangs: stopped" in events, events
    assert "T (stopped by a signal)" in events
    check_state(one)


@full
def test_a_stopped_agent_is_given_up_with_its_container(job):
    one = elastic(job, contact_seconds=10)
    status = one.trains(2)
    victim = one.rank(1)
    kill(parent(victim["pid"]), signal.SIGSTOP)
    one.trains(2, status["generation"] + 1)
    assert one.rank(1)["container"] != victim["container"]
    assert any("was silent for 10 s" in event for event in one.events())
    wait_until(lambda: not os.path.exists(f"/proc/{victim['pid']}"))
    check_state(one)


def test_a_hanging_process_is_named_with_its_stacks(job):
    one = job(hang_seconds=5, steps=ENDLESS, env=fault(rank=1, step=10, do="hang"))
    code, _, status = one.end()
    assert code == 6
    assert "in phase compute" in status["error"]["what"]
    assert "hang_in_a_function_with_a_name" in status["error"]["got"]


def test_a_preempted_container_is_no_failure(job):
    one = elastic(job)
    status = one.trains(2)
    one.preempt(one.rank(1)["container"])
    one.trains(2, status["generation"] + 1)
    status = one.wait(lambda s: s["preemptions"] == 1, "the cluster's word")
    assert status["restarts"] == 0


@full  # in every run by command: tests/jobs/clusters/test_clusters.py
def test_a_job_shrinks_and_grows_on_request(job):
    one = elastic(job)
    status = one.trains(2)
    first = one.rank(0)["pid"]
    for workers in (3, 1, 2):
        one.ask(type="scale", workers=workers)
        status = one.trains(workers, status["generation"])
    assert one.rank(0)["pid"] == first
    assert repeated(one, first) == 0  # who leaves in good order repeats nothing
    one.ask(type="scale", workers=9)
    one.wait(lambda s: any("refused" in e["what"] for e in s["events"]), "a refusal")
    assert one.status["wanted"] == 2
    check_state(one)


@full
def test_a_job_goes_on_smaller_while_nothing_else_is_to_be_had(job):
    one = elastic(job)
    status = one.trains(2)
    one.capacity(1)
    kill(parent(one.rank(1)["pid"]))
    status = one.trains(1, status["generation"])
    one.capacity(2)
    one.trains(2, status["generation"])
    check_state(one)


@full  # in every run with real training: tests/training/elastic
def test_when_all_are_lost_the_newest_checkpoint_is_the_state(job):
    one = elastic(job)
    status = one.wait(lambda s: s["last_checkpoint"] and in_step(s, 2), "a checkpoint")
    for rank in status["ranks"]:  # of one status: another would name who has replaced the first
        kill(rank["pid"])
    one.trains(2, status["generation"])
    new = [row for row in one.did() if row["what"] == "world"][-1]
    begun = next(r for r in one.did() if r["what"] == "step" and r["pid"] == new["pid"])
    assert new["keep"] is False
    assert begun["step"] % 20 == 1  # checkpoints are made every 20 steps
    check_state(one)


@full
def test_too_many_failures_end_the_job(job):
    one = elastic(
        job, max_restarts=2, min_workers=2, env=fault(rank=1, step=7, do="crash", always=1)
    )
    one.run_directory.mkdir(exist_ok=True)
    (one.run_directory / "run.json").write_text('{"status": "running", "run_id": "x"}')
    code, _, status = one.end()
    assert code == 6
    run_file = json.loads((one.run_directory / "run.json").read_text())
    assert run_file == {"status": "failed", "run_id": "x", "error": status["error"]["what"]}
    assert status["error"]["what"] == "too many workers have failed"
    assert status["error"]["got"].startswith("3; the last: rank 1")


def test_stop_saves_first_if_asked(job):
    one = elastic(job)
    one.trains(2)
    one.ask(type="stop", save=True)
    code, verdict, status = one.end()
    assert (code, verdict["status"], status["state"]) == (143, "KILLED", "killed")
    last = [row for row in one.did() if row["what"] == "step"][-1]
    assert status["last_checkpoint"]["step"] == last["step"]


@full
def test_a_slow_rank_is_named(job):
    one = elastic(job, env=fault(rank=1, do="slow"))
    status = one.wait(lambda s: any(r["straggler"] for r in s["ranks"]), "a straggler")
    assert [r["rank"] for r in status["ranks"] if r["straggler"]] == [1]
    assert "slower than the others" in one.page()


# ------------------------------------------------------------------------------- the driver
def test_a_killed_driver_leaves_no_process_and_the_next_resumes(job):
    one = job(steps=ENDLESS)
    saved = one.wait(lambda s: s["last_checkpoint"], "a checkpoint")["last_checkpoint"]["step"]
    one.driver.kill()
    one.driver.wait()
    wait_until(lambda: not one.processes())
    assert not (one.job / "finish.json").exists()
    before = {row["pid"] for row in one.did()}
    code, _, status = job(steps=saved + 200, attempt=2, env={"STEP_SECONDS": "0"}).end()
    assert (code, status["attempt"], status["step"]) == (0, 2, saved + 200)
    first = next(r for r in check_state(one) if r["pid"] not in before)
    assert first["step"] > saved
    assert first["step"] % 20 == 1  # right after a checkpoint


def test_a_terminated_driver_ends_its_agents_and_gives_no_verdict(job):
    one = elastic(job)
    one.trains(2)
    one.driver.terminate()
    code, verdict, _ = one.end()
    assert (code, verdict) == (143, None)
    wait_until(lambda: not one.processes())


@pytest.mark.parametrize(
    ("contact_seconds", "seconds"), [(10, 6.0), pytest.param(60, 20.0, marks=full)]
)
def test_a_driver_that_is_stopped_for_a_while_loses_no_worker(job, contact_seconds, seconds):
    one = elastic(job, contact_seconds=contact_seconds)
    before = one.trains(2)
    pids = [rank["pid"] for rank in before["ranks"]]
    one.driver.send_signal(signal.SIGSTOP)
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until)
    one.driver.send_signal(signal.SIGCONT)
    after = one.wait(lambda s: s["step"] and s["step"] > before["step"] + 100, "more steps")
    assert [rank["pid"] for rank in after["ranks"]] == pids
    assert (after["generation"], after["restarts"]) == (before["generation"], 0)
    kill(pids[1])  # it decides as before
    one.trains(2, after["generation"] + 1)
    check_state(one)


@full  # a killed driver is in every run
def test_agents_of_a_driver_that_stays_stopped_end_by_themselves(job):
    one = elastic(job, contact_seconds=5)
    one.trains(2)
    one.driver.send_signal(signal.SIGSTOP)
    wait_until(lambda: not one.processes())
    one.driver.kill()


def everything(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@full  # while the next attempt trains: below, in every run
def test_a_driver_that_wakes_after_the_next_attempt_s_end_changes_nothing(job):
    one = job(steps=ENDLESS, contact_seconds=5)
    one.wait(lambda s: s["last_checkpoint"], "a checkpoint")
    one.driver.send_signal(signal.SIGSTOP)  # as if its machine was asleep: YARN starts another one
    wait_until(lambda: not one.processes())
    two = job(steps=100, attempt=2, env={"STEP_SECONDS": "0"})
    code, verdict, status = two.end()
    assert (code, verdict["status"], status["attempt"]) == (0, "SUCCEEDED", 2)
    run = one.run_directory
    (run / "run.json").write_text('{"status": "finished"}')
    (run / "metrics.jsonl").write_text('{"step": 100}\n')
    before = everything(run)
    one.driver.send_signal(signal.SIGCONT)
    assert one.driver.wait(60) == 5
    assert everything(run) == before
    assert not (one.job / "finish.json").exists()  # the driver did not finish the application
    log = one.log.read_text()
    assert "a later attempt has taken over this job" in log
    assert "attempt 2 of local_1" in log


def test_a_driver_that_wakes_while_the_next_attempt_trains_forms_no_world(job):
    one = elastic(job, contact_seconds=60)
    before = one.trains(2)
    one.driver.send_signal(signal.SIGSTOP)
    two = job(steps=ENDLESS, attempt=2)
    trains = two.trains(2)
    one.driver.send_signal(signal.SIGCONT)
    assert one.driver.wait(60) == 5
    pids = {rank["pid"] for rank in before["ranks"]}
    wait_until(lambda: not pids & set(two.processes()))  # of the first attempt: its agents left
    more = two.wait(lambda s: s["step"] > trains["step"] + 20, "more steps")
    assert (more["generation"], more["attempt"]) == (trains["generation"], 2)
    assert two.file["attempt"] == 2
