"""What a task logs of its application, which task owns an application, and a task's links."""

import functools
import json
import logging

import pytest

from howdah.airflow.application import watching as app
from howdah.airflow.application.ownership import (
    TaskKey,
    claim_tag,
    config_hash,
    config_tag,
    killed_by,
    new_claim,
    new_token,
)
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.resourcemanager import ResourceManager, kill_and_wait
from tests.support.airflow import cluster_web as cluster
from tests.support.airflow.cluster_web import APP, KEY, PAGE, fetched, job, report

pytestmark = pytest.mark.airflow


@pytest.fixture
def cluster_web():
    with cluster.serving() as web:
        yield web


# ------------------------------------------------------------------------------- nothing twice
def test_events_after_a_clock_that_is_set_back_are_logged_once():
    position = app.LogPosition(application=APP)
    first, position = app.job_lines(job([], [50.0, 51.0]), position)
    assert first == ["[job] event 50.0", "[job] event 51.0"]
    second, position = app.job_lines(job([], [50.0, 51.0, 8.5]), position)
    assert second == ["[job] event 8.5"]
    assert app.job_lines(job([], [50.0, 51.0, 8.5]), position)[0] == []


def test_an_older_status_repeats_nothing():
    position = app.LogPosition(application=APP)
    _, position = app.job_lines(job([], [50.0, 51.0, 52.0]), position)
    assert app.job_lines(job([], [50.0, 51.0]), position)[0] == []


def test_each_line_event_and_state_is_logged_once_also_after_a_restart():
    position = app.LogPosition.of(None, APP)
    first, position = app.new_lines(fetched(status=job([1, 2], [1.5])), position)
    assert first == [f"{APP} is RUNNING", "[job] event 1.5", "[rank 0] line 1", "[rank 0] line 2"]
    stored = json.loads(json.dumps(position.as_dict()))
    report = fetched(status=job([1, 2, 3], [1.5, 2.5]))
    second, position = app.new_lines(report, app.LogPosition.of(stored, APP))
    assert second == ["[job] event 2.5", "[rank 0] line 3"]
    assert app.new_lines(report, position)[0] == []
    end, _ = app.new_lines(fetched("FINISHED", finalStatus="SUCCEEDED"), position)
    assert end == [f"{APP} is FINISHED (SUCCEEDED)"]


def test_a_stored_position_of_another_application_is_ignored():
    stored = app.LogPosition(application="application_1_0000", line=9).as_dict()
    assert app.LogPosition.of(stored, APP) == app.LogPosition(application=APP)


def test_lines_of_a_new_driver_count_from_one_again():
    _, position = app.job_lines(job([1, 2, 3]), app.LogPosition(application=APP))
    lines, _ = app.job_lines(job([1], attempt=2), position)
    assert lines == ["[rank 0] line 1"]


def test_lines_that_were_missed_are_counted():
    position = app.LogPosition(application=APP, attempt=1, line=3)
    lines, _ = app.job_lines(job([7, 8]), position)
    assert lines == ["(3 lines are left out; the logs have them)", "[rank 0] line 7",
                     "[rank 0] line 8"]  # fmt: skip


# ------------------------------------------------------------------------------- the job's page
@pytest.mark.parametrize(
    ("answer", "readable", "problem"),
    [
        ((200, "application/json", json.dumps(job([1]))), True, None),
        ((404, "text/plain", "no such page"), False, "HTTP 404"),
        ((503, "text/html", "it starts"), False, "HTTP 503"),
        ((401, "text/html", "who are you"), False, "HTTP 401"),
        ((200, "text/html", "<html>a login page</html>"), False, "no JSON"),
        ((200, "application/json", '{"application": "another"}'), False, "not this job's"),
    ],
)
def test_the_jobs_page_gives_a_status_or_the_report_says_why_not(
    cluster_web, answer, readable, problem
):
    report(cluster_web, amContainerLogs="http://node/logs")
    cluster_web.answers[PAGE] = answer
    job = app.fetch_report(cluster_web.manager, APP)
    assert (job.status is not None) == readable
    assert job.status_error is None if problem is None else problem in job.status_error
    assert (job.logs_url, job.over) == ("http://node/logs", False)


