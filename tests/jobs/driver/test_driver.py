"""The driver decides without processes: gangs, losses, new worlds, what counts as a restart."""

import pytest

from howdah.errors import UsageError
from howdah.jobs.backend import Container
from howdah.jobs.driver import faults
from howdah.jobs.driver.failure_budget import FailureBudget
from howdah.jobs.driver.members import Loss
from howdah.jobs.driver.worlds import Gang
from tests.runs.jobs.driver_world import World, elastic


# ------------------------------------------------------------------------------------- jobs
def test_a_world_is_formed_when_all_are_ready():
    w = World()
    w.come("a", "b")
    w.report("a", "ready")
    w.pass_time(30)
    assert w.job.mode == "waiting"
    assert w.actions.take("start") == ["a", "b"]
    w.report("b", "ready")
    w.pass_time(1)
    assert (w.job.mode, w.actions.generations, w.actions.take("world")) == (
        "running",
        [1],
        ["a", "b"],
    )


def test_more_agents_than_wanted_are_not_welcome():
    w = World()
    assert w.come("a", "b", "c") == [True, True, False]
    assert w.come("a") == [True]  # asked again: its answer was lost


def test_a_gang_that_is_not_whole_in_time_is_given_back():
    w = World()
    w.come("a")
    w.pass_time(62)
    assert (w.actions.take("leave"), w.actions.released, w.actions.kept) == (["a"], ["a"], [2, 0])
    assert w.come("late") == [False]
    w.pass_time(10)
    assert w.actions.kept == [2, 0, 2]
    assert w.come("b") == [True]
    w.pass_time(62 + 20)
    w.pass_time(62)
    assert w.job.error.exit_code == 5
    assert "1 of 2" in w.job.error.got or "0 of 2" in w.job.error.got


def test_pauses_are_random_and_end():
    lengths = set()
    for _ in range(20):
        gang = Gang(300.0, 10)
        lengths.add(gang.give_up(0.0))
        assert gang.pausing
        assert gang.pause_over(10.0)
        assert not gang.pausing
        assert not gang.pause_over(10.0)
    assert len(lengths) == 20
    assert Gang(300.0, 1).give_up(0.0) is None


def test_a_slow_import_is_not_a_missing_worker():
    w = World()
    w.come("a", "b")
    w.pass_time(200)
    assert w.job.mode == "waiting"
    assert w.actions.kept == [2]
    w.pass_time(150)
    assert set(w.actions.take("kill")) == {"a", "b"}


def test_a_static_job_names_the_cause_and_not_its_consequences():
    w = World()
    w.train("a", "b")
    consequence = {"consequence": True, "exit_code": 6, "error": {"error": "RankLost", "what": "x"}}
    w.die("a", 6, consequence)
    w.die("b", -9)
    w.pass_time(1)
    assert "rank 1 on n (b) was lost" in w.job.error.what
    assert "last words" in w.job.error.got
    w.end()


def test_a_static_job_is_tried_again_in_the_same_containers():
    w = World(tries=2)
    w.train("a", "b")
    w.actions.take("start")
    w.die("b")
    w.pass_time(2)
    assert w.job.mode == "failing"  # rank 0 may save what it has
    w.pass_time(15)
    assert w.actions.take("kill") == ["a"]
    w.die("a")
    w.pass_time(1)
    assert set(w.actions.take("start")) == {"a", "b"}
    assert w.job.error is None


def test_a_preempted_worker_of_a_static_job_costs_no_try():
    w = World(tries=1)
    w.train("a", "b")
    w.job.gone("b", "it was silent", w.now)
    w.die("a", 6, {"consequence": True, "error": None})
    w.pass_time(3)
    assert w.job.mode == "failing"  # until the cluster says why
    w.job.listed([Container("b", "n", "ended", None, "preempted")], w.now)
    w.pass_time(1)
    assert (w.job.mode, w.job.budget.tries, w.job.budget.preemptions) == ("waiting", 1, 1)
    assert w.come("c") == [True]


@pytest.mark.parametrize(("reason", "counts"), [("preempted", (0, 1)), ("killed", (1, 0))])
@pytest.mark.parametrize("told_first", [True, False])
def test_a_process_that_ends_with_its_container_is_one_loss(reason, counts, told_first):
    w = elastic()
    w.train("a", "b")
    if told_first:  # the agent had a moment to tell of it
        w.die("b", -15)
    w.job.listed([Container("b", "n", "ended", None, reason)], w.now)
    w.pass_time(1)
    assert (w.job.budget.restarts, w.job.budget.preemptions) == counts


