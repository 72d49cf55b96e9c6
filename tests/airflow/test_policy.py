"""A shared Airflow under the default policy: requests of a red team by REST, and a user's own run.

Every request is sent by a user who may trigger a DAG; the first task refuses it and names the rule.
One request may have several keys, each of which is refused by itself.
"""

from __future__ import annotations

from urllib.parse import quote

import pytest
import yaml

from howdah.errors import ClusterError
from tests import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow

FINETUNE, ON_DATA, SCORE = "shared_finetune", "shared_finetune_on_data", "shared_score"
LIMIT = 240.0  # to detect a hang
DEBUGGER = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=127.0.0.1:5005"

KEYS, ROOTS, UNKNOWN = "keys", "roots", "unknown"


def sources(root: str) -> dict[str, str]:
    """Values of data.source that lead out of what the default policy allows."""
    return {
        "a file of the worker": "/etc/passwd",
        "steps up": f"{root}/../../../../etc/passwd",
        "a link below run_root": f"{root}/link/passwd",
        "a directory with such a link": root,
        "a pattern over such a link": f"{root}/li*/passwd",
        "percent-encoded": f"{root}/%2e%2e/%2e%2e/etc/passwd",
        "encoded twice": "hdfs:///data/%252e%252e/secret",
        "a URL without slashes": "file:/etc/passwd",
        "a URL with a host": "file://localhost/etc/passwd",
        "capitals": "FILE:///etc/passwd",
        "two slashes": "//etc/passwd",
        "a home": "~/.ssh/id_rsa",
        "a relative path": "dags",
        "another cluster": "hdfs://other-nn:8020/data",
        "another protocol": "webhdfs://nn:9870/data",
        "another storage": "s3://attacker/data",
        "a list": "hdfs:///data/x,/etc/passwd",
        "braces": "hdfs:///data/{x,/etc/passwd}",
        "a line break": "hdfs:///data/x\n/etc/passwd",
        "steps up in HDFS": "hdfs:///data/../user/hive",
        "a chained URL": "simplecache::file:///etc/passwd",
    }


FORMS = [
    {  # of the review
        "data.spark.conf": ({"spark.driver.extraJavaOptions": DEBUGGER}, KEYS),
        "run.user": ("hdfs", KEYS),
        "yarn.keytab": ("/etc/security/keytabs/hdfs.keytab", KEYS),
        "yarn.principal": ("hdfs@REALM", KEYS),
        "data.spark.keytab": ("/etc/security/keytabs/hdfs.keytab", KEYS),
        "data.spark.principal": ("hdfs@REALM", KEYS),
        "yarn.files": (["airflow.cfg", "/etc/ssh/ssh_host_rsa_key"], KEYS),
        "data.spark.home": ("/tmp/spark", KEYS),
        "yarn.python": ("/tmp/python", KEYS),
        "job.env": ({"LD_PRELOAD": "/tmp/evil.so"}, KEYS),
        "publish.directory": ("/var/www/html", ROOTS),
        "tracking.mlflow.uri": ("http://attacker:5000", KEYS),
        "yarn.view_users": (["*"], KEYS),
        "yarn.modify_users": (["*"], KEYS),
    },
    {  # more of their kind
        "data.spark.conf": ({"SPARK.JARS": "/tmp/x.jar", "spark.plugins ": "Evil"}, KEYS),
        "data.spark.java_archive": ("/etc/shadow", KEYS),
        "yarn.staging": ("/tmp/x", KEYS),
        "data.spark.master": ("spark://attacker:7077", KEYS),
        "data.rejects_table": ("hr.salaries", KEYS),
        "checkpoint.resume": ("/tmp/step-1", KEYS),
        "checkpoint.directory": ("/etc/cron.d", KEYS),
        "training.shard_cache_directory": ("/root", ROOTS),
        "model.base": ("attacker/distilbert-base-uncased", "hub_models"),
        "model.revision": ("refs/pr/1", KEYS),
        "data.dataset": ("/etc/cron.d", ROOTS),
        "yarn.queue": ("1e5", KEYS),
        "data.spark.queue": ("root.prod", KEYS),
        "yarn.tags": (["airflow-0123456789abcdef"], KEYS),
    },
    {  # keys in other spellings
        "Data.Source": ("/etc/passwd", UNKNOWN),
        "data.source ": ("/etc/passwd", UNKNOWN),
        "data": ({"spark": {"conf": {"spark.jars": "/tmp/x.jar"}}}, UNKNOWN),
        "data.spark": ({"conf": {"spark.jars": "/tmp/x.jar"}}, UNKNOWN),
        "data.spark.conf.spark.jars": ("/tmp/x.jar", UNKNOWN),
        "run.directory": ("/etc", UNKNOWN),
        "<<": ({"run.user": "hdfs"}, UNKNOWN),
        "model.base": ("../../etc", ROOTS),
    },
    {
        "data.format": ("hive", None),
        "data.source": ("hr.salaries", "tables"),
        "model.base": ("/etc", ROOTS),
        "publish.directory": ("~/public_html", ROOTS),
        "data.spark.conf": ("spark.jars=/tmp/x.jar", KEYS),
    },
    {
        "data.format": ("hive", None),
        "data.query_file": ("/tmp/query.sql", KEYS),
        "data.dataset": ("file:/etc/cron.d", ROOTS),
    },
]

