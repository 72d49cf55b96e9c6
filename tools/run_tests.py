"""Run the tests in groups, one process each, and end with one line like pytest's.

    python tools/run_tests.py            every test once (`make test`)
    python tools/run_tests.py --all      the full matrix as well (`make test-all`); leaves out the
                                         tests that have passed with the same sources
    python tools/run_tests.py mpi spark  these groups only

A process can import one framework only, so tests that import TensorFlow or PyTorch are in files
named `*_tf.py` and `*_torch.py`, which have their own processes.

Tests on Hadoop's daemons, on Airflow, and of whole jobs often wait: `make test` runs them beside
the other groups if two processors and enough memory are available; the lane that ends first takes a
group of the other. The full matrix times its faults, so it runs one group after the other unless
--beside is set.

Each passed test is written at once to build/passed/, with a hash of its sources
(tools/passed_tests.py), so that the full matrix, which takes hours, can be stopped and resumed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

import passed_tests
from toolkit import ROOT, output_of

from howdah.core import machine
from howdah.core.child import Child

TOOLS = ROOT / "tools"
REPORTS = ROOT / "build" / "test-reports"
PASSED = ROOT / "build" / "passed"
BUDGET_SECONDS = 40 * 60  # of `make test` on 2 idle cores; more is reported
_SLOWEST = 40  # files that are listed if the budget is exceeded
LIMIT_SECONDS = 75 * 60  # after this the running group counts as hanging and is stopped
BESIDE = ("hadoop", "airflow", "jobs")  # groups that run beside the others, in this order
SPARKS = ("spark", "hadoop", "airflow")  # groups that start JVMs of Spark
BESIDE_MEMORY = 15 * 2**30  # bytes that two groups at once may need
READ_PAGES = (
    "tests/test_docs.py",
    "tests/config/test_policy.py",
    "tests/jobs/clusters/test_clusters.py",
)
READ_TESTS = ("tests/test_docs.py", "tests/test_rooms.py")
NO_TESTS = 5  # pytest's exit code for a selection that selects nothing
FRAMEWORK_FILES = {
    "tensorflow": re.compile(r"_(tf|tensorflow)(_\w+)?\.py$"),
    "torch": re.compile(r"_torch(_\w+)?\.py$"),
}
TEST_FILE = re.compile(r"tests/(.*/)?test_\w+\.py")


@dataclasses.dataclass(frozen=True)
class Group:
    """Tests that share a process.

    `marks` is pytest's -m expression; `files` is the kind of files, limited to the folder `within`,
    if set, and without the folders `without`.
    """

    name: str
    marks: str
    files: str = "other"
    within: str | None = None
    without: tuple[str, ...] = ()


# Each test belongs to one group: the first marker of hadoop, airflow, spark, mpi decides. Tests
# with mpi are in three groups, so that two lanes can end at about the same time.
_MPI = "mpi and not (hadoop or airflow or spark or gpu)"
GROUPS = (
    Group("core", "not (hadoop or airflow or spark or mpi or gpu)"),
    Group("tensorflow", "not gpu", "tensorflow"),
    Group("torch", "not gpu", "torch"),
    Group("spark", "spark and not (hadoop or airflow or gpu)"),
    Group("mpi", _MPI, without=("tests/jobs", "tests/training/elastic")),
    Group("elastic", _MPI, within="tests/training/elastic"),
    Group("jobs", _MPI, within="tests/jobs"),
    Group("airflow", "airflow and not (hadoop or gpu)"),
    Group("hadoop", "hadoop and not gpu"),
    Group("gpu", "gpu", "all"),
)


@dataclasses.dataclass
class Outcome:
    """The result of one group: counts, names of failed tests, and the reason of an early end."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    before: int = 0
    """The part of `passed` that had passed before and was not run again."""
    names: list[str] = dataclasses.field(default_factory=list)
    files: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Seconds of each file's tests and fixtures, by the file's dotted name."""
    problem: str | None = None

    @property
    def good(self) -> bool:
        """True if no test failed and the group ran to its end."""
        return not (self.failed or self.errors or self.problem)


def kind_of(path: Path) -> str:
    """The framework of a test file: tensorflow, torch or other."""
    for framework, pattern in FRAMEWORK_FILES.items():
        if pattern.search(path.name):
            return framework
    return "other"


def files_of(group: Group, tests: Sequence[Path]) -> list[Path]:
    """The test files of a group, as absolute paths."""
    files = [path for path in tests if group.files in ("all", kind_of(path))]
    if group.within is not None:
        files = [path for path in files if path.is_relative_to(ROOT / group.within)]
    for folder in group.without:
        files = [path for path in files if not path.is_relative_to(ROOT / folder)]
    return files


def read_report(path: Path, code: int) -> Outcome:
    """Counts from pytest's JUnit file; a missing or broken file is also a failure."""
    outcome = Outcome()
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        outcome.problem = f"pytest ended with {code} and left no report"
        return outcome
    for suite in root.iter("testsuite"):
        total, failed, errors, skipped = (
            int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
        )
        outcome.failed += failed
        outcome.errors += errors
        outcome.skipped += skipped
        outcome.passed += total - failed - errors - skipped
    for case in root.iter("testcase"):
        outcome.files[case.get("classname") or "collection"] += float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.names.append(f"{case.get('classname')}::{case.get('name')}")
    if code not in (0, NO_TESTS) and outcome.good:
        outcome.problem = f"pytest ended with {code}"
    return outcome