def test_a_process_that_ended_long_before_its_container_is_another_loss():
    w = elastic()
    w.train("a", "b")
    w.die("b")
    w.pass_time(60)
    w.job.listed([Container("b", "n", "ended", None, "preempted")], w.now)
    assert (w.job.budget.restarts, w.job.budget.preemptions) == (1, 1)


def test_the_other_ranks_change_at_a_loss_and_go_on_without_waiting():
    w = elastic()
    w.train("a", "b")
    w.die("a")
    assert w.actions.take("change") == ["b"]
    assert w.actions.take("start")[-1] == "a"  # a new process in the same container
    w.report("b", "left", generation=1, reason="lost", step=10)
    w.pass_time(1)
    assert [slot.member for slot in w.job.worlds.slots] == ["b"]
    assert w.job.worlds.slots[0].keep
    w.join()
    w.report("a", "ready")
    w.pass_time(1)
    assert w.actions.take("change") == ["b"]
    w.report("b", "left", generation=2, reason="changed", step=12)
    w.pass_time(1)
    assert [(slot.member, slot.keep) for slot in w.job.worlds.slots] == [("b", True), ("a", False)]


def test_worlds_that_fall_apart_without_a_loss_do_not_go_on_for_ever():
    w = elastic(max_restarts=2)
    w.train("a", "b")
    for generation in (1, 2, 3):
        assert w.job.error is None
        for name in ("a", "b"):
            w.report(name, "left", generation=generation, reason="lost", step=10)
        w.pass_time(1)
    assert "cannot reach each other" in w.job.error.got
    assert any("failed though none of its ranks was lost" in event for event in w.actions.events)


def test_a_process_that_left_without_state_is_no_survivor():
    w = elastic()
    w.train("a", "b")
    w.die("a")
    w.report("b", "left", generation=1, reason="lost", step=None)
    w.report("a", "ready")
    w.pass_time(1)
    assert [slot.keep for slot in w.job.worlds.slots] == [False, False]


def test_a_container_whose_processes_keep_failing_is_given_back():
    w = elastic()
    w.train("a", "b")
    w.die("a")
    w.die("a")
    assert "a" in w.actions.take("leave")
    assert w.come("c") == [True]


def test_a_silent_agent_is_given_up_but_not_while_the_driver_itself_was_stopped():
    w = elastic()
    w.train("a", "b")
    w.now += 3600
    w.job.tick(w.now)
    assert w.job.mode == "running"
    w.pass_time(62, silent=["b"])
    assert w.actions.released == ["b"]
    assert w.job.mode == "changing"


def test_a_rank_that_does_not_leave_a_lost_world_is_killed():
    w = elastic(workers=3, fewest=2)
    w.train("a", "b", "c")
    w.die("a")
    w.report("b", "left", generation=1, reason="lost", step=10)
    w.does("c", "wait")
    w.pass_time(50)
    assert w.actions.take("kill") == ["c"]


def test_an_error_that_is_the_process_s_own_ends_an_elastic_job_too():
    w = elastic()
    w.train("a", "b")
    error = {"error": "TrainingError", "what": "loss is not a number", "remedy": "lower the rate"}
    w.die("b", 6, {"consequence": False, "exit_code": 6, "error": error})
    assert w.job.error.what == "loss is not a number"
    assert w.actions.take("kill") == ["a"]


def test_storage_that_is_away_is_worth_another_process():
    assert faults.fault_of({"error": "SafeMode"}, []) == "passing"


def test_impossible_sizes_are_refused():
    w = elastic()
    with pytest.raises(UsageError, match="cannot have"):
        w.job.scale(4, w.now)
    with pytest.raises(UsageError):
        World().job.scale(2, 0.0)


def test_a_job_that_is_scaled_while_it_pauses_takes_no_containers_before_the_pause_is_over():
    w = elastic(fewest=2)
    w.come("a")
    w.pass_time(62)
    assert w.job.worlds.pausing and w.actions.kept == [2, 0]
    w.job.scale(3, w.now)
    assert w.actions.kept == [2, 0]  # else they would be released as soon as they register
    w.pass_time(10)
    assert w.actions.kept == [2, 0, 3]


def test_a_job_that_ends_is_not_scaled():
    w = elastic()
    w.train("a", "b")
    w.job.stop(True, w.now)
    with pytest.raises(UsageError, match="is ending"):
        w.job.scale(3, w.now)
    assert w.actions.kept == [2, 0]


