"""What each fault cost, as measured by tests/yarn/test_faults.py, and docs/faults.md made of it."""

import json
from dataclasses import asdict, dataclass

from tests import ROOT

ROWS = ROOT / "build" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
HEAD = """# What faults cost

Made by `make test-all` (tests/yarn/test_faults.py and those below): each fault is done for real to
a job of two workers on the mini cluster (two NodeManagers on one machine, loopback, a tiny model, a
copy in memory every {commit} steps, a checkpoint every {checkpoint}, `job.hang_seconds: {hang}`).
Seconds count from the fault to the first step after it: of any rank, and of the whole world again.
Steps repeated are those between the last one that was reported (every second) and the state that
training went on from. Processes left are the job's own that should be gone and are not. Rows marked
"agents without YARN" are the same driver and agents as processes of one machine, with slowness
injected (tests/workers/slow) and, for lost hosts, a network namespace each
(tests/jobs/test_phases.py, tests/training/test_stops.py, tests/jobs/test_local_network.py,
tests/jobs/test_local_training.py). There the seconds of a lost host count from the loss being known
(job.contact_seconds after it) to the survivors' next world, those of a rank that stops to its
being found, with `job.hang_seconds: 5`.
Rows with "(on ...)" are jobs of `howdah submit --on` on one machine of 2 cores, which others used
at the same time (tests/jobs/clusters): on local; on spark, `local-cluster` of two executors; on a
standalone Spark and a Ray of two nodes, all daemons on loopback; on Spark on YARN, the mini
cluster. There the seconds of a killed driver include the end of its workers and the command that
submits the job again after it, those of a lost node the start of another one, once the survivor
trains. A row that is missing was not measured: TensorFlow on Spark on YARN has a test and no row.
What faults leave of `howdah score`: [scoring.md](scoring.md#once-and-what-says-so).

| framework | fault | repeated steps | training again, s | all again, s | went on from | left |
|---|---|---|---|---|---|---|
"""
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


LOCAL = " (agents without YARN)"
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
    """Put what is known into docs/faults.md; rows there that no run here has measured stay."""
    lines = {}
    for line in PAGE.read_text().splitlines() if PAGE.exists() else []:
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| ") and len(cells) == 7 and cells[0] != "framework":
            lines[cells[0], cells[1]] = line
    for row in load():
        figures = map(_known, (row.repeated, row.again_seconds, row.whole_seconds))
        cells = (row.framework, row.fault, *figures, row.state, _known(row.left))
        lines[row.framework, row.fault] = f"| {' | '.join(cells)} |"
    table = "".join(f"{lines[name]}\n" for name in sorted(lines))
    PAGE.write_text(HEAD.format(**SETTINGS) + table)


def _known(value):
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
