"""What each fault cost, as measured by tests/yarn/test_faults.py, and docs/faults.md made of it."""

import json
from dataclasses import asdict, dataclass

from tests import ROOT

ROWS = ROOT / "build" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
HEAD = """# What faults cost

Made by `make test-all` (tests/yarn/test_faults.py and those below). Each fault is done for real to
a job of two workers on the mini cluster: two NodeManagers on one machine, a tiny model, a copy in
memory every {commit} steps, a checkpoint every {checkpoint}, `job.hang_seconds: {hang}`. Seconds
count from the fault to the first step after it, of any rank and of the whole world. Steps repeated
are those between the last one reported (every second) and the state that training went on from.
Processes left are the job's own that should be gone and are not. A framework's cell has repeated
steps; seconds until any rank, and until all ranks train again.

- "no YARN": the same driver and agents as processes of one machine, with slowness
  injected (tests/workers/slow), for lost hosts a network namespace each, and `job.hang_seconds: 5`
  (tests/jobs/test_phases.py, tests/training/test_stops.py, tests/jobs/test_local_network.py,
  tests/jobs/test_local_training.py). Seconds of a lost host count from its loss being known to the
  survivors' next world, those of a stopped rank to its being found.
- "(on ...)": jobs of `howdah submit --on` on one machine of 2 cores that others used
  (tests/jobs/clusters): local; spark, `local-cluster` of two executors; a standalone Spark and a
  Ray of two nodes; Spark on YARN. Seconds of a killed driver include the end of its workers and the
  command that submits the job again, those of a lost node the start of another one.
- "fails over": on a mini cluster with two NameNodes and two ResourceManagers (`--ha`), which
  replaces a stopped master after 5 s; by Hadoop's defaults it takes 45 s for a NameNode and 10 s
  for a ResourceManager (tests/hadoop/test_failover.py). Seconds count to the first file, save or
  answer that began after the fault, or to the end of the command; what has no framework stands
  under torch. All rows, steps, files, versions and applications were there once.
- A row that is missing was not measured.

What faults leave of `howdah score`: [on the cluster](on-the-cluster.md#each-partition-once).

| fault | TensorFlow | torch | went on from | left |
|---|---|---|---|---|
"""
FRAMEWORKS = ("tensorflow", "torch")
"""In the order of the table's columns."""
SETTINGS = {"commit": 20, "checkpoint": 200, "hang": 10}


@dataclass(frozen=True)
class Row:
    """One fault."""

    framework: str
    fault: str
    repeated: int | None
    again_seconds: float | None
    whole_seconds: float | None
    state: str
    left: int | None
    """None: not looked for."""


LOCAL = " (no YARN)"
"""Of faults that are done to the same driver and agents as processes of one machine."""


def add_local(framework, fault, seconds, state):
    """Remember what a fault cost a job of local agents; seconds until training goes on."""
    again = None if seconds is None else round(seconds, 1)
    add(Row(framework, fault + LOCAL, None, again, None, state, None))


def undisturbed(framework, fault):
    """A row of a fault that the job did not notice: same processes, same world, more steps."""
    return Row(framework, fault, None, None, None, "undisturbed", None)


def add(row):
    """Remember a row; a later one of the same fault replaces it."""
    rows = [one for one in load() if (one.framework, one.fault) != (row.framework, row.fault)]
    ROWS.parent.mkdir(exist_ok=True)
    ROWS.write_text(json.dumps([asdict(one) for one in [*rows, row]], indent=1))


def load():
    """The rows of the last runs."""
    return [Row(**one) for one in json.loads(ROWS.read_text())] if ROWS.exists() else []


def write():
    """Put the rows of the last runs into docs/faults.md; rows there that none of them has measured
    stay. A fault after which the frameworks went on differently has a line for each."""
    rows = _rows_of_page()
    for row in load():
        measured = (row.repeated, row.again_seconds, row.whole_seconds)
        figures = "-" if set(measured) == {None} else "; ".join(map(_known, measured))
        rows[row.framework, row.fault] = figures, row.state, _known(row.left)
    lines = {}
    for (framework, fault), (figures, state, left) in rows.items():
        lines.setdefault((fault, state, left), {})[framework] = figures
    table = ""
    for (fault, state, left), figures in sorted(lines.items()):
        cells = (fault, *(figures.get(name, "") for name in FRAMEWORKS), state, left)
        table += f"| {' | '.join(cells)} |\n"
    PAGE.write_text(HEAD.format(**SETTINGS) + table)


def _rows_of_page():
    """{(framework, fault): (figures, state, processes left)}, as text."""
    rows = {}
    for line in PAGE.read_text().splitlines() if PAGE.exists() else []:
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "fault":
            fault, *figures, state, left = cells
            for framework, figure in zip(FRAMEWORKS, figures, strict=True):
                if figure:
                    rows[framework, fault] = figure, state, left
    return rows


def _known(value):
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