def test_environment() -> dict[str, str]:
    """The environment of the tests: this interpreter's programs, loopback only, no hub."""
    env = dict(os.environ)
    env["PATH"] = str(Path(sys.executable).parent) + os.pathsep + env.get("PATH", "")
    # A test that reaches for a hub must fail at once, not hang or download.
    env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("PYTHONFAULTHANDLER", "1")
    return env


class Running:
    """The running process of a group's tests.

    Args:
        group: the group.
        full: also run tests marked `full`, but not those that have passed with these sources.
        extra: more arguments for pytest.
        log: file for pytest's output; None: this process's output.
    """

    def __init__(
        self, group: Group, *, full: bool, extra: Sequence[str], log: Path | None = None
    ) -> None:
        self.name = group.name
        self._before: dict[str, float] = {}
        self._process: Child | None = None
        self._log: Path | None = None
        tests = sorted((ROOT / "tests").rglob("test_*.py"))
        files = [str(path.relative_to(ROOT)) for path in files_of(group, tests)]
        if not files:
            return
        marks = group.marks if full else f"({group.marks}) and not full"
        self._log = log
        self._report = REPORTS / f"{group.name}.xml"
        self._report.unlink(missing_ok=True)
        notes = PASSED / f"{group.name}.jsonl"
        noting = ["-p", "passed_tests", "--note-passed", str(notes)]
        if full:
            noting.append("--leave-out-passed")
            self._before = passed_tests.read(notes, ROOT)
        argv = [
            sys.executable, "-m", "pytest", "-q", "-m", marks, "--durations=10", *noting,
            "--junitxml", str(self._report), *extra, *files,
        ]  # fmt: skip
        shown = shlex.join([*argv[: -len(files)], f"({len(files)} files)"])
        beside = f"\n    in parallel; its output is shown at the end: {log}" if log else ""
        print(f"\n--- {group.name}: {shown}{beside}", flush=True)
        env = test_environment()
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TOOLS), env.get("PYTHONPATH"))))
        if group.name != "gpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        self._started = time.monotonic()
        if log:
            log.unlink(missing_ok=True)
        # If this process is killed, SIGINT lets fixtures stop the daemons that they have started.
        self._process = Child(argv, cwd=ROOT, env=env, output=log, death_signal=signal.SIGINT)

    @property
    def ended(self) -> bool:
        """True if its process has ended."""
        return self._process is None or not self._process.alive

    def finish(self) -> Outcome:
        """Wait for its end; an exception meanwhile stops it."""
        if self._process is None:
            return Outcome()
        try:
            code = self._process.wait()
        except BaseException:
            stop(self._process)
            raise
        outcome = read_report(self._report, code)
        outcome.seconds = time.monotonic() - self._started + sum(self._before.values())
        outcome.passed += len(self._before)
        outcome.before = len(self._before)
        return outcome

    def cut_short(self) -> Outcome:
        """Stop it if it still runs."""
        if self.ended:
            return self.finish()
        stop(self._process)
        outcome = self.finish()
        spent = f"stopped after {outcome.seconds:.0f} s"
        outcome.problem = f"{spent}: the time for all tests was used up"
        return outcome

    def show(self) -> None:
        """Print its output if it went into a file."""
        if self._log is not None:
            print(f"\n--- {self.name}: ran in parallel", flush=True)
            print(self._log.read_text(encoding="utf-8", errors="replace"), flush=True)


