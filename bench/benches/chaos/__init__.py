"""A day of faults: jobs, a growing dataset, a scored table and a server, while a seed decides what
breaks, and when.

    python -m bench chaos --hours 1 --seed 7
    python -m bench chaos --seed 7 --first 40 --faults 3     again what came around fault 40

On a mini cluster of its own (root: file systems of their own for full disks, `tc` for the network;
what is not there is left out, and said). Faults come alone and at times two at once: processes,
containers, daemons killed or stopped, disks full or slow, the network cut, clocks stepped, and with
Kerberos tokens that the NameNode no longer knows.
After each piece of work the invariants are checked by what was written, never by asking the product
(reading.py): every step once and with the rows of an undisturbed run, checkpoints whole, every row
of every part once, one version for each published run and one of them current, each partition
scored once by one version, answers of the version that is named, no process and no application
left, no secret in any file. An invariant that does not hold prints the seed and the time.

Bars: 300 faults, none broken; median time to new steps <= 5 s after a lost worker, <= 30 s after a
lost master.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import harness
from bench.benches.chaos import reading, work
from bench.benches.chaos.faults import MASTER, STOPPED, WORKER, Injected, Injector, Targets, tc
from bench.benches.chaos.world import World
from tools.minicluster import MiniCluster
from tools.minicluster.settings import PREEMPTION

TICKET_SECONDS = 300  # every process outlives its ticket, and takes another by its keytab
WIND_UP = 900.0  # seconds for the pieces of work that have begun
FILE_SYSTEMS = {"datanode-0": "700m", "nodemanager-0": "1500m"}
BARS = {WORKER: "<= 5 s", STOPPED: "found after job.hang_seconds: 10", MASTER: "<= 30 s"}


def main(arguments: Sequence[str] = ()) -> int:
    """Faults until the time is over or so many were injected; 1: an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m bench chaos")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first moment")
    parser.add_argument("--faults", type=int, default=10**9, help="at how many moments")
    parser.add_argument("--only", action="append", default=[], help="a kind of fault; repeatable")
    parser.add_argument("--ha", action="store_true", help="two NameNodes, two ResourceManagers")
    parser.add_argument(
        "--kerberos", action="store_true", help="with Kerberos: tickets and tokens that end, too"
    )
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    options = parser.parse_args(list(arguments))
    ending = threading.Event()

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.default_int_handler)
        ending.set()
        print("no more faults after this one; once more: at once", flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    broken, injected = ["it did not begin"], []
    try:
        settings: dict = {"ha": options.ha, "extra": {"yarn-site": PREEMPTION}}
        if options.kerberos:
            settings |= {"secure": True, "ticket_seconds": TICKET_SECONDS}
        with _cluster(folder / "cluster", settings) as cluster:
            world = World(folder, cluster, options.seed)
            injected, facts = _run(world, options, ending)
            broken = world.broken
            cluster.restore()
    finally:
        if broken or options.keep:
            print(f"what happened is in {folder}/events.jsonl")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    _report(options, injected, broken, facts)
    return 1 if broken else 0


# -------------------------------------------------------------------------------- the cluster
@contextlib.contextmanager
def _cluster(directory: Path, settings: dict) -> Iterator[MiniCluster]:
    """A cluster of which a DataNode and a NodeManager have file systems of their own."""
    cluster = MiniCluster(directory, say=lambda line: print(line, file=sys.stderr))
    mounted: list[str] = []
    try:
        cluster.start(**settings)
        cluster.stop()
        for name, size in FILE_SYSTEMS.items():
            place = directory / name
            place.mkdir(exist_ok=True)
            words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "chaos", str(place)]
            if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                mounted.append(str(place))
            else:
                print(f"no full disk of {name}: no file system can be mounted", file=sys.stderr)
        cluster.start(**settings)
        yield cluster
    finally:
        with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
            tc("del", "dev", "lo", "root")
        cluster.stop()
        for place in mounted:
            subprocess.run(["umount", "--lazy", place], check=False)


