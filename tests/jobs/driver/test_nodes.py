"""A fault of one node is a fault of one node: what ends a job, and what ends a worker of it."""

import errno

import pytest

from howdah.errors import (
    ClusterError,
    NotAuthenticated,
    QuotaExceeded,
    StorageFull,
    StorageUnavailable,
    TrainingError,
)
from howdah.faults import Remote, of_remote
from howdah.jobs.backend import Container
from howdah.jobs.driver.faults import fault_of, signature
from howdah.training.process.failure import describe
from tests.runs.jobs.driver_world import World, elastic

RUN = "hdfs://nn/runs/a"
ECC = RuntimeError("CUDA error: uncorrectable ECC error encountered")


def raised(error, cause=None):
    """The report of an exception in a training process."""
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001 - any
        return describe(caught)


def fails(w, name, error, step=45, code=6):
    failure = {"consequence": False, "exit_code": code, "error": raised(error), "step": step}
    w.die(name, code, failure)


def trio(**limits):
    """An elastic job of three workers on three nodes."""
    w = elastic(workers=3, most=3, shared=(RUN,), **limits)
    for name in "abc":
        w.come(name, node=f"n{name}")
        w.report(name, "ready")
    w.pass_time(1)
    w.join()
    assert w.job.mode == "running"
    return w


# ------------------------------------------------------------------------------ whose fault
NODE = [
    StorageFull("no room on the disk for a shard", where="/local/howdah/shards"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error", "/local/tmp/x"),
    ECC,
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ImportError("libcudart.so.12: cannot open shared object file"),
    ModuleNotFoundError("No module named 'torch'"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:83] DefaultCPUAllocator: can't allocate memory:"
                 " you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"),
]  # fmt: skip


def refused_token(java_class, message):
    return of_remote(Remote(java_class, message), f"{RUN}/job", "read")


JOB = [
    StorageFull("not enough space for checkpoint step-9", where=f"{RUN}/checkpoints"),
    QuotaExceeded("the quota is used up", where="hdfs://nn/elsewhere"),
    TrainingError("loss is not a number"),
    refused_token("InvalidToken", "can't be found in cache"),
]


@pytest.mark.parametrize("error", NODE, ids=str)
def test_what_is_a_node_s(error):
    assert fault_of(raised(error), (RUN,)) == "node"


@pytest.mark.parametrize("error", JOB, ids=lambda error: error.what)
def test_what_every_node_would_meet(error):
    assert fault_of(raised(error), (RUN,)) == "job"


def test_a_run_directory_that_is_mounted_everywhere_is_no_local_disk():
    full = StorageFull("cannot write: no space left", where="file:///nfs/runs/a/checkpoints/step-1")
    assert fault_of(raised(full), ("file:///nfs/runs/a",)) == "job"
    assert fault_of(raised(full), ("/nfs/runs/a/",)) == "job"
    assert fault_of(raised(full), ("/nfs/runs/ab",)) == "node"
    bare = OSError(errno.ENOSPC, "No space left on device", "/nfs/runs/a/metrics.jsonl")
    assert fault_of(raised(bare), ("/nfs/runs/a",)) == "job"


def test_an_os_error_behind_another_one_is_seen():
    error = raised(ValueError("cannot write"), OSError(errno.ENOSPC, "No space left", "/x"))
    assert (error["errno"], error["where"]) == (errno.ENOSPC, "/x")
    assert fault_of(error, ()) == "node"


def test_storage_that_is_away_is_passing_and_other_errors_are_not_known():
    assert fault_of(raised(StorageUnavailable("x", where=RUN)), (RUN,)) == "passing"
    # A NameNode that is becoming the active one.
    invalid = "org.apache.hadoop.security.token.SecretManager$InvalidToken: can't be found in cache"
    for kind in ("RetriableException", "org.apache.hadoop.ipc.StandbyException"):
        assert fault_of(raised(refused_token(kind, invalid)), (RUN,)) == "passing"
    standby = f"{invalid}: StandbyException"
    assert fault_of(raised(refused_token("SecurityException", standby)), (RUN,)) == "passing"
    assert fault_of(raised(ValueError("x")), ()) == "unknown"
    assert fault_of(None, ()) == "unknown"