class Lane:
    """Groups that run one after the other, in parallel with another lane.

    Args:
        groups: the groups in their order.
        extra: more arguments for pytest.
        full: also run tests marked `full`.
        logged: write their output to files, which are shown at the end.
    """

    def __init__(
        self, groups: Sequence[Group], extra: Sequence[str], *, full: bool, logged: bool
    ) -> None:
        self._waiting = list(groups)
        self._extra = extra
        self._full = full
        self._logged = logged
        self._now: Running | None = None
        self.begun: list[Running] = []
        self.outcomes: dict[str, Outcome] = {}

    def relieve(self, other: Lane) -> None:
        """Take the last waiting group of another lane if this lane has nothing left."""
        if not self._waiting and (self._now is None or self._now.ended) and other._waiting:
            self._waiting.append(other._waiting.pop())

    def goes_on(self) -> bool:
        """Start the next group if the last has ended; return whether one runs."""
        if self._now is not None and self._now.ended:
            self.outcomes[self._now.name] = self._now.finish()
            self._now = None
        if self._now is None and self._waiting:
            group = self._waiting.pop(0)
            log = REPORTS / f"{group.name}.log" if self._logged else None
            self._now = Running(group, full=self._full, extra=self._extra, log=log)
            self.begun.append(self._now)
        return self._now is not None

    def cut_short(self) -> None:
        """Stop the running group; waiting groups do not start."""
        late = "not started: the time for all tests was used up"
        self.outcomes |= {group.name: Outcome(problem=late) for group in self._waiting}
        self._waiting = []
        if self._now is not None:
            self.outcomes[self._now.name] = self._now.cut_short()
            self._now = None


def has_room() -> bool:
    """Whether two groups may run at once: two processors, and memory for both."""
    limit, _ = machine.memory_bytes()
    return machine.cores() > 1 and limit >= BESIDE_MEMORY


def run_groups(
    groups: Sequence[Group], extra: Sequence[str], *, full: bool, beside: bool
) -> dict[str, Outcome]:
    """Run every test once, within LIMIT_SECONDS; with `full` tests there is no limit.

    Args:
        beside: run the groups of BESIDE in parallel with the others if the machine allows it.
    """
    ends = float("inf") if full else time.monotonic() + LIMIT_SECONDS
    aside = [group for name in BESIDE for group in groups if group.name == name]
    if len(aside) == len(groups) or not beside or not has_room():
        aside = []
    ahead = [group for group in groups if group not in aside]
    lanes = [
        Lane(aside, extra, full=full, logged=True),
        Lane(ahead, extra, full=full, logged=False),
    ]
    try:
        while time.monotonic() < ends:
            if aside:
                lanes[0].relieve(lanes[1])
                lanes[1].relieve(lanes[0])
            running = [lane.goes_on() for lane in lanes]
            if not any(running):
                break
            time.sleep(0.05)
    finally:
        for lane in lanes:
            lane.cut_short()
    for running in lanes[0].begun:
        running.show()
    outcomes = lanes[0].outcomes | lanes[1].outcomes
    return {group.name: outcomes[group.name] for group in groups}


@contextlib.contextmanager
def spark_classes(groups: Sequence[Group]) -> Iterator[None]:
    """Context that writes the class archive for Spark's later JVMs while the first tests run."""
    if not any(group.name in SPARKS for group in groups):
        yield
        return
    argv = [sys.executable, "-m", "tools.jvm_classes"]
    log = REPORTS / "spark-classes.log"
    log.unlink(missing_ok=True)
    with Child(argv, cwd=ROOT, env=test_environment(), output=log):
        yield


def stop(process: Child, patience: float = 60) -> None:
    """End a process and its children.

    pytest alone gets SIGINT first, so that its fixtures stop the daemons that they have started;
    after `patience` seconds its group gets SIGTERM, and after as many more SIGKILL.
    """
    process.send(signal.SIGINT)
    process.wait(patience)
    process.end(signal.SIGTERM, patience, group=True)


def hashes_of_files() -> dict[str, str]:
    """SHA-256 over the files of the working tree that git does not ignore: "pages" in Markdown,
    files of "tests" (each also has its own hash, see tools/passed_tests.py), and all other
    "sources".

    Where git lists nothing (an unpacked archive, another user's checkout), "sources" differ at each
    call.
    """
    options = ["-z", "--cached", "--others", "--exclude-standard"]
    listed = output_of(["git", "-C", ROOT, "ls-files", *options])
    if listed is None:
        print("git does not list the sources (`git status` says why): every test is run")
        return {"sources": str(time.time())}
    totals = {kind: hashlib.sha256() for kind in ("sources", "pages", "tests")}
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        if path.is_file():
            page, test = name.endswith(".md"), TEST_FILE.fullmatch(name)
            total = totals["pages" if page else "tests" if test else "sources"]
            total.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return {kind: total.hexdigest() for kind, total in totals.items()}


