"""A signal while `howdah submit` asks YARN something after its application was accepted.

Each call named in SLOW waits for the signal when it is made for the first time.
"""

import signal

import pytest

from tests.runs.jobs.yarn_jobs import LIMIT, settings

pytestmark = [pytest.mark.hadoop, pytest.mark.mpi]

PROGRAM = """
import os, sys, time
from howdah.errors import ClusterError
from howdah.hadoop.resourcemanager import PATIENCE_SECONDS, ResourceManager

def slow(name, call):
    def waits(*arguments, **more):
        if name == "follow" and more.get("patience", 0) < PATIENCE_SECONDS:
            return call(*arguments, **more)  # not the one that follows the job
        if name in left:
            left.remove(name)
            print(f"slow: {name}", file=sys.stderr, flush=True)
            time.sleep(600)
        return call(*arguments, **more)
    return waits

def refuses(*arguments, **more):
    raise ClusterError("the test's YARN kills nothing")

left = os.environ["SLOW"].split()
if "refuses" in left:
    ResourceManager.kill = refuses
for name, function in {"set_priority": "set_priority", "job_page": "job_page",
                       "application": "application", "kill": "kill",
                       "follow": "__init__"}.items():
    setattr(ResourceManager, function, slow(name, getattr(ResourceManager, function)))
from howdah.cli import main
sys.argv[0] = "howdah"
main()
"""


def interrupted(jobs, home, name, number, slow, *options):
    """Submit, send the signal at each slow call; (exit code, stderr)."""
    held = settings(home, name, training={"max_steps": 100_000})
    held["yarn"]["priority"] = 3
    process = jobs.start_program(
        PROGRAM, "submit", "--config", jobs.config(held), *options, SLOW=" ".join(slow)
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("slow: "):
            process.send_signal(number)
    process.communicate(timeout=LIMIT)
    return process.returncode, "".join(lines)


def live(jobs, name):
    return [one["application"] for one in jobs.json("ps")["jobs"] if one["name"] == name]


@pytest.mark.parametrize(
    ("slow", "number", "code", "options"),
    [
        pytest.param(["set_priority"], signal.SIGTERM, 143, [], marks=pytest.mark.full),
        # Its first question of the application, to which no answer is no failure.
        (["application"], signal.SIGTERM, 143, []),
        # Once more, while it kills.
        pytest.param(["job_page", "kill"], signal.SIGTERM, 143, [], marks=pytest.mark.full),
        pytest.param(["job_page", "kill"], signal.SIGINT, 130, [], marks=pytest.mark.full),
        (["follow"], signal.SIGTERM, 143, ["--wait"]),
        pytest.param(["follow", "kill"], signal.SIGINT, 130, ["--wait"], marks=pytest.mark.full),
    ],
)
def test_a_signal_after_yarn_has_accepted_leaves_no_application(
    jobs, home, slow, number, code, options
):
    name = "-".join(["cut", *slow])
    returned, output = interrupted(jobs, home, name, number, slow, *options)
    assert returned == code, output
    assert all(f"slow: {call}" in output for call in slow), output
    assert ("is over" if options else "killed application_") in output
    assert live(jobs, name) == []


def test_an_application_that_yarn_does_not_kill_is_named_at_the_next_submission(jobs, home):
    name = "not-killed"
    returned, output = interrupted(jobs, home, name, signal.SIGTERM, ["job_page", "refuses"])
    assert returned == 143, output
    [application] = live(jobs, name)
    assert (
        f"{application} may still be running: the test's YARN kills nothing; `howdah kill" in output
    )
    again = jobs.json("submit", "--config", str(jobs.directory / f"{name}.yaml"))
    assert (again["application"], again["attached"]) == (application, True)
    jobs.run("kill", application)