def test_the_page_of_an_application_that_is_over_is_not_requested(cluster_web):
    report(cluster_web, state="KILLED", finalStatus="KILLED", diagnostics=" why\n")
    job = app.fetch_report(cluster_web.manager, APP)
    assert (job.over, job.diagnostics) == (True, "why")


def test_a_kill_waits_for_the_end_also_while_the_resourcemanager_starts(cluster_web):
    states, app_states = iter(["INITIALIZING", "ACTIVE"]), iter(["RUNNING", "KILLED"])

    def info():
        return 200, "application/json", json.dumps({"clusterInfo": {"haState": next(states)}})

    def put():
        state = json.dumps({"state": next(app_states)})
        report(cluster_web)  # it knows its applications by now
        cluster_web.puts = put
        return 200, "application/json", state

    def unknown():
        cluster_web.puts = put
        return 404, "application/json", "{}"

    cluster_web.answers["/ws/v1/cluster/info"] = info
    cluster_web.answers[f"/ws/v1/cluster/apps/{APP}"] = 404, "application/json", "{}"
    cluster_web.puts = unknown
    pauses = []
    state = kill_and_wait(cluster_web.manager, APP, "why", seconds=30.0, pause=pauses.append)
    assert state == "KILLED"
    assert len(pauses) == 2


# ------------------------------------------------------------------------------------- ownership
def test_yarns_diagnostics_name_the_execution_that_killed_an_application():
    token = new_token()
    why = KEY.reason(2, token, "its task was ended")
    yarns = f"Application {APP} was killed by user me at 127.0.0.1 with diagnostic message: {why}"
    assert killed_by(yarns, KEY) == token
    assert killed_by(yarns, TaskKey("dag", "manual 2", "train")) is None
    assert killed_by("Killed by the queue", KEY) is None


class Hook:
    """A task's hook: the ResourceManager of `cluster_web`, and the user who submits."""

    def __init__(self, manager, user):
        self._manager, self._user = manager, user

    def resource_manager(self, user=None):
        return self._manager

    def run(self, arguments, on_line=None):
        assert list(arguments) == ["ps", "--json"]
        return {"user": self._user, "jobs": []}


def found_by(web, user, config, claim, applications):
    """What a task of `user` finds among applications (user, tags); how many it has killed."""
    from howdah.airflow.application.task_application import TaskApplication

    running = [
        {"id": f"application_1_000{n}", "state": "RUNNING", "user": who,
         "applicationTags": ",".join(tags)}
        for n, (who, tags) in enumerate(applications, 1)
    ]  # fmt: skip
    ended = []

    def apps():
        return 200, "application/json", json.dumps({"apps": {"app": running}})

    def put():
        ended.append(True)
        return 200, "application/json", '{"state": "KILLED"}'

    web.answers["/ws/v1/cluster/apps"], web.puts = apps, put
    application = TaskApplication(
        Hook(web.manager, user), config, KEY, token=new_token(), claim=claim, try_number=1,
        log=logging.getLogger(__name__),
    )  # fmt: skip
    return application.find(), len(ended)


def test_an_application_of_another_user_is_never_adopted_whatever_its_tags(cluster_web):
    """With a stand-in for the ResourceManager: a server that answers as YARN's does."""
    config, claim = {"run": {"directory": "/r"}}, new_claim()
    ours = [claim_tag(claim), KEY.tag, config_tag(config_hash(config))]
    find = functools.partial(found_by, cluster_web, "ada", config, claim)
    assert find([("mallory", ours)]) == (None, 0)
    assert find([("mallory", ours), ("ada", ours)]) == ("application_1_0002", 0)
    assert find([("ada", ours[:2])]) == (None, 1)  # of another configuration: killed
    assert found_by(cluster_web, None, config, claim, [("ada", ours)]) == (None, 0)


