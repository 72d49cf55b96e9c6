"""The trigger of a deferred task: what it logs, when it kills, and how it ends."""

import asyncio
import itertools
import json
import threading
import time
from types import SimpleNamespace

import pytest

from howdah.airflow.application import tickets
from howdah.airflow.application import watching as app
from howdah.errors import ConfigError
from tests.support.airflow import cluster_web as cluster
from tests.support.airflow.cluster_web import APP, KEY, PAGE, job, report

pytestmark = pytest.mark.airflow


@pytest.fixture
def cluster_web():
    with cluster.serving() as web:
        yield web


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
        "try_number": 1, "run_directory": "hdfs:///runs/d/r", "user": None, "deadline": None,
        "poll_seconds": 2.0, "tracking": None,
    }  # fmt: skip
    kwargs = {name: smart_decode_trigger_kwargs(value) for name, value in stored.items()}
    made = import_string("howdah.airflow.trigger.ApplicationTrigger")(**kwargs)
    _, now = made.serialize()
    assert now == stored
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

    def made(run_directory="/nowhere/at/all", **more):
        one = trigger.ApplicationTrigger(
            "yarn", APP, KEY.as_dict(), "0a1b", 1, run_directory, poll_seconds=0.01, **more
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
    (tmp_path / "job").mkdir()
    status = tmp_path / "job" / "status.json"
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

    one = no_page()
    one._hook = TriggererHook(answer, ssh_conn_id="edge", run_root="hdfs:///runs")
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

    one = no_page()
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
    web, requests = watching.web, []

    def put():
        requests.append(1)
        if len(requests) < 3:
            return away()
        return 200, "application/json", '{"state": "KILLED"}'

    web.answers[f"/ws/v1/cluster/apps/{APP}"] = away
    web.puts = put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("howdah.airflow.trigger._KILL_SECONDS", 0.0)
        (event,) = watching.run(watching(deadline=1.0))
    assert (event["timed_out"], event["state"], event["token"]) == (True, "KILLED", "0a1b")
    assert len(requests) == 3


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
    assert "no such application" in event["problem"]
    assert "state" not in event


def test_a_triggerer_holds_one_keytabs_ticket(monkeypatch):
    monkeypatch.setattr(tickets, "_held", ("/etc/one.keytab", "one@REALM"))
    tickets.hold("/etc/one.keytab", "one@REALM", "yarn")
    tickets.hold(None, None, "yarn")
    with pytest.raises(ConfigError, match="one Kerberos ticket"):
        tickets.hold("/etc/two.keytab", "two@REALM", "yarn")
