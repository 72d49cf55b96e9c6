"""Run peer and ours in turn, print medians and ratios, name the machine, keep JSON."""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from howdah.core.machine import cpu_has_amx, processor

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("tensorflow", "torch", "transformers", "datasets", "pyspark", "horovod", "numpy")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison. Rates are work per second (higher is better) unless `lower_is_better`."""

    what: str
    unit: str
    peer: str
    peer_values: list[float]
    our_values: list[float]
    bar: str | None = None
    """The bar as text, e.g. ">= 3x"."""
    lower_is_better: bool = False
    notes: dict = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times better ours is, by medians."""
        peer, ours = statistics.median(self.peer_values), statistics.median(self.our_values)
        return peer / ours if self.lower_is_better else ours / peer


def compare(
    what: str,
    *,
    peer: str,
    run_peer: Callable[[], object],
    run_ours: Callable[[], object],
    work: float,
    unit: str,
    rounds: int = 5,
    bar: str | None = None,
    in_process: bool = True,
) -> Row:
    """Time both in turn, after one unmeasured round.

    The row's values are rates of elapsed time. Its notes hold processor time, all threads, which a
    busy machine disturbs less: microseconds a unit of work, and the ratio of the medians.

    Args:
        work: units done by one call (rows, tokens, ...); rates are work / seconds.
        in_process: this process does the work. Where others do (Spark's), its processor time says
            nothing and is left out.
    """
    peer_values, our_values, peer_cpu, our_cpu = [], [], [], []
    for round_ in range(rounds + 1):
        for call, values, cpu in (
            (run_peer, peer_values, peer_cpu),
            (run_ours, our_values, our_cpu),
        ):
            gc.collect()
            start, start_cpu = time.perf_counter(), time.process_time()
            call()
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
            if round_:
                values.append(work / seconds)
                cpu.append(1e6 * cpu_seconds / work)
    return Row(
        what=what,
        unit=unit,
        peer=peer,
        peer_values=peer_values,
        our_values=our_values,
        bar=bar,
        notes={
            "cpu_us_peer": peer_cpu,
            "cpu_us_ours": our_cpu,
            "cpu_ratio": statistics.median(peer_cpu) / statistics.median(our_cpu),
        }
        if in_process
        else {},
    )


def machine() -> dict:
    """What the figures were taken on."""
    model = processor().get("model name", platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model + (" (AMX)" if cpu_has_amx() else ""),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "load": os.getloadavg()[0],
    }


def table(rows: Sequence[Row]) -> str:
    """Medians and ratios as a Markdown table."""
    lines = [
        "| what | peer | peer's median | ours | unit | ratio | ratio of CPU time | bar |",
        "|---|---|--:|--:|---|--:|--:|---|",
    ]
    for row in rows:
        peer, ours = statistics.median(row.peer_values), statistics.median(row.our_values)
        cpu = f"{row.notes['cpu_ratio']:.2f}x" if "cpu_ratio" in row.notes else ""
        lines.append(
            f"| {row.what} | {row.peer} | {peer:,.4g} | {ours:,.4g} | {row.unit} "
            f"| {row.ratio:.2f}x | {cpu} | {row.bar or ''} |"
        )
    return "\n".join(lines)


def report(name: str, rows: Sequence[Row], **more: object) -> None:
    """Print the table and save bench/results/<name>.json."""
    here = machine()
    if rows:
        print(f"\n## {name}\n\n{table(rows)}\n")
    print(
        f"{here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, load {here['load']:.1f}"
    )
    RESULTS.mkdir(exist_ok=True)
    saved = {
        "name": name,
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": here,
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        **more,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(saved, indent=1) + "\n")
    print(f"saved: {path}", file=sys.stderr)


class Budget:
    """Parts of a bench that one start may run; the next start goes on with the rest."""

    def __init__(self, parts: int) -> None:
        self._left = parts
        self.over = False
        """A part was asked for that was not run."""

    def take(self) -> bool:
        """Whether one more part may run."""
        self._left -= 1
        self.over = self.over or self._left < 0
        return self._left >= 0


class Rounds:
    """Rounds of a bench of hours, kept as they end: a run that was stopped goes on with the next.

    What was kept of other settings, other sources or another machine is not taken up.

    Args:
        name: of the bench; the file is bench/results/<name>.rounds.jsonl.
        sources: of what is measured, in the repository: files, or directories with Python files.
        settings: whatever else makes rounds comparable.
    """

    def __init__(self, name: str, *, sources: Sequence[str], **settings: object) -> None:
        self._path = RESULTS / f"{name}.rounds.jsonl"
        here = machine()
        parts = [here["cpu"], here["cores"], here["python"], here["versions"], settings]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
        for source in sources:
            root = RESULTS.parent.parent / source
            for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
                digest.update(path.read_bytes())
        self._key = digest.hexdigest()[:16]

    def kept(self, what: str) -> list[dict]:
        """The rounds of `what` that are there."""
        if not self._path.exists():
            return []
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [line["found"] for line in lines if (line["key"], line["what"]) == (self._key, what)]

    def keep(self, what: str, values: dict) -> None:
        """One more of `what`, with the time and the load it ended at."""
        RESULTS.mkdir(exist_ok=True)
        taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"key": self._key, "what": what, "taken": taken, "load": os.getloadavg()[0]}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "found": values}) + "\n")

    def up_to(
        self, count: int, what: str, run: Callable[[], dict], budget: Budget | None = None
    ) -> list[dict]:
        """`count` rounds of `what`: those that are there, then what `run` gives; keeps those.

        Fewer where the budget is spent.
        """
        rounds = self.kept(what)[:count]
        while len(rounds) < count and (budget is None or budget.take()):
            rounds.append(run())
            self.keep(what, rounds[-1])
            print(f"{what}: round {len(rounds)} of {count}", flush=True)
        return rounds


def rows_from_child(module: str, *arguments: str) -> list[Row]:
    """Rows that a child process prints as JSON: one framework a process."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"},
    )
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def print_rows(rows: Sequence[Row]) -> None:
    """What `rows_from_child` reads."""
    print(json.dumps([asdict(row) for row in rows]))


def python_with(folder: str, packages: Sequence[str]) -> str:
    """The Python of an environment with these packages, which is made in `folder` if it is new."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(folder):
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python