SCORES = [
    {
        "model": ("/etc", ROOTS),
        "source": ("/etc/passwd", ROOTS),
        "output": ("/var/www/html/x.csv", ROOTS),
        "master": ("spark://attacker:7077", "masters"),
    },
    {
        "model": ("attacker/model", "hub_models"),
        "source": ("hr.salaries", "tables"),
        "output": ("table:hr.salaries", "tables"),
        "master": ("local[*] ", "masters"),
    },
    {
        "model": ("hdfs://other-nn/models/m", ROOTS),
        "source": ("hdfs:///data/x,/etc/passwd", ROOTS),
        "output": ("file:/tmp/x.csv", ROOTS),
        "text_column": ("text\n--output\n/etc/x", "characters that cannot be seen"),
    },
]


@pytest.fixture(scope="module")
def shared(airflow_standalone, tmp_path_factory):
    """The DAGs of an Airflow that has no policy."""
    airflow, place = airflow_standalone, tmp_path_factory.mktemp("shared")
    defaults = {
        "data": {"source": "/srv/in/rows.csv", "dataset": "/srv/set"},
        "model": {"base": "/srv/base"}, "publish": {"directory": "/srv/models"},
        "training": {"framework": "torch"},
    }  # fmt: skip
    (place / "defaults.yaml").write_text(yaml.safe_dump(defaults))
    head = (
        "import os\n"
        'os.environ.pop("HOWDAH_AIRFLOW_POLICY", None)\n'
        f'os.environ["HOWDAH_AIRFLOW_DEFAULTS"] = {str(place / "defaults.yaml")!r}\n'
    )
    for name in ("finetune", "score"):
        text = (ROOT / "dags" / f"{name}.py").read_text()
        text = text.replace("from __future__ import annotations\n", "")
        text = text.replace(f'"howdah_{name}', f'"shared_{name}')
        airflow.add_dag(f"shared_{name}", head + text)
    (airflow.files / "link").unlink(missing_ok=True)
    airflow.files.mkdir(parents=True, exist_ok=True)
    (airflow.files / "link").symlink_to("/etc")
    airflow.connection("shared_other", {"run_root": str(airflow.files)})
    yield airflow
    (airflow.files / "link").unlink()
    for dag in (FINETUNE, ON_DATA, SCORE):
        airflow.pause(dag, paused=True)


def refusal(airflow, dag: str, run: str) -> str:
    """What the first task says, which fails for good; nothing else has run."""
    airflow.wait_task(dag, run, "check", {"failed"}, LIMIT)
    tasks = airflow.tasks(dag, run)
    assert tasks["check"]["try_number"] == 1
    others = {task["state"] for name, task in tasks.items() if name != "check"}
    assert others <= {None, "upstream_failed", "skipped", "scheduled"}, others
    path = f"/dags/{dag}/dagRuns/{quote(run)}/taskInstances/check/logs/1"
    lines = airflow.api("GET", path, params={"full_content": "true"})["content"]
    errors = [error["exc_value"] for line in lines for error in line.get("error_detail") or []]
    return "\n".join([*errors, ""])


def assert_refused(log: str, key: str, rule: str | None) -> None:
    if rule is None:
        return
    if rule == UNKNOWN:
        assert f"where:    {key}\n" in log, f"{key}\n{log}"
    elif " " in rule:
        assert f"{key} is refused by the policy: it holds {rule}" in log, log
    else:
        assert f"{key} is refused by the policy's rule `{rule}`" in log, f"{key} {rule}\n{log}"
        assert f"{rule}: " in log


def plain(form: dict) -> dict:
    return {key: value for key, (value, _) in form.items()}


