"""The trigger form: its fields as Airflow shows and checks them; what is sent, checked again.

The forms' own part needs no Airflow; the tests marked `airflow` build real Params and DAGs.
"""

from __future__ import annotations

import json

import jsonschema
import pytest

from howdah.airflow.form import trigger_form
from howdah.airflow.form.trigger_form import OF_THE_RUN, SECTIONS
from howdah.config import loader as configs
from howdah.config.form_keys import OPEN
from howdah.config.model import Config
from howdah.errors import ConfigError
from howdah.policy import rules as policies
from howdah.policy.check import Judge

RETRAIN = "training.replay"
"""The key that howdah_retrain's form has besides."""
FIELDS = {each.name: each for each in trigger_form.fields([*OPEN, RETRAIN])}
KEYS = dict(configs.keys())


def accepts(schema: dict, value) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def problems_of(sent: dict, **options) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        trigger_form.config(sent, **options)
    return [str(problem) for problem in caught.value.problems]


# ------------------------------------------------------------------------------------ the fields
def test_at_most_fifteen_keys_have_a_field():
    assert [each.name for each in trigger_form.fields()] == list(OPEN)
    assert len(OPEN) <= 15


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_plain_json_schema_with_help_and_a_fitting_default(name):
    each = FIELDS[name]
    jsonschema.Draft202012Validator.check_schema(each.schema)
    text = json.dumps(each.schema)
    assert "$ref" not in text
    assert "anyOf" not in text
    assert each.schema["type"]
    assert " ".join((KEYS[name].description or "").split()) in each.help
    assert accepts(each.schema, each.default)


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("training.framework", {"type": "string", "enum": ["tensorflow", "torch"]}),
        ("training.max_steps", {"type": ["integer", "null"], "minimum": 1}),
        (
            "training.learning_rate",
            {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ),
        ("training.replay", {"type": ["number", "integer", "null"], "minimum": 0,
                             "exclusiveMaximum": 1}),
        ("gate.minimum", {"type": ["object", "null"], "additionalProperties": {"type": "number"}}),
        ("gate.better_than_published", {"type": "boolean"}),
    ],
)  # fmt: skip
def test_each_kind_of_field(name, schema):
    assert FIELDS[name].schema == schema


def test_sizes_have_a_unit():
    for good in ("4 GiB", "4GiB", "1.5 gib", "512 MiB", "4096", "4096 B"):
        for sent in ({"job.worker.memory": good}, {"set": f"job.worker.memory: {good}"}):
            trigger_form.config(sent)
    for bad in ("4 GB", "much", "-1 GiB", "4 GiB or so"):
        for sent in ({"job.worker.memory": bad}, {"set": f"job.worker.memory: {bad}"}):
            assert bad in problems_of(sent)[0]


def test_limits_are_in_the_help_since_the_form_shows_none():
    assert "(above 0, below 1)" in FIELDS["training.learning_rate"].help
    assert "(at least 1)" in FIELDS["job.workers"].help


# What a field takes that the configuration then refuses, and why one field cannot show that.
LATER = {
    "data.format", "training.replay", "job.workers", "gate.better_than_published",  # others' values
    "gate.minimum",  # by rules that no schema has
}  # fmt: skip
CANDIDATES = [
    None, "", "x", "4 GiB", "4 GB", "12-13", 0, 1, -1, 2, 7, 10**6, 0.5, 1.5, -0.5, 1.0, True,
    False, [], ["x"], ["test"], [1], {}, {"a": "b"}, {"a": 1.0}, {"accuracy": 0.5}, {"a": ["b"]},
]  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_what_the_field_takes_the_configuration_takes(name):
    """Else a user would learn of it only from a failed run."""
    schema = FIELDS[name].schema
    edges = [schema[k] for k in ("minimum", "maximum") if k in schema] + schema.get("enum", [])
    edges.append(FIELDS[name].default)
    taken = 0
    for value in [*CANDIDATES, *edges]:
        if not accepts(schema, value):
            continue
        try:
            trigger_form.config({name: value})
            taken += 1
        except ConfigError:
            assert name in LATER, f"{name} takes {value!r}, the configuration does not"
    assert taken