def test_the_tag_that_is_trusted_cannot_be_guessed(cluster_web):
    config = {"run": {"directory": "/r"}}
    filters_sent = []
    manager = ResourceManager(cluster_web.manager.conf, urls=[cluster_web.url], patience=0.0)
    manager.applications = lambda **filters: filters_sent.append(filters) or []
    from howdah.airflow.application.task_application import TaskApplication

    claims = [new_claim(), new_claim()]
    for claim in claims:
        application = TaskApplication(
            Hook(manager, "ada"), config, KEY, token=new_token(), claim=claim, try_number=1,
            log=logging.getLogger(__name__),
        )  # fmt: skip
        assert application.find() is None
        assert claim_tag(claim) in application._tagged()["yarn"]["tags"]
    tags = [filters["applicationTags"] for filters in filters_sent]
    assert tags == [claim_tag(claim) for claim in claims]
    assert len(set(tags)) == 2  # though the task's names are the same


def test_tags_tell_tasks_of_runs_apart_and_are_what_yarn_takes():
    keys = [
        KEY, TaskKey("dag", "manual 1", "train", 0), TaskKey("dag", "manual", "1 train"),
        TaskKey("dag", "manual  1", "train"),
    ]  # fmt: skip
    tags = [key.tag for key in keys]
    assert len(set(tags)) == len(tags)
    assert all(tag.isascii() and not set(tag) & set(" ,") and len(tag) <= 100 for tag in tags)
    assert TaskKey(**KEY.as_dict()) == KEY


def test_a_configurations_hash_does_not_depend_on_the_order_of_its_keys():
    assert config_hash({"a": 1, "b": {"c": 2, "d": 3}}) == config_hash(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )
    assert config_hash({"a": 1}) != config_hash({"a": 2})


# ----------------------------------------------------------------------------------------- links
def test_a_run_directorys_page(monkeypatch):
    from howdah.airflow import links
    from howdah.airflow.runner.settings import ConnectionSettings

    served = ConnectionSettings(files_url="http://files:80/runs/")
    root, run = "/srv/runs", "/srv/runs/dag/a run"
    assert links.run_page(served, root, run) == "http://files:80/runs/dag/a%20run/"
    assert links.run_page(served, root, run, report=True).endswith("/a%20run/report.html")
    assert links.run_page(served, root, "/elsewhere/run") is None
    plain = ConnectionSettings()
    assert links.run_page(plain, root, run) is None
    with_address = hadoop_conf.HadoopConf(None, {"dfs.namenode.http-address": "nn:9871"})
    nowhere = hadoop_conf.HadoopConf(None)
    default = hadoop_conf.HadoopConf(None, {"fs.defaultFS": "hdfs://nn"})
    for conf, url, page in (
        (with_address, "hdfs://nn:8020/user/me/r", "http://nn:9871/explorer.html#/user/me/r"),
        (nowhere, "hdfs://nn:8020/r", "http://nn:9870/explorer.html#/r"),
        (nowhere, "webhdfs://nn:99/r", "http://nn:99/explorer.html#/r"),
        (default, "webhdfs:///r", "http://nn:9870/explorer.html#/r"),
        (nowhere, "webhdfs:///r", None),  # no host is known: a link would lead nowhere
    ):
        assert links.run_page(plain, root, url, conf=conf) == page
    assert links.run_page(plain, root, "s3://bucket/r", conf=with_address) is None


def test_a_page_in_mlflow_shows_no_password():
    from howdah.airflow.links import tracked_run, tracking_page

    config = {"tracking": {"mlflow": {"uri": "https://me:secret@tracking:5000/ml/"}}}
    page = tracking_page(config)
    assert page == "https://tracking:5000/ml/"
    assert tracked_run(page, "abc") == "https://tracking:5000/ml/#/runs/abc"
    assert tracked_run(page, None) == page
    assert tracking_page({"tracking": {"mlflow": {"uri": "/local/dir"}}}) is None
    assert tracking_page({}) is None
    assert tracked_run(None, "abc") is None
