"""What a task logs of its application, which task owns an application, and a task's links."""

import asyncio
import functools
import http.server
import itertools
import json
import logging
import threading
import time
from types import SimpleNamespace

import pytest

from howdah.airflow.application import tickets
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


def fetched(state="RUNNING", status=None, **yarn):
    return app.ApplicationReport(yarn={"id": APP, "state": state, **yarn}, status=status)


# ------------------------------------------------------------------------------- nothing twice
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
    yarn = {"id": APP, "state": "RUNNING", "trackingUrl": f"{web.url}/proxy/{APP}/", **more}
    web.answers[f"/ws/v1/cluster/apps/{APP}"] = (
        200, "application/json", json.dumps({"app": yarn}),
    )  # fmt: skip


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
    found = app.fetch_report(cluster_web.manager, APP)
    assert (found.status is not None) == readable
    assert found.status_error is None if problem is None else problem in found.status_error
    assert (found.logs_url, found.over) == ("http://node/logs", False)


def test_the_page_of_an_application_that_is_over_is_not_requested(cluster_web):
    report(cluster_web, state="KILLED", finalStatus="KILLED", diagnostics=" why\n")
    found = app.fetch_report(cluster_web.manager, APP)
    assert (found.over, found.succeeded, found.diagnostics) == (True, False, "why")


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
    state = app.kill_and_wait(cluster_web.manager, APP, "why", seconds=30.0, pause=pauses.append)
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
    own = TaskApplication(
        Hook(web.manager, user), config, KEY, token=new_token(), claim=claim, try_number=1,
        log=logging.getLogger(__name__),
    )  # fmt: skip
    return own.find(), len(ended)


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
    asked = []
    manager = ResourceManager(cluster_web.manager.conf, urls=[cluster_web.url], patience=0.0)
    manager.applications = lambda **filters: asked.append(filters) or []
    from howdah.airflow.application.task_application import TaskApplication

    claims = [new_claim(), new_claim()]
    for claim in claims:
        own = TaskApplication(
            Hook(manager, "ada"), config, KEY, token=new_token(), claim=claim, try_number=1,
            log=logging.getLogger(__name__),
        )  # fmt: skip
        assert own.find() is None
        assert claim_tag(claim) in own._tagged()["yarn"]["tags"]
    tags = [filters["applicationTags"] for filters in asked]
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
        run_directory="hdfs:///runs/d/r",
    )
    kept = json.loads(json.dumps(encode_trigger(first)))
    kwargs = {k: smart_decode_trigger_kwargs(v) for k, v in kept["kwargs"].items()}
    assert kept["classpath"] == "howdah.airflow.trigger.ApplicationTrigger"
    assert ApplicationTrigger(**kwargs).serialize() == first.serialize()


def test_a_trigger_that_an_earlier_version_has_stored_is_made_again():
    """Its class path and arguments, and the XCom of its log position, are in Airflow's database."""
    from airflow.sdk.module_loading import import_string
    from airflow.serialization.decoders import smart_decode_trigger_kwargs

    from howdah.airflow import trigger

    stored = {
        "conn_id": "yarn", "application": APP, "key": KEY.as_dict(), "token": "0a1b",
        "try_number": 1, "user": None, "deadline": None, "poll_seconds": 2.0, "tracking": None,
    }  # fmt: skip
    kwargs = {name: smart_decode_trigger_kwargs(value) for name, value in stored.items()}
    made = import_string("howdah.airflow.trigger.ApplicationTrigger")(**kwargs)
    _, now = made.serialize()
    assert now == {**stored, "run_directory": None}
    position = {"application": APP, "state": "RUNNING", "attempt": 1, "line": 7, "event": 1.5}
    assert app.LogPosition.of(position, APP).as_dict() == position
    assert trigger.POSITION_KEY == "howdah_told"


class Notes:
    """Stands for the XComs of a task: a test has no connection to Airflow."""

    def __init__(self):
        self.held = {}

    def get_one(self, *, key, **task):
        return self.held.get(key)

    def set(self, *, key, value, **task):
        self.held[key] = value


@pytest.fixture
def watching(cluster_web, monkeypatch):
    """A trigger of an application of `cluster_web`; its events, and its XComs."""
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


class TriggererHook:
    """Stands for HowdahHook: a test has no Connection of Airflow's."""

    def __init__(self, answer, **fields):
        from howdah.airflow.runner.settings import ConnectionSettings

        self.settings, self.answer, self.asked = ConnectionSettings(**fields), answer, []

    def run(self, arguments, *, on_line):
        self.asked.append(arguments)
        return self.answer()


def finished(web):
    report(web, state="FINISHED", finalStatus="SUCCEEDED")