# ------------------------------------------------------------------------------- what was sent
def test_the_untouched_form_is_the_default_configuration():
    sent = {name: each.default for name, each in FIELDS.items()}
    sent |= {"job.on": None, "conn_id": "howdah_default", "np": 2, "approval": False}
    assert trigger_form.config(sent) == Config().model_dump(mode="json")


def test_spark_runs_where_training_does_unless_a_master_is_set():
    assert trigger_form.config({}, on="yarn")["data"]["spark"]["master"] == "yarn"
    assert trigger_form.config({}, on="local")["data"]["spark"]["master"] == "local[*]"
    sent = {"data.spark.master": "local[2]"}
    assert trigger_form.config(sent, on="yarn")["data"]["spark"]["master"] == "local[2]"


def test_the_run_decides_what_is_its_own():
    made = trigger_form.config({}, overrides={"run.directory": "hdfs:///runs/1"})
    assert made["run"]["directory"] == "hdfs:///runs/1"
    assert "the DAG run sets it" in problems_of({"run.directory": "elsewhere"})[0]


def test_emptied_fields_mean_none_or_nothing():
    made = trigger_form.config(
        {"training.max_steps": None, "gate.minimum": None, "data.source": "", "job.workers": None}
    )
    assert made["training"]["max_steps"] is None
    assert made["gate"]["minimum"] == {}
    assert made["data"]["source"] is None
    assert made["job"]["workers"] == 2


def test_mlflow_is_off_until_it_has_an_address():
    assert trigger_form.config({})["tracking"]["mlflow"] is None
    made = trigger_form.config({"tracking.mlflow.uri": "http://mlflow:5000"})
    assert made["tracking"]["mlflow"] == {"uri": "http://mlflow:5000"}


def test_all_problems_at_once_and_the_nearest_key():
    text = "\n".join(
        problems_of(
            {
                "training.learning_rte": 0.1, "seed": 3, "training": {"seed": 3}, "np_": 2,
                "training.learning_rate": 7, "gate.minimum": {"acuracy": 0.9},
                "job.worker.memory": "4 GB",
            }
        )
    )  # fmt: skip
    for part in (
        "did you mean training.learning_rate?", "send the key with its section",
        "a section is sent as separate keys", "unknown key 'np_'", "less than 1",
        "did you mean accuracy", "got '4 GB'",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data.source", "hdfs://user:hunter2@nn:8020/x"),
        ("tracking.mlflow.uri", "http://me:hunter2@mlflow:5000"),
        ("job.env", {"HF_TOKEN": "hunter2"}),
        ("job.env", {"AWS_SECRET_ACCESS_KEY": "hunter2"}),
        ("data.spark.conf", {"spark.ssl.keyPassword": "hunter2"}),
        ("data.spark.conf", {"spark.hadoop.fs.s3a.secret.key": "hunter2"}),
        ("data.spark.conf", {"a": "jdbc://u:hunter2@h/db"}),
        ("yarn.files", ["https://u:hunter2@h/f"]),
    ],
)
def test_secrets_are_refused_and_not_repeated(name, value):
    text = "\n".join(problems_of({name: value}))
    assert "hunter2" not in text
    assert "Connection" in text


def test_what_only_looks_like_a_secret_is_taken():
    trigger_form.config(
        {
            "job.env": {"TOKENIZERS_PARALLELISM": "false", "AWS_ACCESS_KEY_ID": "x"},
            "data.spark.conf": {"spark.security.credentials.hive.enabled": "true"},
            "data.source": "hdfs://nn:8020/a:b@c",
        }
    )


# ------------------------------------------------------------------------------------ defaults
def test_an_installations_defaults(tmp_path, monkeypatch):
    assert trigger_form.installed_defaults() == {}
    path = tmp_path / "defaults.yaml"
    path.write_text("np: 2\nrun: {name: demo}\ndata: {shard_bytes: 1 MiB, spark: {master: yarn}}\n")
    monkeypatch.setenv(trigger_form.DEFAULTS, str(path))
    defaults = trigger_form.installed_defaults()
    assert defaults.pop("np") == 2
    made = {each.name: each for each in trigger_form.fields(defaults=defaults)}
    assert made["run.name"].default == "demo"
    assert made["job.workers"].default == 2
    config = trigger_form.config({}, defaults=defaults)
    assert config["data"]["shard_bytes"] == 2**20
    assert config["data"]["spark"]["master"] == "yarn"
    assert config["training"]["seed"] == 42
    assert FIELDS["run.name"].default == "run"


