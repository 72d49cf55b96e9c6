"""One job on each system in turn: what setting it up takes, what it costs, what a killed rank does.

The same rows, steps, batch and model (MiniLM's size, fp32, one thread a rank) by Howdah's launchers
and by each peer as its own guide has it. Log-normal lengths of rows, two ranks on this machine.
After BENCH_STEPS (16) timed steps of two ranks rank 1 gets SIGKILL. What two ranks add to a step is
their step less that of one rank with half the batch. Where a peer has checkpoints they come every
ten steps, as ours.

BENCH_ROUNDS (5), BENCH_STEPS, BENCH_STACKS (all; names by comma). A round takes some ten minutes on
two cores: each stack's is kept as it ends, and a second start of the same sources goes on.
"""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement

from bench import harness
from bench.benches.systems.watch import SAVE_EVERY, Place, Watched, python
from bench.training_runs import BATCH, Bench, bare
from tests import ROOT

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STEPS = int(os.environ.get("BENCH_STEPS", "16"))
WARM = 4
ROWS = 8_000
SOURCES = ("training", "bench/benches/systems/watch.py", "bench/training_runs.py")
_PLAIN = "bench/peers/plain_torch.py"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One way to run the job."""

    title: str
    argv: Callable[[Place], list[str]]
    ours: bool = False
    alone: str
    """Key of ALONE: the run of one rank."""
    setup: str
    """Commands, from a machine with Python."""
    scripts: tuple[str, ...] = ()
    """Files that its user writes, in the repository."""
    framework: str = "torch"
    packages: tuple[str, ...]
    """What is installed by name beside the framework; what these need is counted too."""
    resumes: bool = False
    """The same command goes on after a failure."""
    elastic: bool = False
    """A killed rank is replaced while the other one keeps its state."""
    remark: str = "nothing to go on from"
    """Said of one that does not."""


def _howdah(launcher: str) -> Callable[[Place], list[str]]:
    return lambda place: [
        *bare(launcher, place.world), *python("-m", "howdah.training", "--config", place.config)
    ]  # fmt: skip


def _elastic(place: Place) -> dict[str, int]:
    """Its keys of the section job."""
    return {"workers": place.world, "min_workers": 1, "max_workers": place.world}


def _job(on: str) -> Callable[[Place], list[str]]:
    """An elastic job whose workers are processes, Spark tasks or Ray actors of this machine."""

    def argv(place: Place) -> list[str]:
        keys = [f"--set=job.{key}={number}" for key, number in _elastic(place).items()]
        return python(
            "-m", "howdah.cli", "submit", "--on", on, "--wait", "--config", place.config, *keys
        )

    return argv


def _hf(place: Place) -> list[str]:
    many = ("torch.distributed.run", "--standalone", "--nproc-per-node", place.world,
            "--max-restarts", 1, "-m")  # fmt: skip
    return python(
        "-m", *(many if place.world > 1 else ()), "bench.peers.hf_trainer",
        "--dataset", f"{place.bench.folder}/data", "--base", place.bench.base, "--threads", 1,
        "--out", f"{place.folder}/hf.json", "--progress", place.folder, "--batch", place.batch,
        "--keep", f"{place.folder}/kept", "--save-steps", SAVE_EVERY, "--max-steps", 10**6,
    )  # fmt: skip


def _ddp(place: Place) -> list[str]:
    return python(
        "-m", "bench.peers.ddp_gloo", "--dataset", f"{place.bench.folder}/data",
        "--base", place.bench.base, "--meet", f"{place.folder}/meet", "--world", place.world,
        "--steps", 10**6, "--batch", place.batch, "--threads", 1, "--out", place.folder,
    )  # fmt: skip


def _peer(module: str) -> Callable[[Place], list[str]]:
    return lambda place: python("-m", f"bench.peers.{module}", place.world, place.job)


def _horovod(place: Place) -> list[str]:
    program = [os.path.join(os.path.dirname(python()[0]), "horovodrun"), "--gloo"]
    ranks = ["-np", str(place.world), "-H", f"localhost:{place.world}"]
    return [*program, *ranks, *python("-m", "bench.peers.horovod_optimizer", place.job)]


STACKS = {
    **{
        f"howdah {launcher}": Stack(
            title=f"Howdah, {launcher}", argv=_howdah(launcher), ours=True, alone="howdah",
            setup=setup, packages=packages, resumes=True,
        )
        for launcher, setup, packages in (
            ("mpirun", "make setup (builds Horovod)", ("howdah", "horovod")),
            ("horovodrun", "make setup (builds Horovod)", ("howdah", "horovod")),
            ("torchrun", "pip install howdah[torch]", ("howdah",)),
        )
    },
    **{
        f"howdah submit {on}": Stack(
            title=f"Howdah, submit --on {on}, min_workers 1", argv=_job(on), ours=True,
            alone="howdah", setup=f"make setup (builds Horovod){also}",
            packages=("howdah", "horovod", *packages), elastic=True,
        )
        for on, also, packages in (
            ("local", "", ()),
            ("spark", "; a JRE; pip install howdah[etl]", ("howdah[etl]",)),
            ("ray", "; pip install howdah[ray]", ("howdah[ray]",)),
        )
    },
    "hf trainer": Stack(
        title="HF Trainer, torchrun", argv=_hf, alone="hf trainer",
        setup="pip install torch transformers[torch]",
        # transformers 4.57 with torch 2.13: "don't know how to restore data location ... cpu:0"
        remark="its restart on CPU ranks cannot read the checkpoint's optimizer state",
        scripts=("bench/peers/hf_trainer.py",), packages=("transformers", "accelerate"),
    ),
    "torchdistributor": Stack(
        title="TorchDistributor", argv=_peer("spark_distributor"), alone="ddp",
        setup="a JRE; pip install pyspark pandas pyarrow torch transformers",
        scripts=(_PLAIN, "bench/peers/spark_distributor.py"),
        packages=("transformers", "pyspark", "pandas", "pyarrow"),
    ),
    "ray": Stack(
        title="Ray TorchTrainer", argv=_peer("ray_torch"), alone="ddp",
        setup="pip install ray[train] torch transformers",
        scripts=(_PLAIN, "bench/peers/ray_torch.py"), packages=("transformers", "ray[train]"),
    ),
    "horovod": Stack(
        title="horovodrun, DistributedOptimizer", argv=_horovod, alone="ddp",
        setup="a compiler; HOROVOD_WITH_PYTORCH=1 pip install horovod; torch transformers",
        scripts=(_PLAIN, "bench/peers/horovod_optimizer.py"), packages=("transformers", "horovod"),
    ),
    "tf mirrored": Stack(
        title="TF MultiWorkerMirroredStrategy", argv=_peer("tf_mirrored"), alone="tf mirrored",
        setup="pip install tensorflow tf-keras transformers",
        scripts=("bench/peers/tf_mirrored.py",),
        framework="tensorflow", packages=("tf-keras", "transformers"),
    ),
    "ddp": Stack(
        title="DDP by hand", argv=_ddp, alone="ddp", setup="pip install torch transformers",
        scripts=(_PLAIN, "bench/peers/ddp_gloo.py"), packages=("transformers",),
    ),
}  # fmt: skip
ALONE = {"howdah": "howdah torchrun", "hf trainer": "hf trainer", "ddp": "ddp",
         "tf mirrored": "tf mirrored"}  # fmt: skip
"""Runs of one rank, and the stack that makes them."""


# ------------------------------------------------------------------------------------- measured
def _alone(bench: Bench, stack: Stack) -> dict:
    """Milliseconds of a step of one rank, with the whole batch and with half of it."""
    milliseconds = {}
    for key, batch in (("whole_ms", BATCH), ("half_ms", BATCH // 2)):
        place = Place.new(bench, 1, batch)
        with Watched(stack.argv(place), place, ours=stack.ours) as run:
            run.wait_for("steps", lambda run=run: len(run.steps()) > WARM + STEPS)
            milliseconds[key] = _milliseconds(run)
    return milliseconds


def _together(bench: Bench, stack: Stack) -> dict:
    """Two ranks, until rank 1 is killed and what follows is seen."""
    place = Place.new(bench, 2, BATCH)
    with Watched(stack.argv(place), place, ours=stack.ours) as run:
        run.wait_for("steps", lambda: len(run.steps()) > WARM + STEPS)
        figures = {
            "first_step_seconds": run.steps()[0].time - run.begun,
            "step_ms": _milliseconds(run),
            **run.memory(),
            "listeners": run.listeners(),
        }
        figures["killed"] = run.kill_rank(1, goes_on=stack.resumes, elastic=stack.elastic)
    return figures


def _milliseconds(run: Watched) -> float:
    """The median of the timed steps."""
    times = [step.time for step in run.steps()][WARM : WARM + STEPS + 1]
    return 1000 * statistics.median(b - a for a, b in itertools.pairwise(times))


# -------------------------------------------------------------------------------------- counted
def lines_of_code(path: str) -> int:
    """Lines of a Python file that hold code: no comment, docstring or blank line."""
    with open(ROOT / path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    lines: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not text:
            first_inside = min((part.lineno for part in getattr(node, "body", [])), default=None)
            last = node.end_lineno if first_inside is None else first_inside - 1
            lines |= set(range(node.lineno, max(last, node.lineno) + 1))
    return len(lines)


def keys_given(settings: dict) -> int:
    """Keys with a value in a nested configuration."""
    return sum(keys_given(value) if isinstance(value, dict) else 1 for value in settings.values())


def installed(names: tuple[str, ...]) -> tuple[int, float]:
    """Distributions that `names` need here, themselves included, and the MB of their files."""
    waiting, seen, size = [Requirement(name) for name in names], {}, 0.0
    while waiting:
        requirement = waiting.pop()
        extras = seen.setdefault(requirement.name.lower(), set())
        new = {"", *requirement.extras} - extras
        if not new:
            continue
        try:
            distribution = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            del seen[requirement.name.lower()]
            continue
        if not extras:
            size += sum(_size(path.locate()) for path in distribution.files or ()) / 1e6
        extras |= new
        for line in distribution.requires or ():
            one = Requirement(line)
            if any(one.marker is None or one.marker.evaluate({"extra": extra}) for extra in new):
                waiting.append(one)
    return len(seen), size


def _size(path: os.PathLike) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# ------------------------------------------------------------------------------------- the table
def _rows(rounds: dict[str, list[dict]], alone: dict[str, list[dict]]) -> Iterator[dict]:
    """What is shown of each stack: medians, and the last round's end."""

    def median(runs: list[dict], key: str) -> float:
        return statistics.median(one[key] for one in runs)

    for name, runs in rounds.items():
        stack = STACKS[name]
        one = alone.get(stack.alone)
        number, size = installed((stack.framework, *stack.packages))
        framework, framework_size = installed((stack.framework,))
        place = Place(bench=_Nowhere, folder="", world=2, batch=BATCH)
        lines = sum(map(lines_of_code, stack.scripts))
        yield {
            "stack": stack.title,
            "set-up": stack.setup,
            "code": f"{keys_given(place.settings()) + len(_elastic(place)) * stack.elastic} keys"
            if stack.ours
            else f"{lines} lines",
            "packages": f"{number - framework}, {size - framework_size:,.0f} MB",
            "first step s": f"{median(runs, 'first_step_seconds'):.1f}",
            "np=1 ms": f"{median(one, 'whole_ms'):.0f}" if one else "failed",
            "np=2 ms": f"{median(runs, 'step_ms'):.0f}",
            "added ms": f"{median(runs, 'step_ms') - median(one, 'half_ms'):.0f}" if one else "",
            "a rank's peak MB": f"{median(runs, 'rank_mb'):,.0f}",
            "own processes": f"{median(runs, 'own_processes'):.0f}, "
            f"{median(runs, 'own_mb'):,.0f} MB",
            "open ports": f"{median(runs, 'listeners'):.0f}",
            "a killed rank": _said(runs, stack),
        }