def _clocked(world: World) -> str:
    """The Python of jobs and of the server, with a clock that faults can step (clock.c)."""
    clock, script, library = (world.folder / name for name in ("clock", "python", "clock.so"))
    compiler = shutil.which("cc")
    if compiler is None:
        print("no clock is stepped: there is no C compiler", file=sys.stderr)
        return sys.executable
    source = str(Path(__file__).with_name("clock.c"))
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", str(library)], check=True)
    clock.write_bytes(bytes(8))
    script.write_text(
        f'#!/bin/sh\nexport LD_PRELOAD={library} CHAOS_CLOCK={clock}\nexec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


# ------------------------------------------------------------------------------------ the run
def _run(
    world: World, options: argparse.Namespace, ending: threading.Event
) -> tuple[list[Injected], dict]:
    world.note("bench", "making what the work needs", seed=world.seed)
    data = work.make_data(world)
    python = _clocked(world)
    training = work.Training(world, data, python)
    training.learn_reference()
    tables = work.Tables(world)
    tables.make_partitions()
    tables.begin()
    serving = work.Serving(world, tables.config, python)
    works = (training, tables, serving)
    for one in works:
        one.start()
    injector = Injector(Targets(world, training, serving), options.only)
    end = time.monotonic() + 3600 * options.hours
    try:
        for number in range(options.first, options.first + options.faults):
            if time.monotonic() > end or world.over.is_set() or ending.is_set():
                break
            injector.inject(number)
    except BaseException:  # an interrupt leaves no process behind
        world.over.set()
        serving.kill()
        for process in list(world.running.values()):
            process.kill()
        raise
    world.note("bench", "no more faults", injected=len(injector.done))
    world.cluster.restore()
    world.over.set()
    for one in works:
        one.join(WIND_UP)
        if one.is_alive():
            world.broke(one.name, f"it has not ended {WIND_UP:.0f} s after the last fault")
    with world.checking("the end"):
        _check_end(world)
    facts = {
        "jobs": training.done, "lines lacking in metrics.jsonl": training.lacking,
        "parts, versions, partitions": tables.done, "requests answered": serving.answered,
        "requests not answered": serving.unanswered, "versions served": len(serving.versions),
    }  # fmt: skip
    return injector.done, facts


def _check_end(world: World) -> None:
    """No application goes on, and the secret is in no file; each job has checked its processes."""
    address = world.cluster.plan.address(f"{world.cluster.active('resourcemanager')}-http")
    states = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
    answer = json.loads(reading.again(
        lambda: reading.get(f"http://{address}/ws/v1/cluster/apps?states={states}")
    ))  # fmt: skip
    left = [app["id"] for app in (answer["apps"] or {}).get("app", [])]
    if left:
        raise reading.Broken(f"applications are left: {left}")
    world.check_secrets()


def _report(
    options: argparse.Namespace, injected: list[Injected], broken: list[str], facts: dict
) -> None:
    counts = collections.Counter(one.name for one in injected)
    all_faults = sum(1 + one.name.count(" and ") for one in injected)
    print(
        f"\n{all_faults} faults at {len(injected)} moments with seed {options.seed},"
        f" {len(broken)} invariants broken"
    )
    for line in broken:
        print(f"  broken: {line}")
    for name, count in sorted(facts.items()):
        print(f"  {name}: {count}")
    print("\n| lost | faults | seconds to new steps: median | 90 % | bar |\n|---|--:|--:|--:|---|")
    seconds: dict[str, list[float]] = {}
    for lost in BARS:
        recoveries = sorted(one.seconds for one in injected if one.lost == lost and one.seconds)
        seconds[lost] = recoveries
        if recoveries:
            high = recoveries[min(len(recoveries) - 1, int(0.9 * len(recoveries)))]
            median = statistics.median(recoveries)
            print(f"| {lost} | {len(recoveries)} | {median:.1f} | {high:.1f} | {BARS[lost]} |")
    harness.report(
        "chaos", [], seed=options.seed, first=options.first, ha=options.ha,
        kerberos=options.kerberos, broken=broken, faults=dict(counts), seconds=seconds, facts=facts,
    )  # fmt: skip
