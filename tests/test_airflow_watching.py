"""What a task's log is told of an application, whose it is, and where its links lead."""

import asyncio
import http.server
import json
import threading

import pytest

from howdah.airflow import application as app
from howdah.airflow import tickets
from howdah.airflow.ownership import TaskKey, config_hash, killer, new_token
from howdah.errors import ConfigError
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.resourcemanager import ResourceManager

pytestmark = pytest.mark.airflow

APP = "application_1_0001"
KEY = TaskKey("dag", "manual 1", "train")


def job(lines, events=(), attempt=1):
    return {
        "application": APP,
        "attempt": attempt,
        "lines": [[number, f"line {number}"] for number in lines],
        "events": [{"time": when, "what": f"event {when}"} for when in events],
    }


def sight(state="RUNNING", told=None, **report):
    return app.Sight(report={"id": APP, "state": state, **report}, job=told)


# ------------------------------------------------------------------------------- nothing twice
def test_each_line_event_and_state_is_told_once_also_after_a_restart():
    place = app.Place.of(None, APP)
    first, place = app.told_lines(sight(told=job([1, 2], [1.5])), place)
    assert first == [f"{APP} is RUNNING", "[job] event 1.5", "[rank 0] line 1", "[rank 0] line 2"]
    stored = json.loads(json.dumps(place.as_dict()))
    second, place = app.told_lines(
        sight(told=job([1, 2, 3], [1.5, 2.5])), app.Place.of(stored, APP)
    )
    assert second == ["[job] event 2.5", "[rank 0] line 3"]
    assert app.told_lines(sight(told=job([1, 2, 3], [1.5, 2.5])), place)[0] == []
    end, _ = app.told_lines(sight("FINISHED", finalStatus="SUCCEEDED"), place)
    assert end == [f"{APP} is FINISHED (SUCCEEDED)"]


def test_a_place_of_another_application_is_not_gone_on_from():
    stored = app.Place(application="application_1_0000", line=9).as_dict()
    assert app.Place.of(stored, APP) == app.Place(application=APP)


def test_a_new_driver_counts_from_one_again():
    _, place = app.job_lines(job([1, 2, 3]), app.Place(application=APP))
    lines, _ = app.job_lines(job([1], attempt=2), place)
    assert lines == ["[rank 0] line 1"]


def test_lines_that_were_missed_are_counted():
    lines, _ = app.job_lines(job([7, 8]), app.Place(application=APP, attempt=1, line=3))
    assert lines == ["(3 lines are left out; the logs have them)", "[rank 0] line 7",
                     "[rank 0] line 8"]  # fmt: skip


