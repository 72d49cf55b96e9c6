"""Long phases, changing worlds and what a loss costs the others, in a driver without processes."""

import pytest

from howdah.jobs.backend import Container
from tests.runs.jobs.driver_world import World, elastic

LONG = 30 * 45.0  # seconds, of hang_seconds 45


def lost(w, name):
    """Make an agent's host vanish: the agent is silent until it is given up."""
    w.pass_time(62, silent=[name])
    assert name in w.actions.released


def restarts(w):
    """Losses that count, once the cluster has had its time to say why."""
    w.pass_time(16)
    w.job.listed([], w.now)
    return w.job.budget.restarts


def survivors(count):
    return [f"s{number}" for number in range(count)]


# ------------------------------------------------------------------------------- long phases
@pytest.mark.parametrize("make", [World, elastic])
@pytest.mark.parametrize("phase", ["prepare", "input", "evaluate", "save", "end"])
def test_a_phase_that_gets_on_may_take_as_long_as_it_takes(make, phase):
    w = make()
    w.train("a", "b")
    w.does("a", phase)
    w.does("b", "wait")
    w.pass_time(LONG)
    assert w.actions.take("kill") == []
    assert (w.job.mode, w.job.budget.restarts) == ("running", 0)


@pytest.mark.parametrize("make", [World, elastic])
@pytest.mark.parametrize("phase", ["prepare", "compute", "input", "evaluate", "save", "end"])
def test_a_rank_that_stops_inside_a_phase_is_found_and_it_alone(make, phase):
    w = make()
    w.train("a", "b")
    w.does("a", phase)
    w.does("b", "wait")
    w.pass_time(LONG)
    w.does("a", phase, gets_on=False)
    w.pass_time(44)
    assert w.actions.take("kill") == []
    w.pass_time(3)
    assert w.actions.take("kill") == ["a"]
    assert f"no progress for 45 s in phase {phase}" in " ".join(w.actions.events)


# --------------------------------------------------------------------------- orderly changes
@pytest.mark.parametrize("phase", ["evaluate", "compute", "save", "input"])
def test_a_change_waits_for_the_work_that_is_under_way(phase):
    """A worker comes back in the middle of an evaluation, or of steps of some minutes."""
    w = elastic()
    w.train("a", "b")
    w.job.scale(3, w.now)
    w.does("a", phase, busy=True)
    w.does("b", phase, busy=True)
    w.come("c")
    w.report("c", "ready")
    w.pass_time(300)
    assert w.job.mode == "changing"
    w.does("b", "wait")  # the first to come to the collective
    w.pass_time(300)
    assert (w.actions.take("kill"), w.job.budget.restarts) == ([], 0)
    for name in ("a", "b"):
        w.report(name, "left", generation=1, reason="changed", step=7)
    w.pass_time(1)
    assert [slot.keep for slot in w.job.worlds.slots] == [True, True, False]


def test_a_rank_that_hangs_while_a_change_is_under_way_is_found():
    w = elastic()
    w.train("a", "b")
    w.job.scale(3, w.now)
    w.does("a", "evaluate", gets_on=False)
    w.does("b", "wait")
    w.come("c")
    w.report("c", "ready")
    w.pass_time(47)
    assert w.actions.take("kill") == ["a"]


def test_no_change_begins_once_the_steps_are_over():
    """The other ranks wait in the last barrier for rank 0's export."""
    w = elastic()
    w.train("a", "b")
    w.job.scale(3, w.now)
    for name in ("a", "b"):
        w.report(name, "concluding")
    w.come("c")
    w.report("c", "ready")
    w.does("a", "save")
    w.does("b", "wait")
    w.pass_time(LONG)
    assert (w.job.mode, w.actions.take("change"), w.actions.take("kill")) == ("running", [], [])
    w.die("b")  # a loss is no wish: the end is done again without it
    assert w.job.mode == "changing"


