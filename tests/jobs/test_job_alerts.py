"""A real driver informs a real command: of a job that failed, of one whose steps have stopped."""

import json

import pytest

from tests.alerts.receiver import receiving
from tests.runs.jobs.local_jobs import LocalJob


def job(tmp_path, receiver, *, fault, **job_keys):
    return LocalJob(
        tmp_path,
        nodes="a,b",
        env={"FAULT": json.dumps(fault)},
        limits={"stall_factor": 3},
        training={"max_steps": 10**6},
        job={"workers": 2, "commit_every": 5, **job_keys},
        alerts={"command": receiver.command, "stall_seconds": 1},
    )


def test_a_job_that_failed_is_said_once_with_its_error(tmp_path):
    fault = {"rank": 1, "step": 20, "do": "crash"}
    with receiving() as receiver, job(tmp_path, receiver, fault=fault) as one:
        code, verdict, status = one.end()
        assert (code, verdict["status"]) == (6, "FAILED")
        alerts = [alert for alert in receiver.wait() if alert["kind"] == "failure"]
    assert len(alerts) == 1
    assert alerts[0]["what"] == status["error"]["what"]
    assert alerts[0]["error"]["error"] == status["error"]["error"]
    assert alerts[0]["link"] == status["page"]


@pytest.mark.full  # a job that failed is said in every run
def test_a_job_whose_steps_have_stopped_is_said_and_goes_on(tmp_path):
    with receiving() as receiver:
        fault = {"rank": 1, "step": 60, "do": "hang"}
        with job(tmp_path, receiver, fault=fault, hang_seconds=600) as one:
            alert = receiver.wait()[0]
            assert alert["kind"] == "stall"
            assert alert["step"] >= 50
            assert alert["seconds"] >= 1
            assert one.driver.poll() is None
            one.driver.terminate()
            one.driver.wait(60)
        assert [each["kind"] for each in receiver.alerts] == ["stall"]  # its end was asked for