def test_a_library_behind_an_error_of_ours_is_seen():
    missing = ClusterError("Horovod for torch cannot be loaded, and 2 ranks need it")
    assert fault_of(raised(missing, ImportError("libmpi.so.40")), ()) == "node"
    assert fault_of(raised(missing), ()) == "unknown"


def test_what_is_the_same_error():
    one = raised(ValueError("row 17 of /data1/x.py is 0x7f3a"))
    other = raised(ValueError("row 31 of /mnt/y/x.py is 0x99"))
    assert signature(one) == signature(other) == "ValueError: row # of # is #"
    assert signature(raised(ValueError("column 17"))) != signature(one)
    assert signature(raised(KeyError("row 17 of /x is 0x1"))) != signature(one)


# -------------------------------------------------------------------------------- elastic jobs
@pytest.mark.parametrize("error", NODE[:6], ids=str)
def test_a_node_s_fault_ends_a_worker_and_not_an_elastic_job(error):
    w = trio()
    fails(w, "b", error)
    assert (w.job.mode, w.job.error) == ("changing", None)
    assert w.actions.take("leave") == ["b"]  # no second process beside the broken disk
    assert "b" not in w.actions.take("start")[3:]
    for name in "ac":
        w.report(name, "left", generation=1, reason="lost", step=40)
    w.pass_time(61)
    assert (w.job.mode, len(w.job.worlds.slots)) == ("running", 2)
    assert w.job.budget.restarts == 1


def test_a_node_is_excluded_after_so_many_failures_and_its_containers_are_given_back():
    w = trio(node_failures=2)
    fails(w, "b", ECC, step=10)
    assert w.come("b2", node="nb") == [True]
    fails(w, "b2", ECC, step=0)
    words = "node nb is excluded; failures of workers there: 2"
    assert any(words in event for event in w.actions.events)
    assert w.come("b3", node="nb") == [False]
    assert "excluded" in w.job.refusal("b3").what
    assert "uncorrectable ECC" in w.job.refusal("b3").got
    assert w.actions.released == ["b3"]
    assert w.actions.kept[-1] == 2  # another one is asked for after a pause
    w.pass_time(2)
    assert w.actions.kept[-1] == 3
    # Seen in the cluster's list, before its agent is there:
    w.job.listed([Container("b4", "nb", "running"), Container("d", "nd", "running")], w.now)
    assert w.actions.released == ["b3", "b4"]
    assert w.come("d", node="nd") == [True]
    assert w.come("b5", "b6", node="nb") == [False, False]  # and it goes on being so
    assert w.job.error is None


def test_a_cluster_that_gives_excluded_nodes_alone_leaves_the_job_smaller():
    w = trio(node_failures=1)
    fails(w, "b", ECC)
    for name in "ac":
        w.report(name, "left", generation=1, reason="lost", step=40)
    w.pass_time(61)
    w.join()
    containers = 0
    while w.job.workers.target == 3:
        w.come(f"x{containers}", node="nb")
        containers += 1
        w.pass_time(9)
        assert containers < 20
    assert (w.job.mode, w.job.workers.target, w.actions.kept[-1]) == ("running", 2, 2)
    assert any("continuing with 2 workers" in event for event in w.actions.events)
    w.job.scale(3, w.now)
    assert w.come("d", node="nd") == [True]


def test_where_all_nodes_fail_none_is_excluded():
    w = trio(node_failures=1, max_restarts=10)
    w.die("a")
    w.die("b")
    assert set(w.job.nodes.all_excluded()) == {"na", "nb"}
    w.die("c")
    assert w.job.nodes.all_excluded() == {}