@pytest.mark.parametrize("text", ["a: [", "- 1", None])
def test_defaults_that_cannot_be_read(tmp_path, monkeypatch, text):
    path = tmp_path / "defaults.yaml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(trigger_form.DEFAULTS, str(path))
    with pytest.raises(ConfigError, match=r"defaults\.yaml"):
        trigger_form.installed_defaults()


def test_defaults_that_are_no_configuration():
    with pytest.raises(ConfigError, match="the form's defaults"):
        trigger_form.fields(defaults={"training": {"sed": 3}})


def test_a_form_with_other_keys():
    names = ["gate.minimum", "data.source"]
    assert [each.name for each in trigger_form.fields(names)] == names
    with pytest.raises(ConfigError, match="unknown configuration key"):
        trigger_form.fields(["gates"])


# -------------------------------------------------------------------------------------- policy
def judged(sent: dict, defaults: dict | None = None, **policy) -> list[str]:
    """What is refused of what was sent; [] if nothing is."""
    sections = trigger_form.sections(defaults or {})
    judge = Judge(policies.from_dict({**policy, "defaults": sections}), env={})
    try:
        trigger_form.config(sent, defaults=defaults, judge=judge)
    except ConfigError as error:
        return [problem.what for problem in error.problems]
    return []


def test_the_untouched_form_passes_the_strictest_policy_with_whatever_defaults():
    defaults = {
        "np": 4, "data": {"source": "/in", "shard_bytes": "1 MiB", "spark": {"master": "yarn"}},
        "tracking": {"mlflow": {"uri": "http://mlflow:5000"}}, "run": {"user": "svc"},
    }  # fmt: skip
    for settings in ({}, defaults):
        fields = trigger_form.fields(defaults=trigger_form.sections(settings))
        sent = {each.name: each.default for each in fields} | {"np": settings.get("np", 1)}
        sent |= {"job.on": None, "conn_id": "howdah_default", "approval": False}
        assert judged(sent, settings, keys=[], roots=[]) == []
    judge = Judge(policies.from_dict({"keys": []}), env={})
    made = trigger_form.config({"data.spark.master": None}, on="yarn", judge=judge)
    assert made["data"]["spark"]["master"] == "yarn"  # where training runs: not sent
    for cluster in trigger_form.CLUSTERS:  # as the Connection says
        overrides = {"job.on": cluster}
        config = trigger_form.config({}, on=cluster, overrides=overrides, judge=judge)
        assert config["job"]["on"] == cluster


def test_what_was_not_sent_is_as_in_the_defaults():
    """The form does not show, and so does not send, what may not be sent."""
    defaults = {"np": 2, "data": {"spark": {"queue": "batch"}}, "run": {"user": "svc"}}
    made = trigger_form.config({"training.seed": 7}, defaults=defaults)
    assert made["data"]["spark"]["queue"] == "batch"
    assert made["run"]["user"] == "svc"
    assert made["training"]["seed"] == 7


@pytest.mark.parametrize(
    ("sent", "rule"),
    [
        ({"data.spark.conf": {"spark.jars": "x"}}, "keys"),
        ({"data.spark.conf": "spark.jars=x"}, "keys"),
        ({"data.spark.master": "local[*]"}, "keys"),
        ({"run.user": None}, "keys"),
        ({"np": 3}, "keys"),
        ({"job.on": "local"}, "keys"),
        ({"approval": True}, "keys"),
        ({"data.shard_bytes": "2 MiB"}, "keys"),
        ({"data.source": "/etc/passwd"}, "roots"),
        ({"data.source": "x", "data.format": "hive"}, "tables"),
    ],
)
def test_what_differs_from_the_defaults_is_judged(sent, rule):
    defaults = {"data": {"spark": {"master": "yarn"}}, "run": {"user": "svc"}}
    (refused,) = judged(sent, defaults, keys=["data.source", "data.format"])
    assert f"{next(iter(sent))} is refused by the policy's rule `{rule}`" in refused


def test_a_policy_says_what_it_refuses_beside_all_other_problems():
    problems = judged(
        {"run.user": "hdfs", "training.learning_rte": 1, "job.env": {"HF_TOKEN": "x"}}
    )
    assert len(problems) == 4
    for part in ("`keys`", "unknown key", "a secret was sent"):
        assert any(part in each for each in problems), part