def test_a_change_that_came_too_late_is_called_off():
    w = elastic()
    w.train("a", "b")
    w.job.scale(3, w.now)
    w.come("c")
    w.report("c", "ready")
    w.pass_time(1)
    assert w.job.mode == "changing"
    w.report("a", "concluding")
    w.pass_time(LONG)
    assert (w.job.mode, w.actions.take("kill")) == ("running", [])
    w.report("a", "finished")
    w.pass_time(1)
    assert (w.job.mode, w.job.error) == ("ending", None)


# ------------------------------------------------------------------------------------- losses
@pytest.mark.parametrize("count", [2, 8, 12])
def test_a_host_that_vanishes_costs_its_own_ranks_and_no_survivor(count):
    """Steps of 30 s; the survivors meet broken connections when they come to a collective."""
    names = survivors(count)
    w = elastic(workers=count + 1, most=count + 1, max_restarts=3)
    w.train(*names, "x")
    for name in names:
        w.does(name, "compute", busy=True)
    lost(w, "x")
    assert sorted(w.actions.take("change")) == sorted(names)
    w.pass_time(30)
    for name in names:
        w.report(name, "left", generation=1, reason="lost", step=7)
    w.pass_time(1)
    assert (w.actions.take("kill"), restarts(w)) == ([], 1)
    assert [slot.keep for slot in w.job.worlds.slots] == [True] * count


@pytest.mark.parametrize("phase", ["wait", "join"])
def test_what_is_killed_for_another_s_loss_counts_as_that_loss(phase):
    names = survivors(12)
    w = elastic(workers=13, most=13, max_restarts=3)
    w.train(*names, "x")
    for name in names:
        w.does(name, phase)
    lost(w, "x")
    w.pass_time(47)
    killed = w.actions.take("kill")
    assert sorted(killed) == sorted(names)
    for name in killed:
        w.die(name)
    w.pass_time(20)
    assert (restarts(w), w.job.error) == (1, None)
    assert all(w.job.members[name].failures == 0 for name in names)


@pytest.mark.parametrize("silent", [True, False])
def test_a_loss_during_an_orderly_change_is_sent_to_all(silent):
    w = elastic(workers=3, most=4)
    w.train("a", "b", "x")
    w.job.scale(4, w.now)
    w.come("c")
    w.report("c", "ready")
    for name in ("a", "b", "x"):
        w.does(name, "evaluate")
    w.pass_time(20)
    assert (w.job.mode, sorted(w.actions.take("change"))) == ("changing", ["a", "b", "x"])
    generations = list(w.actions.generations)
    if silent:
        lost(w, "x")
    else:
        w.die("x")
    changes = [(name, order) for name, order in w.actions.orders if order["type"] == "change"]
    assert sorted(name for name, _ in changes) == ["a", "b"]
    assert all(order["lost"] for _, order in changes)
    assert w.actions.generations == [*generations, 2]  # no rank waits in the old rendezvous
    w.pass_time(10)
    for name in ("a", "b"):
        w.report(name, "left", generation=1, reason="lost", step=7)
    w.pass_time(1)
    assert (w.actions.take("kill"), restarts(w)) == ([], 1)
    assert sum(slot.keep for slot in w.job.worlds.slots) == 2


def test_a_loss_that_a_rank_meets_first_during_an_orderly_change_is_sent_to_all():
    w = elastic(workers=3, most=4)
    w.train("a", "b", "x")
    w.job.scale(4, w.now)
    w.come("c")
    w.report("c", "ready")
    w.pass_time(1)
    w.actions.take("change")
    w.report("a", "left", generation=1, reason="lost", step=7)
    assert sorted(w.actions.take("change")) == ["b", "x"]


# ---------------------------------------------------------------------- a static job's last words
def test_a_static_job_that_has_lost_a_rank_lets_rank_0_save():
    w = World(grace_seconds=90.0)
    w.train("a", "b")
    w.die("b")
    assert w.actions.take("abandon") == ["a"]
    w.does("a", "save")
    w.pass_time(80)
    assert w.actions.take("kill") == []
    w.pass_time(15)
    assert w.actions.take("kill") == ["a"]