def test_a_preempted_container_is_no_failure_of_its_node():
    w = trio(node_failures=1)
    w.die("b", -15)
    assert w.job.nodes.excluded("nb")
    w.job.listed([Container("b", "nb", "ended", None, "preempted")], w.now)
    assert not w.job.nodes.excluded("nb")


def test_what_fails_on_an_unknown_node_is_charged_to_none():
    w = trio(node_failures=1)
    w.job.listed([Container(f"x{n}", "", "ended", 1, "lost") for n in range(6)], w.now)
    w.job.listed([Container("y", "", "ended", 1, "failed", "no disk")], w.now)
    w.job.listed([Container("z", "", "running")], w.now)
    assert not w.job.nodes.all_excluded() and not w.job.nodes.refused
    what = "container y has failed before its agent registered (exit code 1) no disk"
    assert w.actions.events[-1] == what


def test_containers_that_end_before_their_agents_exclude_their_node_and_not_the_job():
    w = trio(node_failures=2)
    w.job.gone("b", "its container was killed", w.now, fault=False)
    ended = [Container(f"x{n}", "nb", "ended", 1, "failed", "No space left") for n in range(6)]
    for count in range(1, 7):
        w.job.listed(ended[:count], w.now)
    assert w.job.error is None
    assert "No space left" in w.job.nodes.why("nb")
    assert w.job.nodes.excluded("nb")


def test_the_same_error_on_two_nodes_at_the_same_step_ends_the_job():
    w = trio()
    fails(w, "b", ValueError("row 17 is not what it must be"), step=45)
    assert w.job.error is None
    for name in "ac":
        w.report(name, "left", generation=1, reason="lost", step=40)
    w.pass_time(61)
    w.join()
    fails(w, "c", ValueError("row 17 is not what it must be"), step=46)
    assert w.job.error is None  # at another step: the two may have nothing to do with each other
    fails(w, "c", ValueError("row 17 is not what it must be"), step=45)
    assert "row 17" in w.job.error.what
    assert "the same on node nb, at the same step (45)" in w.job.error.where


def test_two_full_disks_before_the_first_step_are_two_full_disks():
    w = trio(fewest=1)
    fails(w, "b", NODE[0], step=0)
    fails(w, "c", NODE[0], step=0)
    assert w.job.error is None
    w = trio(fewest=1)
    fails(w, "b", ImportError("no such library"), step=0)
    fails(w, "c", ImportError("no such library"), step=0)
    assert "no such library" in w.job.error.what


def test_tokens_that_no_node_can_use_end_the_job_at_the_second_node():
    w = trio()
    for name in "bc":
        assert w.job.error is None
        fails(w, name, NotAuthenticated("none of ours", where=RUN), step=0)
    assert w.job.error.what == "none of ours"


def test_storage_that_is_away_from_two_nodes_ends_no_job():
    w = trio()
    for name in "bc":
        fails(w, name, StorageUnavailable("the NameNode does not answer", where=RUN))
    assert w.job.error is None
    assert not w.job.nodes.all_excluded()


def test_a_collective_that_hangs_on_all_nodes_ends_no_job():
    w = trio()
    for name in "bc":
        fails(w, name, ClusterError("a collective on GPUs does not come back"))
    assert w.job.error is None


@pytest.mark.parametrize("error", JOB, ids=lambda error: error.what)
def test_what_every_node_would_meet_ends_an_elastic_job_at_once(error):
    w = trio()
    fails(w, "b", error)
    assert w.job.error.what == error.what


