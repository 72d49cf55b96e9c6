"""The faults, and the generator that injects them at moments that only the seed decides."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.benches.chaos import reading
from bench.benches.chaos.work import Serving, Training, when
from bench.benches.chaos.world import World
from howdah.errors import ClusterError
from tests.runs.jobs.local_jobs import kill, parent
from tools.minicluster import daemons

RECOVERY_LIMIT = 240.0  # seconds that new steps are waited for
GREEDY_LIMIT = 120  # seconds until the application that preempts ends, if it is not killed
WORKER, STOPPED, MASTER, OTHER = "worker", "stopped worker", "master", "other"
Undo = Callable[[], None]


class NotNow(Exception):
    """There is nothing that this fault could be done to at this moment."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Args:
        lost: what the training job loses by it, for the table of recoveries.
        do: does it; returns what undoes it.
        seconds: how long it lasts, at least and at most; 0: there is nothing to undo.
    """

    name: str
    lost: str
    do: Callable[[random.Random], Undo | None]
    seconds: tuple[float, float] = (0.0, 0.0)


@dataclasses.dataclass
class Targets:
    """What faults are done to."""

    world: World
    training: Training
    serving: Serving

    # ----------------------------------------------------------------------- processes of a job
    def _one(self, pids: list[int], rng: random.Random) -> int:
        if not pids:
            raise NotNow
        return sorted(pids)[rng.randrange(len(pids))]

    def _job(self):
        if self.training.job is None:
            raise NotNow
        return self.training.job

    def kill_rank(self, rng: random.Random) -> None:
        """SIGKILL to a training process."""
        kill(self._one(self._job().ranks(), rng))

    def stop_rank(self, rng: random.Random) -> Undo:
        """SIGSTOP to a training process."""
        return stopped(self._one(self._job().ranks(), rng))

    def kill_agent(self, rng: random.Random) -> None:
        """SIGKILL to the agent of a container."""
        kill(parent(self._one(self._job().ranks(), rng)))

    def stop_agent(self, rng: random.Random) -> Undo:
        """SIGSTOP to it."""
        return stopped(parent(self._one(self._job().ranks(), rng)))

    def kill_container(self, rng: random.Random) -> None:
        """SIGKILL to everything in a rank's container, as when its memory runs out."""
        job = self._job()
        pid = self._one(job.ranks(), rng)
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        names = [word for word in words if word.startswith(b"CONTAINER_ID=")]
        job.kill_container(names[0].partition(b"=")[2].decode())

    def end_token(self, rng: random.Random) -> None:
        """The NameNode no longer knows the job's token, as when its longest life is over."""
        pid = self._one(self._job().ranks(), rng)
        words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        held = [word for word in words if word.startswith("HADOOP_TOKEN_FILE_LOCATION=")]
        if not held:
            raise NotNow
        words = ["hdfs", "fetchdt", "--cancel", held[0].partition("=")[2]]
        if self.world.cluster.run(*words, env=self.world.env, check=False).returncode:
            raise NotNow  # the NameNode is away, or another fault came first

    def kill_driver(self, rng: random.Random) -> None:
        """SIGKILL to the job's driver."""
        kill(self._one(self._job().of("howdah.yarn driver"), rng))

    def stop_driver(self, rng: random.Random) -> Undo:
        """SIGSTOP to it."""
        return stopped(self._one(self._job().of("howdah.yarn driver"), rng))

    def kill_master(self, rng: random.Random) -> None:
        """SIGKILL to the application master."""
        kill(self._one(self._job().of("ApplicationMaster"), rng))

    def preempt(self, rng: random.Random) -> Undo:
        """The other queue asks for most of a node, its guaranteed half, and gets a worker's."""
        self._job()
        cluster = self.world.cluster
        address = cluster.plan.address(f"{cluster.active('resourcemanager')}-http")
        apps = f"http://{address}/ws/v1/cluster/apps"
        user = f"?user.name={self.world.user}"
        application = reading.send("POST", f"{apps}/new-application{user}")["application-id"]
        request = {
            "application-id": application, "application-name": "preempts",
            "application-type": "YARN", "queue": "batch", "max-app-attempts": 1,
            "am-container-spec": {"commands": {"command": f"sleep {GREEDY_LIMIT}"}},
            "resource": {"memory": cluster.plan.node_memory_mb - 1024, "vCores": 1},
        }  # fmt: skip
        reading.send("POST", apps + user, request)
        state = f"{apps}/{application}/state{user}"
        return lambda: reading.send("PUT", state, {"state": "KILLED"})

    # ------------------------------------------------------------------------------- daemons
    def kill_daemon(self, *names: str) -> Callable[[random.Random], Undo]:
        """SIGKILL to one of them; it is started again."""

        def do(rng: random.Random) -> Undo:
            cluster = self.world.cluster
            name = names[rng.randrange(len(names))]
            if name not in cluster.records:
                raise NotNow
            cluster.kill(name)
            return lambda: cluster.start(name)

        return do

    def stop_daemon(self, *names: str) -> Callable[[random.Random], Undo]:
        """SIGSTOP to one of them."""

        def do(rng: random.Random) -> Undo:
            cluster = self.world.cluster
            name = names[rng.randrange(len(names))]
            if name not in cluster.records or cluster.records[name].paused:
                raise NotNow
            cluster.pause(name)
            return lambda: cluster.resume(name)

        return do

    def slow_disk(self, rng: random.Random) -> Undo:
        """A DataNode that works for a tenth of the time, as one on a disk that fails."""
        cluster = self.world.cluster
        name = f"datanode-{rng.randrange(cluster.plan.datanodes)}"
        record = cluster.records.get(name)
        if record is None or record.paused:
            raise NotNow
        over = threading.Event()

        def pulse() -> None:
            while not over.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(record.pid, signal.SIGSTOP)
                    over.wait(0.9)
                    os.killpg(record.pid, signal.SIGCONT)
                over.wait(0.1)

        thread = threading.Thread(target=pulse, daemon=True)
        thread.start()

        def undo() -> None:
            over.set()
            thread.join()

        return undo

    def full_disk(self, *names: str) -> Callable[[random.Random], Undo]:
        """The directories of a DataNode or NodeManager are full (each has a file system)."""

        def do(rng: random.Random) -> Undo:
            directory = self.world.cluster.plan.path(names[rng.randrange(len(names))])
            if not os.path.ismount(directory):
                raise NotNow
            filler = directory / "filler"
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(2**20))
            return lambda: filler.unlink(missing_ok=True)

        return do

    def slow_network(self, rng: random.Random) -> Undo:
        """Loopback is cut to a rate, with a short queue: packets are delayed, and dropped."""
        rate = ("2mbit", "8mbit", "40mbit")[rng.randrange(3)]
        words = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "60ms"]
        tc("add", "dev", "lo", *words)
        return lambda: tc("del", "dev", "lo", "root")

    # ------------------------------------------------------------------------------ the others
    def kill_server(self, rng: random.Random) -> None:
        """SIGKILL to the model server."""
        if self.serving.process is None or self.serving.process.poll() is not None:
            raise NotNow
        self.serving.kill()

    def stop_server(self, rng: random.Random) -> Undo:
        """SIGSTOP to it."""
        process = self.serving.process
        if process is None or process.poll() is not None:
            raise NotNow
        return stopped(process.pid)

    def kill_command(self, rng: random.Random) -> None:
        """SIGKILL to a command that runs: an ETL, a publication, a submission."""
        running = sorted(self.world.running.items())
        if not running:
            raise NotNow
        _, process = running[rng.randrange(len(running))]
        kill(process.pid)

    def clock(self, rng: random.Random) -> Undo:
        """The clock of the job's processes and of the server is stepped, and later set right."""
        path = self.world.folder / "clock"
        if not path.exists():
            raise NotNow
        set_clock(path, 3600 * (-26, -1, 1, 26)[rng.randrange(4)])
        return lambda: set_clock(path, 0)