@pytest.mark.timeout(900)
def test_nothing_of_a_red_team_gets_through(shared):
    airflow = shared
    # All are sent before the first answer is looked at.
    forms = [(airflow.trigger(FINETUNE, plain(form)), form) for form in FORMS]
    scores = [(airflow.trigger(SCORE, plain(form)), form) for form in SCORES]
    text = "training.seed: 7\nrun.user: hdfs\njob.env.LD_PRELOAD: /tmp/evil.so"
    lines = airflow.trigger(FINETUNE, {"set": text})
    other = airflow.trigger(FINETUNE, {"conn_id": "shared_other"})
    elsewhere = airflow.trigger(
        SCORE, {"conn_id": "shared_other", "model": "hdfs:///m", "source": "hdfs:///s"}
    )
    paths = sources(str(airflow.files))
    # Two keys take the same values: half as many runs.
    ways = list(paths)
    halves = [*zip(ways[::2], [*ways[1::2], ways[0]], strict=False)]
    pairs = [
        (airflow.trigger(FINETUNE, {"data.source": paths[a], "data.dataset": paths[b]}), a, b)
        for a, b in halves
    ]
    for run, form in forms:
        log = refusal(airflow, FINETUNE, run)
        for key, (_, rule) in form.items():
            assert_refused(log, key, rule)
    log = refusal(airflow, FINETUNE, lines)
    for number, key in enumerate(("run.user", "job.env"), 2):
        assert_refused(log, key, KEYS)
        assert f"where:    {key} (set, line {number})\n" in log
    for run, form in scores:
        log = refusal(airflow, SCORE, run)
        for key, (_, rule) in form.items():
            assert_refused(log, key, rule)
    for dag, run in ((FINETUNE, other), (SCORE, elsewhere)):
        assert "conn_id is refused by the policy's rule `conn_ids`" in refusal(airflow, dag, run)
    for run, one, two in pairs:
        log = refusal(airflow, FINETUNE, run)
        for key, way in (("data.source", one), ("data.dataset", two)):
            assert f"{key} is refused by the policy's rule `roots`" in log, f"{way}\n{log}"
        assert "the default policy (HOWDAH_AIRFLOW_POLICY is not set)" in log
        assert f"below hdfs:///, below {airflow.files}" in log


def test_what_the_form_does_not_show_airflow_itself_refuses(shared):
    params = shared.api("GET", f"/dags/{FINETUNE}/details")["params"]
    shown = set(params)
    assert {
        "data.source",
        "training.learning_rate",
        "gate.minimum",
        "np",
        "conn_id",
        "set",
    } <= shown
    assert not [key for key in shown if key.startswith(("data.spark", "job.env", "run.user"))]
    assert params["data.source"]["value"] == "/srv/in/rows.csv"
    settings = {"conf": {"spark.driver.extraJavaOptions": DEBUGGER}}
    with pytest.raises(ClusterError) as caught:
        shared.trigger(SCORE, {"model": "hdfs:///m", "source": "hdfs:///s", "spark": settings})
    assert "400" in caught.value.got


def test_an_assets_event_is_judged_as_a_trigger_is(shared):
    airflow = shared
    airflow.pause(ON_DATA, paused=False)
    (asset,) = [
        asset
        for asset in airflow.api("GET", "/assets", params={"limit": 100})["assets"]
        if asset["name"] == "howdah_data"
    ]
    sent = {
        "data.source": "/etc/passwd", "run.user": "hdfs",
        "data.spark.conf": {"spark.driver.extraJavaOptions": DEBUGGER},
    }  # fmt: skip
    extra = {"howdah": sent}
    airflow.api("POST", "/assets/events", json={"asset_id": asset["id"], "extra": extra})
    (run,) = wait_until(lambda: airflow.api("GET", f"/dags/{ON_DATA}/dagRuns")["dag_runs"], LIMIT)
    log = refusal(airflow, ON_DATA, run["dag_run_id"])
    for key, rule in (("data.source", ROOTS), ("run.user", KEYS), ("data.spark.conf", KEYS)):
        assert_refused(log, key, rule)


def test_a_users_own_run_passes(shared):
    """What differs from the defaults is allowed; the defaults are the administrator's."""
    airflow = shared
    sent = {
        "run.name": "1e5", "data.source": "hdfs:///data/news/*.csv", "training.max_steps": 10,
        "training.learning_rate": 0.001, "gate.minimum": {"accuracy": 0.5}, "np": 2,
        "model.base": "distilbert-base-cased", "data.dataset": f"{airflow.files}/sets/mine",
        "data.spark.master": None, "job.workers": 4,
    }  # fmt: skip
    run = airflow.trigger(FINETUNE, sent)
    airflow.wait_task(FINETUNE, run, "check", {"success"}, LIMIT)
    checked = airflow.xcom(FINETUNE, run, "check")
    config = checked["config"]
    assert config["run"]["name"] == "1e5"
    assert config["data"]["source"] == sent["data.source"]
    assert config["publish"]["directory"] == "/srv/models"  # a default: not sent, not judged
    assert config["training"]["framework"] == "torch"
    airflow.api("PATCH", f"/dags/{FINETUNE}/dagRuns/{run}", json={"state": "failed"})
    # The commands of its later tasks are given the same policy, and hold the same against it.
    wait_until(lambda: airflow.state(FINETUNE, run) in ("failed", "success"), LIMIT)