def test_rank_0_s_end_is_the_job_s_whatever_becomes_of_the_rest():
    w = World()
    w.train("a", "b")
    w.report("a", "finished")
    w.die("a", 0)
    w.die("b", -9)
    w.pass_time(2)
    assert (w.job.mode, w.job.error) == ("over", None)


def test_containers_that_fail_before_they_register_end_the_job():
    w = World()
    ended = [Container(f"x{n}", "n", "ended", 1, "failed") for n in range(3)]
    w.job.listed(ended, w.now)
    assert "before its agent registered" in " ".join(w.actions.events)
    assert w.job.error.exit_code == 5


def test_gpus_of_a_node_are_shared_out():
    w = World(gpus=1, workers=2)
    w.come("a", "b", gpus=["0", "1"])
    gpus = [order["gpus"] for _, order in w.actions.orders if order["type"] == "start"]
    assert gpus == [["0"], ["1"]]


def test_where_gpus_are_isolated_each_worker_gets_the_one_that_it_can_open():
    w = World(gpus=1, workers=2)
    w.come("a", gpus=["GPU-a"])
    w.come("b", gpus=["GPU-b"])
    gpus = [order["gpus"] for _, order in w.actions.orders if order["type"] == "start"]
    assert gpus == [["GPU-a"], ["GPU-b"]]


def test_workers_without_a_gpu_are_refused_and_end_a_job_that_has_no_others():
    w = World(gpus=1, workers=2)
    assert w.come("good", node="n1", gpus=["GPU-a"]) == [True]
    assert w.come("b1", "b2", node="n2", gpus=[], gpus_how="nvidia-smi -L: 0 device(s)") == [
        False,
        False,
    ]
    assert w.job.mode == "waiting"  # YARN may give another node
    error = w.job.refusal("b1")
    assert "n2" in error.where
    assert error.expected == "1 (job.worker.gpus)"
    assert "nvidia-smi -L: 0 device(s)" in error.got
    assert w.come("b1", node="n2", gpus=[]) == [False]  # its first answer was lost: counted once
    assert w.job.mode == "waiting"
    assert w.come("b3", node="n2", gpus=[]) == [False]
    assert w.job.mode == "ending"
    assert w.job.error.exit_code == 5
    assert "node n2" in w.job.error.where
    assert w.actions.take("start") == ["good"]


def test_a_gpu_that_another_worker_has_is_none():
    w = World(gpus=1, workers=2)
    assert w.come("a", "b", gpus=["GPU-a"]) == [True, False]  # YARN counts two, and one can be used
    assert "1 that can be opened, 1 of them used by other workers" in w.job.refusal("b").got
    w.job.gone("a", "its container has ended", w.now)
    assert w.come("c", gpus=["GPU-a"]) == [True]


def test_an_elastic_job_goes_on_without_nodes_that_have_no_gpu():
    w = elastic(gpus=1, workers=2)
    w.come("a", node="n1", gpus=["GPU-a"])
    w.come("b", node="n1", gpus=["GPU-a", "GPU-b"])
    for name in ("a", "b"):
        w.report(name, "ready")
    w.pass_time(1)
    w.join()
    w.job.scale(3, w.now)
    for name in ("c", "d", "e"):
        assert w.come(name, node="n2", gpus=[]) == [False]
    assert (w.job.mode, w.job.workers.target, w.actions.kept[-1]) == ("running", 2, 2)
    assert any("continuing with 2 workers" in event for event in w.actions.events)
    w.job.scale(3, w.now)  # the node is repaired
    assert w.come("f", node="n2", gpus=["GPU-f"]) == [True]


# ----------------------------------------------------------------------------------- counts
def test_consequences_count_with_their_cause():
    budget = FailureBudget(tries=1, max_restarts=3)
    consequence = Loss("a", "n", 0, "x", 6, failure={"consequence": True})
    budget.process_lost(consequence, 1, 0.0)
    budget.process_lost(consequence, 1, 0.0)
    budget.process_lost(consequence, 2, 0.0)
    assert budget.restarts == 2


def test_a_container_counts_when_the_cluster_is_silent_about_it():
    budget = FailureBudget(tries=1, max_restarts=3)
    budget.container_lost("a", 0.0)
    budget.settle([], {"a"}, 10.0)
    assert (budget.restarts, budget.waiting) == (0, True)
    budget.settle([], {"a"}, 20.0)
    assert (budget.restarts, budget.waiting) == (1, False)