# ------------------------------------------------------------------------------- the job's page
@pytest.fixture
def cluster_web(monkeypatch):
    """A ResourceManager's web server: `.answers` path -> (status, type, body)."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(answers[self.path.partition("?")[0]])

        def do_PUT(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(server.puts)

        def _send(self, answer):
            status, kind, body = answer() if callable(answer) else answer
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url, server.answers = f"http://127.0.0.1:{server.server_address[1]}", answers
    settings = {"yarn.resourcemanager.webapp.address": server.url.removeprefix("http://")}
    server.manager = ResourceManager(hadoop_conf.HadoopConf(None, settings), patience=0.0)
    yield server
    server.shutdown()


PAGE = f"/proxy/{APP}/pages/job/status.json"


def report(web, **more):
    told = {"id": APP, "state": "RUNNING", "trackingUrl": f"{web.url}/proxy/{APP}/", **more}
    web.answers[f"/ws/v1/cluster/apps/{APP}"] = (
        200, "application/json", json.dumps({"app": told}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "job_there", "trouble"),
    [
        ((200, "application/json", json.dumps(job([1]))), True, None),
        ((404, "text/plain", "no such page"), False, "HTTP 404"),
        ((503, "text/html", "it starts"), False, "HTTP 503"),
        ((401, "text/html", "who are you"), False, "HTTP 401"),
        ((200, "text/html", "<html>a login page</html>"), False, "no JSON"),
        ((200, "application/json", '{"application": "another"}'), False, "not this job's"),
    ],
)
def test_the_jobs_page_is_read_or_it_is_said_why_not(cluster_web, answer, job_there, trouble):
    report(cluster_web, amContainerLogs="http://node/logs")
    cluster_web.answers[PAGE] = answer
    seen = app.look(cluster_web.manager, APP)
    assert (seen.job is not None) == job_there
    assert seen.page_trouble is None if trouble is None else trouble in seen.page_trouble
    assert (seen.logs, seen.over) == ("http://node/logs", False)


def test_the_page_of_what_does_not_run_is_not_asked_for(cluster_web):
    report(cluster_web, state="KILLED", finalStatus="KILLED", diagnostics=" its words\n")
    seen = app.look(cluster_web.manager, APP)
    assert (seen.over, seen.succeeded, seen.diagnostics) == (True, False, "its words")


def test_what_is_killed_is_seen_to_end_also_while_the_resourcemanager_starts(cluster_web):
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
    assert app.end(cluster_web.manager, APP, "why", seconds=30.0, pause=pauses.append) == "KILLED"
    assert len(pauses) == 2


# ------------------------------------------------------------------------------------ whose it is
def test_who_has_ended_an_application_is_read_from_yarns_diagnostics():
    token = new_token()
    why = KEY.reason(2, token, "its task was ended")
    yarns = f"Application {APP} was killed by user me at 127.0.0.1 with diagnostic message: {why}"
    assert killer(yarns, KEY) == token
    assert killer(yarns, TaskKey("dag", "manual 2", "train")) is None
    assert killer("Killed by the queue", KEY) is None


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
    from howdah.airflow.settings import ConnectionSettings

    served = ConnectionSettings(files_url="http://files:80/runs/")
    root, run = "/srv/runs", "/srv/runs/dag/a run"
    assert links.run_page(served, root, run) == "http://files:80/runs/dag/a%20run/"
    assert links.run_page(served, root, run, report=True).endswith("/a%20run/report.html")
    assert links.run_page(served, root, "/elsewhere/run") is None
    plain = ConnectionSettings()
    assert links.run_page(plain, root, run) is None
    known = hadoop_conf.HadoopConf(None, {"dfs.namenode.http-address": "nn:9871"})
    nowhere = hadoop_conf.HadoopConf(None)
    for conf, url, page in (
        (known, "hdfs://nn:8020/user/me/r", "http://nn:9871/explorer.html#/user/me/r"),
        (nowhere, "hdfs://nn:8020/r", "http://nn:9870/explorer.html#/r"),
        (nowhere, "webhdfs://nn:99/r", "http://nn:99/explorer.html#/r"),
    ):
        assert links.run_page(plain, root, url, conf=conf) == page
    assert links.run_page(plain, root, "s3://bucket/r", conf=known) is None


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


# --------------------------------------------------------------------------------------- trigger
def test_a_trigger_is_made_again_from_what_airflow_keeps_of_it():
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
    from airflow.serialization.encoders import encode_trigger

    from howdah.airflow.trigger import ApplicationTrigger

    first = ApplicationTrigger(
        "yarn",
        APP,
        KEY.as_dict(),
        "0a1b",
        3,
        user="alice",
        deadline=12.5,
        poll_seconds=1.0,
        tracking="http://mlflow/",
    )
    kept = json.loads(json.dumps(encode_trigger(first)))
    kwargs = {k: smart_decode_trigger_kwargs(v) for k, v in kept["kwargs"].items()}
    assert kept["classpath"] == "howdah.airflow.trigger.ApplicationTrigger"
    assert ApplicationTrigger(**kwargs).serialize() == first.serialize()


class Notes:
    """Stands for the XComs of a task: a triggerer's line to Airflow is not there in a test."""

    def __init__(self):
        self.held = {}

    def get_one(self, *, key, **task):
        return self.held.get(key)

    def set(self, *, key, value, **task):
        self.held[key] = value


@pytest.fixture
def watching(cluster_web, monkeypatch):
    """A trigger of an application of `cluster_web`; its events, and what it notes."""
    from howdah.airflow import links, trigger

    notes = Notes()
    monkeypatch.setattr(trigger, "XCom", notes)
    monkeypatch.setattr(links, "XCom", notes)

    def made(**more):
        one = trigger.ApplicationTrigger(
            "yarn", APP, KEY.as_dict(), "0a1b", 1, poll_seconds=0.01, **more
        )
        one._manager = cluster_web.manager
        return one

    def run(one):
        async def events():
            return [event.payload async for event in one.run()]

        return asyncio.run(events())

    made.run, made.notes, made.web = run, notes.held, cluster_web
    return made