def test_a_rank_that_does_not_end_when_another_was_lost_is_killed_at_once():
    w = World(grace_seconds=90.0)
    w.train("a", "b")
    w.die("b")
    w.does("a", "wait")
    w.pass_time(15)
    assert w.actions.take("kill") == ["a"]


CONSEQUENCE = {"consequence": True, "exit_code": 6, "error": {"error": "RankLost", "what": "x"}}


def gives_up(w, name):
    """Gloo's limit, two thirds of hang_seconds, ends a rank that waits for another one."""
    w.die(name, 6, CONSEQUENCE)


def b_waits_for_a_in_vain(w, phase):
    """a stands still in this phase, b gives up first, and a is killed."""
    w.does("a", phase, gets_on=False)
    w.does("b", "wait")
    w.pass_time(30)
    gives_up(w, "b")
    w.pass_time(13)
    assert w.actions.take("kill") == ["a"]
    w.die("a")
    w.pass_time(1)


@pytest.mark.parametrize("phase", ["compute", "evaluate", "save", "input"])
def test_the_rank_that_others_waited_for_in_vain_is_named_and_is_the_loss(phase):
    w = World(grace_seconds=12.0)
    w.train("a", "b")
    b_waits_for_a_in_vain(w, phase)
    [first, second] = [what for what in w.actions.events if what.startswith("rank ")]
    assert "missed a collective" in first
    assert f"waited for it in vain: no progress for 43 s in phase {phase}" in second
    assert "rank 0 on n (a) was lost" in w.job.error.what  # the last try's error


def test_a_rank_that_reaches_hang_seconds_while_a_static_job_fails_is_found():
    w = World(grace_seconds=90.0)
    w.train("a", "b")
    w.does("a", "save", gets_on=False)
    w.pass_time(30)
    gives_up(w, "b")
    w.pass_time(14)
    assert w.actions.take("kill") == []  # it saves
    w.pass_time(3)
    assert w.actions.take("kill") == ["a"]
    [event] = [what for what in w.actions.events if "hangs: " in what]
    assert event == "rank 0 on n (a) hangs: no progress for 45 s in phase save"


@pytest.mark.parametrize("cause", ["another", "none"])
def test_a_rank_that_was_not_waited_for_is_not_blamed(cause):
    w = World(grace_seconds=12.0)
    w.train("a", "b")
    w.does("a", "compute", gets_on=cause == "none")
    w.pass_time(20)
    if cause == "another":  # b was killed; a has been in a long step for longer than that
        w.die("b")
    else:  # a got on until then, and cannot end
        gives_up(w, "b")
        w.does("a", "compute", gets_on=False)
    w.pass_time(13)
    assert w.actions.take("kill") == ["a"]
    w.die("a")
    [_, second] = [what for what in w.actions.events if what.startswith("rank ")]
    assert "killed by Howdah: another rank was lost" in second


def test_a_container_that_was_lost_before_the_world_is_no_cause_of_its_end():
    w = World(grace_seconds=12.0)
    w.come("a", "x")
    w.job.listed([Container("x", "n", "ended", None, "preempted")], w.now)
    w.train("b")
    w.report("a", "ready")
    w.pass_time(1)
    w.join()
    b_waits_for_a_in_vain(w, "compute")
    assert "rank 0 on n (a) was lost: killed by Howdah: the other ranks waited" in w.job.error.what


def test_a_rank_that_was_ended_by_a_signal_was_not_waiting_in_vain():
    w = World()
    w.train("a", "b")
    error = {"error": "Terminated", "what": "training was terminated"}
    w.die("b", 143, {"consequence": True, "exit_code": 143, "error": error})
    assert w.actions.events[-1] == "rank 1 on n (b) was lost: its process ended with exit code 143"
