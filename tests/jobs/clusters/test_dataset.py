"""The status of a job while it makes its dataset, without a Spark."""

import pytest

from howdah.config import loader
from howdah.errors import DataError, Terminated
from howdah.jobs.clusters import dataset
from howdah.jobs.status import status_file
from tests.support.waiting import wait_until

APP = "spark-1"


@pytest.fixture
def config(tmp_path):
    return loader.from_dict({"run": {"directory": str(tmp_path)}})


def status(config):
    return status_file.read(config.run.directory, APP)


def test_lines_of_the_etl_are_events_of_the_job(config):
    with dataset._stage(config, APP) as say:
        say("100 rows")
        wait_until(lambda: status(config).get("events"))
        assert (status(config)["state"], status(config)["events"][0]["what"]) == ("etl", "100 rows")


def test_an_error_of_the_etl_is_the_job_s(config):
    with pytest.raises(DataError), dataset._stage(config, APP):
        raise DataError("bad rows")
    end = status(config)
    assert (end["state"], end["exit_code"], end["error"]["what"]) == ("failed", 3, "bad rows")


def test_a_request_to_stop_ends_it_and_another_one_is_refused(config):
    with pytest.raises(Terminated, match="while its dataset was made"):
        with dataset._stage(config, APP):
            for request in ({"type": "scale", "workers": 3}, {"type": "stop"}):
                status_file.request(config.run.directory, APP, request)
            wait_until(lambda: False)
    assert status(config)["state"] == "killed"
    [refusal] = status(config)["events"]
    assert refusal["what"].endswith("the dataset is being made (a request to stop)")