def begin_notes() -> None:
    """Keep the tests that have passed with the same sources.

    A changed test file affects its own tests (tools/passed_tests.py) and those that read all test
    files. A changed page affects only the tests that read pages, since benches and the tests of
    faults write their figures into some.
    """
    now = hashes_of_files()
    changed = {
        kind
        for kind, value in now.items()
        if not (PASSED / kind).is_file() or (PASSED / kind).read_text() != value
    }
    if "sources" in changed:
        shutil.rmtree(PASSED, ignore_errors=True)
        PASSED.mkdir(parents=True)
    else:
        readers = READ_PAGES if "pages" in changed else ()
        readers += READ_TESTS if "tests" in changed else ()
        for notes in PASSED.glob("*.jsonl"):
            passed_tests.forget(notes, readers)
    for kind, value in now.items():
        (PASSED / kind).write_text(value)


def closing_lines(outcomes: dict[str, Outcome], seconds: float, budget: float | None) -> list[str]:
    """A line for each group, the failed tests, and the sum in pytest's form.

    Args:
        seconds: total time.
        budget: expected total time; more is reported, but does not fail, since machines differ.
    """
    lines = [""]
    for name, outcome in outcomes.items():
        note = f"  {outcome.before} of them before" if outcome.before else ""
        note += f"  {outcome.problem}" if outcome.problem else ""
        lines.append(
            f"{name:<11}{outcome.passed:>5} passed {outcome.failed + outcome.errors:>3} failed "
            f"{outcome.skipped:>3} skipped {outcome.seconds:>7.1f} s{note}"
        )
    for name, outcome in outcomes.items():
        lines += [f"FAILED ({name}) {test}" for test in outcome.names]
    total = {
        "failed": sum(o.failed for o in outcomes.values()),
        "passed": sum(o.passed for o in outcomes.values()),
        "skipped": sum(o.skipped for o in outcomes.values()),
        "error": sum(o.errors + (o.problem is not None) for o in outcomes.values()),
    }
    counts = ", ".join(f"{count} {word}" for word, count in total.items() if count)
    if budget is not None and seconds > budget:
        files: collections.Counter[str] = collections.Counter()
        for outcome in outcomes.values():
            files.update(outcome.files)
        lines += [f"{spent:>7.1f} s  {name}" for name, spent in files.most_common(_SLOWEST)]
        lines.append(
            f"{seconds / 60:.0f} minutes: over the budget of {budget / 60:.0f} for `make test`; "
            f"above: the {_SLOWEST} files that take most of it"
        )
    lines.append(f"===== {counts or 'no tests ran'} in {seconds:.2f}s =====")
    return lines


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help=", ".join(group.name for group in GROUPS))
    parser.add_argument("--all", action="store_true", help="also tests marked `full`; resumes")
    parser.add_argument("--beside", action="store_true", help="with --all: two groups at a time")
    parser.add_argument("--pytest", default="", help="more arguments for pytest, as one string")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.groups) - {group.name for group in GROUPS})
    if unknown:
        parser.error(f"no group {', '.join(unknown)}: choose from {[g.name for g in GROUPS]}")
    chosen = [group for group in GROUPS if not options.groups or group.name in options.groups]
    if not options.groups and not has_gpu():
        print("gpu: this machine has no NVIDIA GPU; these tests are not run")
        chosen = [group for group in chosen if group.name != "gpu"]
    # In the background or under nohup, this process and all tests would ignore these signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    REPORTS.mkdir(parents=True, exist_ok=True)
    extra = shlex.split(options.pytest)
    started = time.monotonic()
    begin_notes()
    beside = options.beside or not options.all
    with contextlib.nullcontext() if options.all else spark_classes(chosen):
        outcomes = run_groups(chosen, extra, full=options.all, beside=beside)
    budget = None if options.all else BUDGET_SECONDS
    lines = closing_lines(outcomes, time.monotonic() - started, budget)
    print("\n".join(lines), flush=True)
    ran = sum(o.passed + o.failed + o.errors for o in outcomes.values())
    return 0 if ran and all(outcome.good for outcome in outcomes.values()) else 1


def has_gpu() -> bool:
    """Whether nvidia-smi lists a GPU."""
    return "GPU" in (output_of(["nvidia-smi", "-L"]) or "")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("stopped; with --all the next call leaves out passed tests", file=sys.stderr)
        sys.exit(130)