def stopped(pid: int) -> Undo:
    """SIGSTOP to a process; what is returned lets it go on."""
    kill(pid, signal.SIGSTOP)
    return lambda: kill(pid, signal.SIGCONT)


def set_clock(path: Path, seconds: int) -> None:
    """Step the clock that processes have mapped (clock.c)."""
    with open(path, "r+b") as file:
        file.write(seconds.to_bytes(8, "little", signed=True))


def tc(*words: str) -> None:
    """Change the queue of an interface."""
    subprocess.run(["tc", "qdisc", *words], check=True, capture_output=True)


def kinds(targets: Targets) -> list[Kind]:
    """All kinds there are; a kind that comes often stands more than once."""
    cluster = targets.world.cluster
    datanodes = [f"datanode-{n}" for n in range(cluster.plan.datanodes)]
    nodes = [f"nodemanager-{n}" for n in range(cluster.plan.nodemanagers)]
    pair = ("", "-2") if cluster.plan.ha else ("",)
    namenodes = [f"namenode{end}" for end in pair]
    managers = [f"resourcemanager{end}" for end in pair]
    t = targets
    often = [
        Kind("rank killed", WORKER, t.kill_rank),
        Kind("rank stopped", STOPPED, t.stop_rank, (2, 60)),
        Kind("container killed", WORKER, t.kill_container),
        Kind("agent killed", WORKER, t.kill_agent),
    ]
    with_kerberos = [Kind("token ended", OTHER, t.end_token)] if cluster.plan.kerberos else []
    return [
        *often, *often, *with_kerberos, *with_kerberos,
        Kind("container preempted", OTHER, t.preempt, (10, 40)),
        Kind("agent stopped", STOPPED, t.stop_agent, (2, 60)),
        Kind("driver killed", MASTER, t.kill_driver),
        Kind("driver stopped", OTHER, t.stop_driver, (2, 90)),
        Kind("application master killed", MASTER, t.kill_master),
        Kind("NodeManager killed", OTHER, t.kill_daemon(*nodes), (1, 20)),
        Kind("NodeManager stopped", OTHER, t.stop_daemon(*nodes), (1, 30)),
        Kind("NameNode killed", OTHER, t.kill_daemon(*namenodes), (1, 30)),
        Kind("NameNode stopped", OTHER, t.stop_daemon(*namenodes), (1, 60)),
        Kind("ResourceManager killed", OTHER, t.kill_daemon(*managers), (1, 20)),
        Kind("ResourceManager stopped", OTHER, t.stop_daemon(*managers), (1, 40)),
        Kind("DataNode killed", OTHER, t.kill_daemon(*datanodes), (1, 30)),
        Kind("DataNode stopped", OTHER, t.stop_daemon(*datanodes), (1, 60)),
        Kind("metastore killed", OTHER, t.kill_daemon("metastore"), (1, 10)),
        Kind("slow disk", OTHER, t.slow_disk, (5, 30)),
        Kind("full disk of a DataNode", OTHER, t.full_disk(*datanodes), (3, 20)),
        Kind("full disk of a NodeManager", OTHER, t.full_disk(*nodes), (3, 20)),
        Kind("slow network", OTHER, t.slow_network, (3, 20)),
        Kind("clock stepped", OTHER, t.clock, (2, 60)),
        Kind("server killed", OTHER, t.kill_server),
        Kind("server stopped", OTHER, t.stop_server, (1, 10)),
        Kind("command killed", OTHER, t.kill_command),
    ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Injected:
    """A fault that was done, and how soon the job took new steps (None: it was in none)."""

    name: str
    lost: str
    seconds: float | None


class Injector:
    """Injects faults one after the other, at times two at once.

    Fault number N has a generator of its own, made of the seed and N: a run can begin anywhere.
    """

    def __init__(self, targets: Targets, only: Sequence[str] = ()) -> None:
        self.targets, self.world = targets, targets.world
        self.kinds = [kind for kind in kinds(targets) if not only or kind.name in only]
        self.done: list[Injected] = []

    def inject(self, number: int) -> None:
        """Fault number `number`, to its end and to the job's new steps."""
        rng = random.Random(f"{self.world.seed} {number}")
        if self.world.over.wait(rng.uniform(0.5, 6.0)):
            return
        order = rng.sample(self.kinds, len(self.kinds))
        together = 2 if rng.random() < 0.2 else 1
        lasting, done = [], []
        before = self._step()
        for kind in order:
            try:
                undo = kind.do(rng)
            except NotNow:
                continue
            except OSError as error:  # a process has just ended, a daemon is away
                self.world.note("fault", f"no {kind.name}: {error!r:.200}", number=number)
                continue
            seconds = rng.uniform(*kind.seconds)
            self.world.note("fault", kind.name, number=number, seconds=round(seconds, 1))
            if undo is not None:
                lasting.append((time.monotonic() + seconds, kind, undo))
            done.append(kind)
            if len(done) == together:
                break
        began = time.monotonic()
        again: list[float] = []
        watch = threading.Thread(target=self._watch, args=(before, began, again), daemon=True)
        watch.start()
        for end, kind, undo in sorted(lasting, key=lambda one: one[0]):
            time.sleep(max(0.0, end - time.monotonic()))
            self._undo(kind, undo)
        self._start_dead()
        watch.join(RECOVERY_LIMIT + 10)
        lost = MASTER if any(kind.lost == MASTER for kind in done) else done[0].lost if done else ""
        names = " and ".join(kind.name for kind in done)
        if done:
            self.done.append(Injected(names, lost, again[0] if again else None))
            self.world.note("fault", "over", number=number, new_steps=again[:1])

    def _start_dead(self) -> None:
        """Start what a fault has ended besides, as a site's supervisor does: a NodeManager ends
        where its disk is full."""
        cluster = self.world.cluster
        for name, record in cluster.records.items():
            if not daemons.alive(record):
                self.world.note("fault", f"{name} has died: {daemons.cause_of_death(record):.200}")
                with contextlib.suppress(ClusterError):  # its masters may be away
                    cluster.start(name)

    def _undo(self, kind: Kind, undo: Undo) -> None:
        for tries in range(3):
            try:
                undo()
                return
            except Exception as error:
                got = getattr(error, "got", None) or error
                self.world.note("fault", f"undoing {kind.name}: {got!r:.200}")
                time.sleep(2.0 + tries)

    def _step(self) -> tuple | None:
        """(application, attempt, generation, step) of the job that trains now."""
        job = self.targets.training.job
        status = job.status if job is not None else None
        if not status or not status["world_size"]:
            return None
        return job.application, status["attempt"], status["generation"], status["step"] or 0

    def _watch(self, before: tuple | None, began: float, again: list[float]) -> None:
        """Waits for new steps, of the same job, in a world that all of this did not end."""
        if before is None:
            return

        def goes_on() -> bool:
            now = self._step()
            job = self.targets.training.job
            if job is None or job.application != before[0]:
                return True
            return now is not None and now[3] and (now[1] > before[1] or now[3] > before[3] + 1)

        if when(goes_on, RECOVERY_LIMIT) is not None and self._same(before):
            again.append(round(time.monotonic() - began, 1))

    def _same(self, before: tuple) -> bool:
        job = self.targets.training.job
        return job is not None and job.application == before[0]
