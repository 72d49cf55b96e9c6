"""The driver's decisions without processes: ranks, gangs, counts, and who hangs."""

import pytest

from howdah.errors import UsageError
from yarn import driver_page, driver_state, driver_status, hang
from yarn.backend import Container
from yarn.driver_job import CONTACT_SECONDS, Job
from yarn.driver_losses import Gang, Ledger
from yarn.driver_members import Loss, Member
from yarn.hang import Pace, View
from yarn.world import Candidate, assign, variables


# ----------------------------------------------------------------------------------- ranks
def places(slots):
    return {
        s.member: (s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots
    }


def test_ranks_of_a_node_are_numbered_within_it():
    slots = assign([Candidate("a1", "a"), Candidate("b1", "b"), Candidate("a2", "a")])
    assert places(slots) == {
        "a1": (0, 0, 2, 0, 2),
        "a2": (1, 1, 2, 0, 1),
        "b1": (2, 0, 1, 1, 2),
    }
    assert {slot.size for slot in slots} == {3}


def test_survivors_come_first_in_their_old_order_and_new_ones_join_their_nodes():
    slots = assign(
        [
            Candidate("new-c", "c"),
            Candidate("old-3", "b", old_rank=3),
            Candidate("new-a", "a"),
            Candidate("old-1", "a", old_rank=1),
        ]
    )
    assert [slot.member for slot in slots] == ["old-1", "old-3", "new-a", "new-c"]
    assert [slot.keep for slot in slots] == [True, True, False, False]
    assert places(slots)["new-a"] == (2, 1, 2, 0, 1)


def test_a_smaller_world_keeps_survivors():
    slots = assign([Candidate("new", "a"), Candidate("old", "a", old_rank=0)], 1)
    assert [slot.member for slot in slots] == ["old"]


def test_every_place_of_a_large_world_is_consistent():
    nodes = [f"n{number % 7}" for number in range(40)]
    slots = assign([Candidate(f"m{i}", node) for i, node in enumerate(nodes)])
    assert [slot.rank for slot in slots] == list(range(40))
    for node in set(nodes):
        mates = [slot for slot in slots if slot.node == node]
        assert sorted(slot.local_rank for slot in mates) == list(range(len(mates)))
        assert {slot.local_size for slot in mates} == {len(mates)}
    for local_rank in range(6):
        across = [slot for slot in slots if slot.local_rank == local_rank]
        assert sorted(slot.cross_rank for slot in across) == list(range(len(across)))
        assert {slot.cross_size for slot in across} <= {len(across)}


def test_a_node_s_name_becomes_one_that_horovod_can_put_into_a_path():
    (slot,) = assign([Candidate("m", "host:8041/rack")])
    env = variables(slot, relay_port=1, interface="eth0", gloo_timeout_seconds=1.2, elastic=True)
    assert env["HOROVOD_HOSTNAME"] == "host-8041-rack"
    assert env["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "1"
    assert (env["HOROVOD_RANK"], env["HOROVOD_SIZE"], env["HOROVOD_ELASTIC"]) == ("0", "1", "1")


# ------------------------------------------------------------------------------------- jobs
class Recorder:
    """Hands that only note what they were told."""

    def __init__(self):
        self.orders, self.kept, self.released, self.generations, self.events = [], [], [], [], []

    def order(self, member, order):
        self.orders.append((member, order))

    def keep(self, count):
        self.kept.append(count)

    def release(self, member):
        self.released.append(member)

    def begin(self, generation):
        self.generations.append(generation)

    def event(self, what):
        self.events.append(what)

    def take(self, kind):
        """The members that were given an order of this kind since the last time."""
        found = [member for member, order in self.orders if order["type"] == kind]
        self.orders = [one for one in self.orders if one[1]["type"] != kind]
        return found


LIMITS = {
    "workers": 2, "fewest": 2, "most": 2, "elastic": False, "tries": 1, "max_restarts": 10,
    "gang_seconds": 60.0, "gang_attempts": 3, "hang_seconds": 45.0, "grace_seconds": 60.0,
    "threads": 1, "gpus": 0,
}  # fmt: skip


class World:
    """A job, its clock and its agents."""

    def __init__(self, **limits):
        self.now = 1000.0
        self.hands = Recorder()
        self.job = Job(driver_state.Limits(**{**LIMITS, **limits}), self.hands, self.now)

    def pass_time(self, seconds, silent=()):
        """Time goes by; agents are heard of, save the silent ones."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for name in self.job.members:
                if name not in silent:
                    self.job.contact(name, self.now)
                    self.job.members[name].beat_time = self.now
            self.job.tick(self.now)

    def come(self, *names, node="n", **facts):
        return [self.job.registered(name, node, facts, self.now) for name in names]

    def tell(self, name, kind, **more):
        member = self.job.members[name]
        self.job.happened(name, {"type": kind, "process": member.process, **more}, self.now)

    def train(self, *names):
        self.come(*names)
        for name in names:
            self.tell(name, "ready")
        self.pass_time(1)
        self.join()

    def join(self):
        for slot in self.job.world:
            self.tell(slot.member, "joined", generation=self.job.generation, rank=slot.rank)

    def die(self, name, code=-9, failure=None):
        self.tell(name, "exited", exit_code=code, failure=failure, lines=["last words"])

    def end(self):
        for name, member in self.job.members.items():
            if member.running:
                self.die(name)
        self.pass_time(20)
        assert self.job.mode == "over"


def test_a_world_is_formed_when_all_are_ready():
    w = World()
    w.come("a", "b")
    w.tell("a", "ready")
    w.pass_time(30)
    assert w.job.mode == "waiting"
    assert w.hands.take("start") == ["a", "b"]
    w.tell("b", "ready")
    w.pass_time(1)
    assert (w.job.mode, w.hands.generations, w.hands.take("world")) == ("running", [1], ["a", "b"])


def test_more_agents_than_wanted_are_not_welcome():
    w = World()
    assert w.come("a", "b", "c") == [True, True, False]
    assert w.come("a") == [True]  # asked again: its answer was lost


def test_a_gang_that_is_not_whole_in_time_is_given_back():
    w = World()
    w.come("a")
    w.pass_time(62)
    assert (w.hands.take("leave"), w.hands.released, w.hands.kept) == (["a"], ["a"], [2, 0])
    assert w.come("late") == [False]
    w.pass_time(10)
    assert w.hands.kept == [2, 0, 2]
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
    assert w.hands.kept == [2]
    w.pass_time(150)
    assert set(w.hands.take("kill")) == {"a", "b"}


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
    w.hands.take("start")
    w.die("b")
    w.pass_time(2)
    assert w.job.mode == "failing"  # rank 0 may save what it has
    w.pass_time(15)
    assert w.hands.take("kill") == ["a"]
    w.die("a")
    w.pass_time(1)
    assert set(w.hands.take("start")) == {"a", "b"}
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
    assert (w.job.mode, w.job.tries, w.job.ledger.preemptions) == ("waiting", 1, 1)
    assert w.come("c") == [True]


def elastic(**limits):
    return World(**{"elastic": True, "fewest": 1, "most": 3, **limits})


@pytest.mark.parametrize(("reason", "counts"), [("preempted", (0, 1)), ("killed", (1, 0))])
@pytest.mark.parametrize("told_first", [True, False])
def test_a_process_that_ends_with_its_container_is_one_loss(reason, counts, told_first):
    w = elastic()
    w.train("a", "b")
    if told_first:  # the agent had a moment to tell of it
        w.die("b", -15)
    w.job.listed([Container("b", "n", "ended", None, reason)], w.now)
    w.pass_time(1)
    assert (w.job.ledger.restarts, w.job.ledger.preemptions) == counts


def test_a_process_that_ended_long_before_its_container_is_another_loss():
    w = elastic()
    w.train("a", "b")
    w.die("b")
    w.pass_time(60)
    w.job.listed([Container("b", "n", "ended", None, "preempted")], w.now)
    assert (w.job.ledger.restarts, w.job.ledger.preemptions) == (1, 1)


def test_the_others_are_told_of_a_loss_and_go_on_without_waiting():
    w = elastic()
    w.train("a", "b")
    w.die("a")
    assert w.hands.take("change") == ["b"]
    assert w.hands.take("start")[-1] == "a"  # a new process in the same container
    w.tell("b", "left", generation=1, reason="lost", step=10)
    w.pass_time(1)
    assert [slot.member for slot in w.job.world] == ["b"]
    assert w.job.world[0].keep
    w.join()
    w.tell("a", "ready")
    w.pass_time(1)
    assert w.hands.take("change") == ["b"]
    w.tell("b", "left", generation=2, reason="changed", step=12)
    w.pass_time(1)
    assert [(slot.member, slot.keep) for slot in w.job.world] == [("b", True), ("a", False)]


def test_worlds_that_fall_apart_without_a_loss_do_not_go_on_for_ever():
    w = elastic(max_restarts=2)
    w.train("a", "b")
    for generation in (1, 2, 3):
        assert w.job.error is None
        for name in ("a", "b"):
            w.tell(name, "left", generation=generation, reason="lost", step=10)
        w.pass_time(1)
    assert "do not reach each other" in w.job.error.got
    assert any("fell apart" in event for event in w.hands.events)


def test_a_process_that_left_without_state_is_no_survivor():
    w = elastic()
    w.train("a", "b")
    w.die("a")
    w.tell("b", "left", generation=1, reason="lost", step=None)
    w.tell("a", "ready")
    w.pass_time(1)
    assert [slot.keep for slot in w.job.world] == [False, False]


def test_a_container_whose_processes_keep_failing_is_given_back():
    w = elastic()
    w.train("a", "b")
    w.die("a")
    w.die("a")
    assert "a" in w.hands.take("leave")
    assert w.come("c") == [True]


def test_a_silent_agent_is_given_up_but_not_while_the_driver_itself_was_stopped():
    w = elastic()
    w.train("a", "b")
    w.now += 3600
    w.job.tick(w.now)
    assert w.job.mode == "running"
    w.pass_time(CONTACT_SECONDS + 2, silent=["b"])
    assert w.hands.released == ["b"]
    assert w.job.mode == "changing"


def test_who_does_not_leave_a_lost_world_is_killed():
    w = elastic(workers=3, fewest=2)
    w.train("a", "b", "c")
    w.die("a")
    w.tell("b", "left", generation=1, reason="lost", step=10)
    w.job.members["c"].beat = {"phase": "wait", "phase_seconds": 1.0}
    w.pass_time(50)
    assert w.hands.take("kill") == ["c"]


def test_an_error_that_is_the_process_s_own_ends_an_elastic_job_too():
    w = elastic()
    w.train("a", "b")
    error = {"error": "TrainingError", "what": "loss is not a number", "remedy": "lower the rate"}
    w.die("b", 6, {"consequence": False, "exit_code": 6, "error": error})
    assert w.job.error.what == "loss is not a number"
    assert w.hands.take("kill") == ["a"]


def test_storage_that_is_away_is_worth_another_process():
    loss = Loss("a", "n", 0, "x", 5, failure={"consequence": False, "error": {"error": "SafeMode"}})
    assert not loss.fatal


def test_impossible_sizes_are_refused():
    w = elastic()
    with pytest.raises(UsageError, match="cannot have"):
        w.job.scale(4, w.now)
    with pytest.raises(UsageError):
        World().job.scale(2, 0.0)


def test_rank_0_s_word_ends_the_job_whatever_becomes_of_the_rest():
    w = World()
    w.train("a", "b")
    w.tell("a", "finished")
    w.die("a", 0)
    w.die("b", -9)
    w.pass_time(2)
    assert (w.job.mode, w.job.error) == ("over", None)


def test_a_node_that_is_too_old_is_named():
    w = World()
    assert w.come("a", node="old", glibc="2.17", glibc_needed="2.28") == [False]
    assert "old (a)" in w.job.error.where
    assert (w.job.error.expected, w.job.error.got) == ("glibc 2.28 or newer", "glibc 2.17")


def test_containers_that_die_before_they_speak_end_the_job():
    w = World()
    ended = [Container(f"x{n}", "n", "ended", 1, "failed") for n in range(3)]
    w.job.listed(ended, w.now)
    assert "before their agent" in " ".join(w.hands.events)
    assert w.job.error.exit_code == 5


def test_gpus_of_a_node_are_shared_out():
    w = World(gpus=1, workers=2)
    w.come("a", "b", gpus=["0", "1"])
    given = [order["gpus"] for _, order in w.hands.orders if order["type"] == "start"]
    assert given == [["0"], ["1"]]


def test_the_page_shows_names_as_text():
    w = World()
    w.come("<b>a</b>", "b", node="<script>alert(1)</script>")
    chronicle = driver_status.Chronicle("application_1_0001", 1)
    chronicle.event("<i>lost</i>")
    status = chronicle.status(w.job)
    text = driver_page.page(status, [(1, 2.0), (2, 1.0)], "run & co")
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "run &amp; co" in text
    assert "polyline" in text
    assert "http://" not in text  # nothing is fetched from elsewhere
    assert "https://" not in text


def test_repeated_steps_replace_their_points_of_the_curve():
    w = World()
    w.train("a", "b")
    chronicle = driver_status.Chronicle("x", 1)
    for step in (1, 2, 3, 2, 3):
        w.job.members["a"].step = {"step": step, "loss": 1.0 / step, "total_steps": 10}
        done = chronicle.progress(w.job)
    assert chronicle.curve() == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert done == 0.3
    assert chronicle.status(w.job)["state"] == "running"


def test_the_run_in_mlflow_is_in_the_status():
    w = World()
    chronicle = driver_status.Chronicle("x", 1)
    assert chronicle.status(w.job)["mlflow_run_id"] is None
    assert chronicle.heard({"type": "tracking", "mlflow_run_id": "abc", "process": 1})
    assert chronicle.status(w.job)["mlflow_run_id"] == "abc"


# ----------------------------------------------------------------------------------- counts
def test_consequences_count_with_their_cause():
    ledger = Ledger()
    consequence = Loss("a", "n", 0, "x", 6, failure={"consequence": True})
    ledger.process_lost(consequence, 1, 0.0)
    ledger.process_lost(consequence, 1, 0.0)
    ledger.process_lost(consequence, 2, 0.0)
    assert ledger.restarts == 2


def test_a_container_counts_when_the_cluster_is_silent_about_it():
    ledger = Ledger()
    ledger.container_lost("a", 0.0)
    ledger.settle([], {"a"}, 10.0)
    assert (ledger.restarts, ledger.open) == (0, True)
    ledger.settle([], {"a"}, 20.0)
    assert (ledger.restarts, ledger.open) == (1, False)


# ------------------------------------------------------------------------------------ hangs
def view(rank=0, phase="wait", seconds=100.0, silent=0.5, **more):
    return View(f"m{rank}", rank, phase, seconds, silent, **more)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (view(1, "compute", 50.0, step_seconds=0.1), "in phase compute"),
        (view(1, "compute", 10.0, step_seconds=0.1), None),
        (view(1, "compute", 50.0), None),  # its first step compiles
        (view(1, "compute", 500.0), "in phase compute"),
        (view(1, "compute", 50.0, step_seconds=20.0), None),  # its steps are that long
        (view(1, "save", 100.0), None),
        (view(1, "save", 500.0), "in phase save"),
        (view(1, "wait", 100.0, 60.0, stopped=True), "stopped by a signal"),
        (view(1, "compute", 50.0, step_seconds=0.1, stopped=True), "stopped by a signal, in phase"),
        (view(1, "evaluate", 100.0, 60.0), "silent"),
        (view(1, "evaluate", 100.0, 60.0, busy=True), None),  # it holds Python's lock, and works
        (view(1, "wait", 100.0, 10.0), None),
    ],
)
def test_who_hangs(other, word):
    found = hang.hanging([view(0), other], 45.0)
    assert (word is None) == (not found)
    if word:
        assert [one.member for one in found] == ["m1"]
        assert word in found[0].why


def test_all_wait_and_nobody_is_missing():
    assert hang.blocked([view(0), view(1, seconds=60.0)], 45.0) == 60.0
    assert hang.blocked([view(0), view(1, seconds=10.0)], 45.0) is None
    assert hang.blocked([view(0), view(1, "compute")], 45.0) is None
    assert hang.blocked([view(0)], 45.0) is None


def test_the_slow_one_is_who_works_long_not_who_waits_long():
    even = {0: Pace(0.10, 0.01), 1: Pace(0.11, 0.0), 2: Pace(0.10, 0.01)}
    assert hang.stragglers(even) == set()
    assert hang.stragglers({**even, 3: Pace(0.30, 0.0)}) == {3}
    assert hang.stragglers({0: Pace(0.1, 0.2), 1: Pace(0.3, 0.0)}) == {1}
    assert hang.stragglers({0: Pace(0.1, 0.2)}) == set()


def test_a_member_s_silence_is_measured_by_its_own_beats():
    member = Member("m", "n", {}, contact=0.0)
    member.begin_process(10.0)
    state = {"process": 1, "beat": {"phase": "wait", "phase_seconds": 2.0}, "beat_age": 0.5,
             "kernel": {"state": "S", "cpu_seconds": 5.0}}  # fmt: skip
    member.reported(state, 20.0)
    assert member.view(21.0).silent_seconds == pytest.approx(1.5)
    assert member.view(21.0).phase_seconds == pytest.approx(3.5)
    member.reported({**state, "beat_age": 30.5, "kernel": {"state": "T", "cpu_seconds": 5.0}}, 50.0)
    assert member.view(50.0).silent_seconds == pytest.approx(30.5)
    assert member.view(50.0).stopped
    member.reported({**state, "process": 0}, 60.0)  # of a process that is gone
    assert member.view(60.0).silent_seconds == pytest.approx(40.5)