def away():
    return 503, "text/html", "starting"


def test_where_the_jobs_page_does_not_answer_howdah_status_is_asked(watching, monkeypatch):
    web, asked = watching.web, []
    report(web)
    web.answers[PAGE] = 500, "text/html", "the proxy does not reach it"

    class Hook:
        def run(self, words, *, on_line):
            asked.append(words)
            report(web, state="FINISHED", finalStatus="SUCCEEDED")
            return {"job": job([1, 2], [1.5])}

    one = watching()
    one._hook = Hook()
    monkeypatch.setattr("howdah.airflow.trigger._PAGE_SECONDS", 0.0)
    (event,) = watching.run(one)
    assert event["final_status"] == "SUCCEEDED"
    assert asked == [["status", APP, "--json"]]
    assert watching.notes["howdah_told"]["line"] == 2


@pytest.mark.parametrize(
    ("states", "owner", "killed"),
    [
        (["failed"], None, True),
        ([None, None, "failed"], None, True),
        ([None] * 9, "another", False),
        (["running"] * 9, None, True),  # nobody comes in time
    ],
)
def test_on_kill_ends_what_nobody_takes_over_however_often_it_is_cancelled(
    watching, monkeypatch, states, owner, killed
):
    puts, told = [], iter(states)

    def put():
        puts.append(1)
        return 200, "application/json", '{"state": "KILLED"}'

    async def state(self):
        return next(told, "running")

    watching.web.puts = put
    watching.notes["howdah_owner"] = {"token": "0a1b"}
    monkeypatch.setattr("howdah.airflow.trigger.ApplicationTrigger._task_state", state)
    monkeypatch.setattr("howdah.airflow.trigger._TAKE_OVER_SECONDS", 2.0)
    one = watching()

    async def ends():
        from howdah.airflow import trigger

        outer = asyncio.create_task(one.on_kill())
        await asyncio.sleep(0)
        outer.cancel()  # as Airflow does each second
        with pytest.raises(asyncio.CancelledError):
            await outer
        if owner is not None:
            watching.notes["howdah_owner"] = {"token": owner}
        await asyncio.gather(*trigger._ENDING)

    asyncio.run(ends())
    assert bool(puts) == killed


def test_a_time_limit_is_kept_also_when_the_resourcemanager_is_away_then(watching):
    web, asked = watching.web, []

    def put():
        asked.append(1)
        if len(asked) < 3:
            return away()
        return 200, "application/json", '{"state": "KILLED"}'

    web.answers[f"/ws/v1/cluster/apps/{APP}"] = away
    web.puts = put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("howdah.airflow.trigger._KILL_SECONDS", 0.0)
        (event,) = watching.run(watching(deadline=1.0))
    assert (event["timed_out"], event["state"], event["token"]) == (True, "KILLED", "0a1b")
    assert len(asked) == 3


def test_what_ended_well_as_its_time_ran_out_has_ended_well(watching):
    report(watching.web, state="FINISHED", finalStatus="SUCCEEDED", diagnostics="done")
    watching.web.puts = 200, "application/json", '{"state": "FINISHED"}'
    (event,) = watching.run(watching(deadline=1.0))
    assert (event["final_status"], event.get("timed_out")) == ("SUCCEEDED", None)
    assert watching.notes["howdah_told"]["state"] == "FINISHED"


def test_what_yarn_has_forgotten_is_told_to_the_worker(watching):
    unknown = 404, "application/json", "{}"
    watching.web.answers[f"/ws/v1/cluster/apps/{APP}"] = unknown
    watching.web.answers["/ws/v1/cluster/info"] = (
        200, "application/json", '{"clusterInfo": {"haState": "ACTIVE"}}',
    )  # fmt: skip
    (event,) = watching.run(watching())
    assert "does not know it" in event["problem"]
    assert "state" not in event


def test_a_triggerer_holds_one_keytabs_ticket(monkeypatch):
    monkeypatch.setattr(tickets, "_held", ("/etc/one.keytab", "one@REALM"))
    tickets.hold("/etc/one.keytab", "one@REALM", "yarn")
    tickets.hold(None, None, "yarn")
    with pytest.raises(ConfigError, match="one Kerberos ticket"):
        tickets.hold("/etc/two.keytab", "two@REALM", "yarn")