# --------------------------------------------------------------------------------- static jobs
def test_a_static_job_is_tried_again_without_the_node():
    w = World(workers=2, tries=2, node_failures=1)
    for name in "ab":
        w.come(name, node=f"n{name}")
        w.report(name, "ready")
    w.pass_time(1)
    w.join()
    w.actions.take("start")
    fails(w, "b", ECC)
    w.die("a", 6, {"consequence": True, "error": {"error": "RankLost", "what": "x"}})
    w.pass_time(2)
    assert (w.job.mode, w.job.budget.tries) == ("waiting", 2)
    assert w.actions.take("start") == ["a"]
    assert w.actions.take("leave") == ["b"]
    assert w.come("b2", node="nb") == [False]
    assert w.come("c", node="nc") == [True]
    for name in "ac":
        w.report(name, "ready")
    w.pass_time(1)
    assert [slot.member for slot in w.job.worlds.slots] == ["a", "c"]


def test_a_static_job_that_gets_excluded_nodes_alone_says_so():
    w = World(workers=2, tries=2, node_failures=1, gang_seconds=300.0)
    for name in "ab":
        w.come(name, node=f"n{name}")
        w.report(name, "ready")
    w.pass_time(1)
    w.join()
    fails(w, "b", ECC)
    w.die("a", 6, {"consequence": True, "error": {"error": "RankLost", "what": "x"}})
    w.pass_time(2)
    for number in range(8):
        assert w.job.error is None
        w.come(f"x{number}", node="nb")
        w.pass_time(9)
    assert "only offers nodes on which" in w.job.error.what
    assert "nb (1 failures)" in w.job.error.where
    assert "uncorrectable ECC" in w.job.error.got


def test_the_same_error_on_two_nodes_is_not_tried_a_third_time():
    w = World(workers=2, tries=5)
    for name in "ab":
        w.come(name, node=f"n{name}")
        w.report(name, "ready")
    w.pass_time(1)
    w.join()
    fails(w, "a", ValueError("bad row"), step=45)
    fails(w, "b", ValueError("bad row"), step=45)
    assert "bad row" in w.job.error.what


# ------------------------------------------------------------------------ silence of an agent
def test_a_silent_agent_s_process_is_not_taken_to_hang():
    w = trio()
    for name in "abc":
        w.does(name, "compute", busy=True)
    w.pass_time(58, silent=["b"])
    assert w.actions.take("kill") == []
    w.pass_time(60)  # it is heard again
    assert (w.actions.take("kill"), w.actions.released, w.job.mode) == ([], [], "running")


def test_a_driver_that_was_stopped_has_not_waited_meanwhile():
    w = World(gang_seconds=60.0)
    w.come("a")
    w.pass_time(50)
    w.now += 100  # stopped
    w.pass_time(8)
    assert w.actions.take("leave") == []
    w.pass_time(10)
    assert w.actions.take("leave") == ["a"]


def test_an_agent_that_does_not_leave_a_broken_node_is_ended():
    w = trio()
    fails(w, "b", ECC)
    assert w.actions.take("leave") == ["b"]
    w.pass_time(12)
    assert w.actions.released == ["b"]


def test_a_node_that_is_gone_is_known_sooner_by_what_the_others_say():
    w = trio()
    w.pass_time(10, silent=["b"])
    for name in "ac":
        w.report(name, "left", generation=1, reason="lost", step=40)
    w.pass_time(4, silent=["b"])
    assert w.actions.released == []
    w.pass_time(3, silent=["b"])
    assert w.actions.released == ["b"]


def test_agents_of_several_nodes_that_are_silent_together_are_waited_for():
    w = trio()
    w.pass_time(10, silent=["b", "c"])
    w.report("a", "left", generation=1, reason="lost", step=40)
    w.pass_time(45, silent=["b", "c"])
    assert w.actions.released == []  # a switch: both come back
    for name in "bc":
        w.report(name, "left", generation=1, reason="lost", step=40)
    w.pass_time(2)
    assert len(w.job.worlds.slots) == 3


def test_the_text_of_an_error_carries_no_secret_to_the_driver():
    link = "http://bot:planted-1@hub/x?sig=planted-2"
    described = raised(RuntimeError(f"GET {link}: AccountKey=planted-3"), OSError(link))
    assert described["message"].startswith("GET http://bot:")
    assert "planted" not in str(described)