@pytest.mark.airflow
def test_the_form_shows_only_what_may_be_sent():
    policy = policies.from_dict({"keys": ["data.source", "training", "np"]})
    made = trigger_form.params(policy=policy, defaults={"approval": True})
    count = len(trigger_form.OWN)
    assert [*made][:count] == [*trigger_form.OWN]  # tasks read them
    assert {name.partition(".")[0] for name in [*made][count:]} == {"data", "training", "set"}
    assert [name for name in made if name.startswith("data.")] == ["data.source"]
    assert "const" not in made["np"].schema
    assert made["approval"].schema["const"] is True
    assert made["approval"].resolve(True) is True
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        made["approval"].resolve(False)


# ------------------------------------------------------------------------------------- Airflow
@pytest.mark.airflow
def test_airflow_serialises_the_form_without_change():
    """A DAG with it, as the scheduler stores it and the page reads it."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("form", schedule=None, params=trigger_form.params()) as dag:
        pass
    stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    back = DagSerialization.from_dict(stored).params
    assert list(back) == [*trigger_form.OWN, *OPEN, "set"]
    for name in OPEN:
        param, each = back.get_param(name), FIELDS[name]
        assert param.value == each.default
        assert param.description == each.help
        assert param.schema == {**each.schema, "title": name}
    assert back.get_param("set").schema["format"] == "multiline"  # a text area


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("training.framework", "jax"), ("training.learning_rate", 1.0), ("np", 0),
        ("job.on", "spark"), ("gate.minimum", {"accuracy": "x"}), ("training.max_steps", 1.5),
        ("approval", "yes"), ("set", ["training.seed: 1"]),
    ],
)  # fmt: skip
def test_airflow_itself_refuses_a_bad_value(name, bad):
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        trigger_form.params()[name].resolve(bad)


@pytest.mark.airflow
def test_defaults_of_the_forms_own_fields():
    made = trigger_form.params(defaults={"np": 2, "approval": True, "run": {"name": "demo"}})
    values = {name: made[name].value for name in (*trigger_form.OWN, "run.name")}
    assert values == {
        "np": 2, "approval": True, "job.on": None, "conn_id": "howdah_default", "run.name": "demo",
    }  # fmt: skip


@pytest.mark.airflow
def test_an_event_of_an_asset_says_what_is_special_about_its_run():
    from airflow.sdk import Asset

    class Event:
        def __init__(self, extra):
            self.extra = extra

    events = {Asset("a"): [Event({"rows": 3}), Event({"howdah": {"data.source": "new"}})]}
    context = {"params": {"data.source": "old", "np": 2}, "triggering_asset_events": events}
    assert trigger_form.sent(context) == {"data.source": "new", "np": 2}
    assert trigger_form.sent({"params": {"np": 2}}) == {"np": 2}
    for extra in (
        "data.source",
        ["data.source"],
        {"conn_id": "other"},
        {"np": 2},
        {"approval": False},
    ):
        context["triggering_asset_events"] = {Asset("a"): [Event({"howdah": extra})]}
        with pytest.raises(ConfigError, match="event can only set"):
            trigger_form.sent(context)


def test_a_search_space_comes_from_the_installations_defaults_alone():
    space = {"training.learning_rate": {"low": 1e-5, "high": 1e-4, "log": True}}
    made = trigger_form.config({}, defaults={"tune": {"space": space, "trials": 3}})
    assert made["tune"]["trials"] == 3
    assert made["tune"]["space"]["training.learning_rate"]["low"] == 1e-5
    for sent in ({"tune.trials": 1000}, {"set": "tune.trials: 1000"}):
        (problem,) = problems_of(sent)
        assert "the installation's defaults set it" in problem


def test_every_key_but_the_runs_own_may_be_sent_or_is_the_installations():
    for name in KEYS:
        sent = f"{name}: x"
        try:
            trigger_form.config({"set": sent})
            text = ""
        except ConfigError as error:
            text = "\n".join(problem.what for problem in error.problems)
        assert ("the DAG run sets it" in text) == (name in OF_THE_RUN), name
        if name not in OF_THE_RUN:
            assert ("the installation's defaults set it" in text) == (
                name.partition(".")[0] not in SECTIONS
            ), name
        assert "unknown key" not in text, name