@pytest.fixture
def no_page(watching, monkeypatch):
    """The job's page does not answer, and its status is read in another way at once."""
    report(watching.web)
    watching.web.answers[PAGE] = 500, "text/html", "the proxy does not reach it"
    monkeypatch.setattr("howdah.airflow.trigger._PAGE_SECONDS", 0.0)
    return watching


def test_where_the_jobs_page_does_not_answer_the_run_directory_is_read_in_this_process(
    no_page, tmp_path
):
    """Not by a command: a hundred triggers would start a hundred interpreters in half a minute."""
    (tmp_path / "yarn").mkdir()
    status = tmp_path / "yarn" / "status.json"
    status.write_text(json.dumps(job([1, 2], [1.5])))
    one = no_page(run_directory=str(tmp_path))
    one._hook = TriggererHook(None)
    store = one._store_position

    async def stored(position):  # the job ends once its lines are logged
        await store(position)
        if position.line == 2:
            finished(no_page.web)

    one._store_position = stored
    (event,) = no_page.run(one)
    assert event["final_status"] == "SUCCEEDED"
    assert one._hook.asked == []
    assert no_page.notes["howdah_told"]["line"] == 2
    assert one._status_pause == 60.0  # twice as long before the next


@pytest.mark.parametrize(
    "fields",
    [
        {"ssh_conn_id": "edge", "run_root": "hdfs:///runs"},
        {"environment": {"HADOOP_CONF_DIR": "/not/this/process"}},
    ],
)
def test_a_run_directory_that_this_process_cannot_read_is_read_where_commands_run(
    no_page, tmp_path, fields
):
    def answer():
        finished(no_page.web)
        return {"job": job([1, 2], [1.5])}

    one = no_page(run_directory=str(tmp_path))
    one._hook = TriggererHook(answer, **fields)
    (event,) = no_page.run(one)
    assert event["final_status"] == "SUCCEEDED"
    assert one._hook.asked == [["status", APP, "--json"]]


def test_reading_the_status_blocks_no_report_and_pauses_grow(no_page, monkeypatch):
    """Also if a read hangs, as of an HDFS that does not answer."""
    hangs = threading.Event()

    def answer():
        finished(no_page.web)
        hangs.wait(60)
        return {"job": None}

    one = no_page(run_directory=None)
    one._hook = TriggererHook(answer)
    (event,) = no_page.run(one)
    hangs.set()
    assert event["final_status"] == "SUCCEEDED"

    now, begun = [0.0], []

    async def looks():
        for _ in range(7200):  # two hours, a report a second
            now[0] += 1.0
            before = one._status_read
            await one._with_status(without_page)
            if one._status_read is not None and one._status_read is not before:
                begun.append(now[0])
                await asyncio.wait([one._status_read])

    one = no_page(run_directory="/nowhere/at/all")
    one._hook = TriggererHook(None)
    without_page = app.ApplicationReport(
        yarn={"id": APP, "state": "RUNNING"}, status=None, status_error="HTTP 500"
    )
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("howdah.airflow.trigger.time", clock)
    asyncio.run(looks())
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert pauses[:5] == [30, 60, 120, 240, 480]
    assert set(pauses[5:]) == {600}


@pytest.mark.parametrize(
    ("states", "owner", "killed"),
    [
        (["failed"], None, True),
        ([None, None, "failed"], None, True),
        ([None] * 9, "another", False),
        (["running"] * 9, None, True),  # no later try claims it in time
    ],
)
def test_on_kill_kills_what_no_try_takes_over_however_often_it_is_cancelled(
    watching, monkeypatch, states, owner, killed
):
    puts, remaining = [], iter(states)

    def put():
        puts.append(1)
        return 200, "application/json", '{"state": "KILLED"}'

    async def state(self):
        return next(remaining, "running")

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
        await asyncio.gather(*trigger._KILLING)

    asyncio.run(ends())
    assert bool(puts) == killed


def test_a_deadline_is_kept_also_if_the_resourcemanager_does_not_answer_then(watching):
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


def test_an_application_that_succeeded_as_its_time_ran_out_has_succeeded(watching):
    report(watching.web, state="FINISHED", finalStatus="SUCCEEDED", diagnostics="done")
    watching.web.puts = 200, "application/json", '{"state": "FINISHED"}'
    (event,) = watching.run(watching(deadline=1.0))
    assert (event["final_status"], event.get("timed_out")) == ("SUCCEEDED", None)
    assert watching.notes["howdah_told"]["state"] == "FINISHED"


def test_an_application_that_yarn_has_forgotten_is_a_problem_for_the_worker(watching):
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