class _Nowhere:
    """Stand-in for a Bench where only the configuration's keys are read."""

    folder = base = ""


def _said(runs: list[dict], stack: Stack) -> str:
    kills = [one["killed"] for one in runs]
    outcomes = sorted({kill["outcome"] for kill in kills})
    seconds = statistics.median(kill["seconds"] for kill in kills)
    codes = sorted({kill["exit_code"] for kill in kills if kill["exit_code"] is not None})
    outcome = f"{' or '.join(outcomes)} after {seconds:.1f} s"
    if codes:
        outcome += f", exit code {', '.join(map(str, codes))}"
    went_on = [kill for kill in kills if "seconds_to_new_step" in kill]
    if went_on:
        again = statistics.median(kill["seconds_to_new_step"] for kill in went_on)
        repeated = statistics.median(kill["steps_repeated"] for kill in went_on)
        how = "started again, " if codes else ""
        outcome += f"; {how}next new step after {again:.1f} s, {repeated:.0f} repeated"
    elif not stack.resumes:
        outcome += f"; {stack.remark}"
    return outcome


def table(rows: list[dict]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)])


def main() -> None:
    """All stacks, or those that BENCH_STACKS names."""
    names = [name for name in os.environ.get("BENCH_STACKS", "").split(",") if name] or [*STACKS]
    if unknown := sorted(set(names) - set(STACKS)):
        raise SystemExit(f"no stack {', '.join(unknown)}; there are: {', '.join(STACKS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # contexts end what they have started
    rounds: dict[str, list[dict]] = {}
    alone: dict[str, list[dict]] = {}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder, size="minilm", texts="lengths", rows=ROWS, steps=STEPS)

        def go_on(results: dict, key: str, count: int, what: str, stack: Stack, run: Callable):
            """Up to `count` rounds; a stack that fails costs its own row."""
            if what in failures:
                return
            try:
                journal = _journal(stack)
                results[key] = journal.up_to(count, what, lambda: run(bench, stack))
            except SystemExit as error:
                failures[what] = str(error)
                print(f"{what} failed:\n{error}", flush=True)

        for count in range(1, ROUNDS + 1):  # in turn: what the machine does beside hits all
            for name in names:
                go_on(rounds, name, count, name, STACKS[name], _together)
            for key in dict.fromkeys(STACKS[name].alone for name in names):
                go_on(alone, key, count, f"np=1 {key}", STACKS[ALONE[key]], _alone)
    rows = list(_rows(rounds, alone))
    if rows:
        print(table(rows))
    for framework in ("torch", "tensorflow"):
        number, size = installed((framework,))
        print(f"packages are counted beside {framework}: {number}, {size:,.0f} MB")
    harness.report("systems", [], rounds=rounds, alone=alone, table=rows, failures=failures)
    if failures:
        raise SystemExit(f"no figures of: {', '.join(failures)}")


def _journal(stack: Stack) -> harness.Rounds:
    """The file of its rounds, which other stacks' scripts do not change."""
    sources = (*SOURCES, *stack.scripts)
    return harness.Rounds("systems", sources=sources, steps=STEPS, batch=BATCH, rows=ROWS)


if __name__ == "__main__":
    main()
