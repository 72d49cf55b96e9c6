"""What a fault costs a job of real training on a cluster: done, waited for, written down."""

import re
import time

from tests.runs import fault_table
from tests.runs.jobs.local_jobs import kill, parent
from tests.runs.jobs.submitted_jobs import gone

TRAINING = {
    "max_steps": 10**6, "num_train_epochs": 10**6, "global_batch_size": 12, "logging_steps": 1,
    "precision": "fp32", "threads_per_rank": 1,
}  # fmt: skip
CHECKPOINT = {"every_steps": fault_table.SETTINGS["checkpoint"], "every_epoch": False}
JOB = {
    "min_workers": 1, "max_workers": 2, "max_restarts": 100,
    "commit_every": fault_table.SETTINGS["commit"], "hang_seconds": fault_table.SETTINGS["hang"],
}  # fmt: skip


def elastic(one, framework, fault, where, harm, restore=lambda: None):
    """A fault that the job itself repairs: seconds until it trains, and until all do.

    Args:
        where: the cluster, as the table names it.
        harm: does it.
        restore: brings back what the job needs for its second worker; its time counts.
    """
    status = one.trains(2, seconds=300)
    generation, step = status["generation"], status["step"]
    began = time.monotonic()
    harm()
    resumed = one.wait(
        lambda s: s["generation"] > generation and s["world_size"] and (s["step"] or 0) > step,
        f"training after: {fault}", 200,
    )  # fmt: skip
    again = time.monotonic() - began
    restore()
    whole = one.trains(2, generation, 300)
    seconds = time.monotonic() - began
    events = [event["what"] for event in resumed["events"]]
    first = next(e for e in events if e.startswith(f"generation {generation + 1}:"))
    kept = re.search(r"the state of step (\d+)", first)
    assert kept, first
    repeated = max(0, step - int(kept[1]))
    row = fault_table.Row(
        framework, f"{fault} (on {where})", repeated, round(again, 1), round(seconds, 1),
        "memory", None,
    )  # fmt: skip
    fault_table.add(row)
    print(row)
    return whole


def driver_killed(one, framework, where):
    """The job ends with its driver; submitted again, it goes on from its newest checkpoint."""
    status = one.wait(
        lambda s: s["last_checkpoint"] and len(s["ranks"]) == 2, "a checkpoint of two ranks", 200
    )
    step, started = status["step"], one.descendants()
    began = time.monotonic()
    one.driver.kill()
    gone(started)
    assert one.json("status", one.application)["state"] == "LOST"
    one.submit()
    one.trains(2, seconds=300)
    seconds = round(time.monotonic() - began, 1)
    repeated = max(0, step - one.run_json()["attempts"][-1]["resumed_at_step"])
    row = fault_table.Row(
        framework, f"driver killed (on {where})", repeated, seconds, seconds,
        "newest checkpoint", 0,
    )  # fmt: skip
    fault_table.add(row)
    print(row)


def agent(one, rank):
    """Kill the agent of a rank."""
    kill(parent(one.rank(rank)["pid"]))


def holder(one, rank, *, spark):
    """The cluster's process that a rank's agent is a child of: an actor's, an executor's JVM."""
    worker = parent(parent(one.rank(rank)["pid"]))
    return parent(parent(worker)) if spark else worker  # pyspark's worker, its daemon, the executor
