"""A policy: what its file says, and which keys, paths and values it lets through."""

from __future__ import annotations

import typing

import pytest
import yaml

from howdah.config import loader as configs
from howdah.config.model import Config
from howdah.config.types import Kind, named_by
from howdah.errors import ConfigError, NotFound
from howdah.policy import rules as policies
from howdah.policy.check import DECIDED, Judge
from howdah.policy.paths import Roots
from tests import ROOT

NAMES_NOTHING = {
    "run.name", "run.mode", "data.partitions", "data.columns.text", "data.columns.label",
    "data.columns.id", "data.columns.image", "data.columns.separator", "data.columns.text_pair",
    "data.columns.label_separator", "data.csv.names",
    "data.as_of", "data.jdbc.partition_column", "data.jdbc.watermark",
    "data.csv.delimiter",
    "data.csv.quote", "data.csv.escape", "data.csv.encoding", "data.tfrecord.input_ids",
    "data.tfrecord.attention_mask",
    "data.labels", "data.split.fold", "data.split.column", "data.split.values",
    "data.append.part",
    "data.split.group", "data.split.time.column", "data.split.time.validation_from",
    "data.split.time.test_from", "data.spark.driver_memory",
    "data.spark.executor_memory", "training.class_weights", "gate.minimum", "publish.name",
    "yarn.node_label", "yarn.tags", "job.network_interface",
    "job.ports", "tune.space", "tune.metric", "serve.host",
}  # fmt: skip
"""Keys that take a string which names nothing outside the run: no file, user, queue, host."""


def judge(**values) -> Judge:
    """A policy without roots, unless they are given."""
    directory = values.pop("directory", None)
    return Judge(policies.from_dict({"roots": [], **values}), env={}, directory=directory)


def refused_of(judged: Judge, *overrides: str, base: str | None = None) -> list[str]:
    """Messages about the refused values of a configuration."""
    config = configs.load(base, list(overrides))
    return [problem.what for problem in judged.config(config)]


# ------------------------------------------------------------------------------ the whole model
def takes_text(annotation) -> bool:
    if annotation is str:
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(takes_text(part) for part in typing.get_args(annotation))


def test_every_key_that_takes_a_text_is_marked_with_what_it_names():
    """A new key with a path, a user or a host needs a mark: see howdah/config/types.py."""
    for name, field in configs.keys():  # noqa: SIM118 - a module
        if takes_text(field.annotation):
            assert (named_by(field) is not None) != (name in NAMES_NOTHING), (
                f"{name}: give its text a type of howdah/config/types.py (AnyPath, User...), or"
                " list it here, if it names nothing outside the run"
            )


def test_keys_that_look_like_paths_are_marked():
    words = ("path", "file", "directory", "keytab", "archive", "home", "staging", "python", "_dir")
    for name, field in configs.keys():  # noqa: SIM118 - a module
        leaf = name.rpartition(".")[2]
        if takes_text(field.annotation) and any(word in leaf for word in words):
            assert named_by(field) is not None, name


def test_every_mark_has_a_rule():
    kinds = set(typing.get_args(Kind)) - {"setting", "variable"}
    for kind in kinds:
        assert list(judge().value("the key", kind, "/a/value")), kind
    assert named_by(dict(configs.keys())["data.spark.conf"]) == "setting"
    assert named_by(dict(configs.keys())["job.env"]) == "variable"
    keys = {
        "run.directory", "job.on", "data.spark.master", "data.partitions", "data.append.enabled",
        "data.append.frozen", "data.append.part", "model.init_from", "gate.better_than_published",
    }  # fmt: skip
    assert keys == DECIDED


def test_which_notifiers_a_connection_may_name():
    default, chat = policies.Policy(), policies.from_dict({"notifiers": ["my.chat.Post"]})
    assert default.may_notify_by("airflow.providers.smtp.notifications.smtp.SmtpNotifier")
    assert not default.may_notify_by("airflow.providersx.Evil")
    assert chat.may_notify_by("my.chat.Post") and not chat.may_notify_by("my.chat.Poster")
    assert policies.from_dict({"notifiers": ["*"]}).may_notify_by("any.Thing")
    assert policies.from_dict({"trusted": True}).may_notify_by("any.Thing")


# --------------------------------------------------------------------------------- the file
def test_the_default_is_strict_and_every_key_is_explained():
    policy, source = policies.in_force(env={})
    assert "HOWDAH_AIRFLOW_POLICY is not set" in source
    assert not policy.trusted
    for key in ("data.source", "training.seed", "gate.minimum", "np", "training"):
        assert policy.may_send(key), key
    for key in (
        "data.spark.conf", "run.user", "data.query_file", "job.env", "trainings", "data", "run",
        "checkpoint.resume", "yarn.files", "model.revision", "yarn.python", "tracking.mlflow.uri",
    ):  # fmt: skip
        assert not policy.may_send(key), key
    assert policy.roots == ["hdfs:///"]
    assert policy.users == policy.queues == policy.tables == policy.mlflow_uris == []
    explained = policies.explain(policy)
    assert [item["key"] for item in explained] == list(policies.Policy.model_fields)
    assert all(item["help"] and item["type"] for item in explained)


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    made = policies.from_dict({"keys": ["data"], "roots": ["/srv", "s3://b/x"], "queues": ["1e5"]})
    path = tmp_path / "policy.yaml"
    path.write_text(policies.to_yaml(made))
    assert policies.load(str(path)) == made
    assert policies.in_force(env={policies.ENVIRONMENT: str(path)}) == (made, str(path))
    with pytest.raises(NotFound):
        policies.in_force(env={policies.ENVIRONMENT: str(tmp_path / "none.yaml")})


def test_the_example_in_the_documentation_is_a_policy():
    text = (ROOT / "docs" / "operations.md").read_text()
    (example,) = [part for part in text.split("```")[1::2] if part.startswith("yaml\nkeys:")]
    made = policies.from_dict(yaml.safe_load(example.removeprefix("yaml")))
    assert not made.may_send("approval") and made.may_send("yarn.queue")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kyes: [data]", "did you mean keys?"),
        ("keys: [data.sorce]", "did you mean data.source?"),
        ("roots: [data/x]", "relative"),
        ("roots: [/srv/../etc]", "'..'"),
        ("roots: ['file:/srv']", "neither a plain path nor a URL"),
        ("tables: [news]", "database.table"),
        ("hub_models: [../x]", "hub name"),
        ("defaults: {run: {nme: x}}", "did you mean run.name?"),
        ("trusted: perhaps", "bool"),
        ("- keys", "not a YAML mapping"),
        ("keys: [", "the policy is not YAML"),
        ("roots: [{{ root }}]", "a key is itself a mapping"),
        ("name: 2026-13-45", "YAML's timestamp"),
    ],
)
def test_an_invalid_policy_is_refused(tmp_path, text, sentence):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        policies.load(str(path))
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_policy_that_is_not_utf8_is_refused_as_a_configuration_is(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_bytes("name: Büro".encode("latin-1"))
    with pytest.raises(ConfigError, match="the policy is not UTF-8") as caught:
        policies.load(str(path))
    assert "iconv" in caught.value.remedy


# ------------------------------------------------------------------------------------- paths
def roots(*directories, default=None, directory="/nowhere") -> Roots:
    return Roots(directories, lambda: default, directory)


@pytest.mark.parametrize(
    "path",
    [
        "hdfs:///data/x", "hdfs://nn:8020/data/x", "hdfs://NN/data", "hdfs:///data/", "HDFS:///data/x",
        "hdfs:///data//x/./y", "hdfs:///data/*.csv", "hdfs:///data/**/part-[0-9]*",
        "hdfs:///data/hour=10%3A00/x", "hdfs:///data/a b", "hdfs:///data/müller",
    ],
)  # fmt: skip
def test_paths_below_a_remote_root(path):
    assert roots("hdfs:///data", default="nn:8020").problem(path) is None


@pytest.mark.parametrize(
    "path",
    [
        # another place
        "hdfs:///database/x", "hdfs:///", "hdfs:///dat?/x", "hdfs:///*/x", "hdfs://other-nn/data/x",
        "hdfs://nn:9000/data/x", "hdfs://nn@other/data/x", "hdfs://u:p@nn:8020/data/x",
        # another storage
        "webhdfs://nn:8020/data/x", "swebhdfs://nn/data/x", "s3://data/x", "s3a://data/x",
        "memory://data/x", "http://nn/data", "viewfs:///data/x", "har:///data/x", "abfs://data/x",
        # this machine
        "/data/x", "data/x", "file:///data/x", "FILE:///data/x", "~/data", "//data/x", "",
        # neither
        "file:/data/x", "file://host/data/x", "hdfs:/data/x", "hdfs:data", "jar:file:///data/x",
        "simplecache::hdfs:///data/x", "hdfs+x://nn/data", "ｈｄｆｓ:///data/x", "://data",
        "hdfs:///data/x://y", "C:\\data",
        # ways out
        "hdfs:///data/../etc", "hdfs:///data/x/../../etc", "hdfs:///data/%2e%2e/etc",
        "hdfs:///data/%252e%252e/etc", "hdfs:///data/..%2fetc", "hdfs:///data/x%2f..%2f..",
        "hdfs:///data/%25252525252e", "hdfs:///data/x%00", "hdfs:///data/%0a",
        # lists and patterns of others
        "hdfs:///data/x,/etc/passwd", "hdfs:///data/x,hdfs:///secret", "hdfs:///data/{x,/secret}",
        "hdfs:///data/{x/../../etc}", "hdfs:///data/x#../y", "hdfs:///data\\..\\x",
        # what cannot be seen
        "hdfs:///data/x\n/etc", "hdfs:///data/x\0", " hdfs:///data/x", "hdfs:///data/x ",
        "hdfs:///data/\u202egnp", "hdfs:///data/x\r", "\thdfs:///data/x",
    ],
)  # fmt: skip
def test_paths_that_lead_elsewhere(path):
    assert roots("hdfs:///data", default="nn:8020").problem(path) is not None


def test_without_a_default_cluster_only_the_same_text_is_the_same_cluster():
    rule = roots("hdfs:///data", "s3://bucket/in", "webhdfs://nn:9870/x")
    assert rule.problem("hdfs:///data/x") is None
    assert rule.problem("hdfs://nn/data/x") is not None
    assert rule.problem("s3://bucket/in/x") is None
    assert rule.problem("s3://bucket/other") is not None
    assert rule.problem("s3://other/in/x") is not None
    assert rule.problem("webhdfs://nn:9870/x/y") is None
    assert rule.problem("webhdfs://nn:9871/x/y") is not None


@pytest.fixture
def tree(tmp_path):
    """shared/ is the root; secret/ lies beside it."""
    (tmp_path / "shared" / "deep").mkdir(parents=True)
    (tmp_path / "shared" / "rows.csv").write_text("x")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("x")
    return tmp_path


def test_local_paths_are_checked_with_links_resolved(tree):
    shared = tree / "shared"
    rule = roots(str(shared), directory=str(shared))
    for path in (
        shared, f"{shared}/", f"file://{shared}/rows.csv", f"//{str(shared).lstrip('/')}",
        "rows.csv", "deep/new/er", "*.csv", f"{shared}/**/*.csv", f"{shared}/no/such/file",
    ):  # fmt: skip
        assert rule.problem(str(path)) is None, path
    for path in (
        tree, f"{shared}x", f"{shared}/../secret", "../secret/key", f"{tree}/sha*/rows.csv", "/etc",
        f"{tree}/*", "/proc/self/environ", "~/.ssh/id_rsa", "~root", "file:///etc/passwd",
        f"{shared}/%2e%2e/secret", f"{shared}/rows.csv,/etc/passwd", "/",
    ):  # fmt: skip
        assert rule.problem(str(path)) is not None, path

    (shared / "out").symlink_to(tree / "secret")
    (shared / "file").symlink_to(tree / "secret" / "key")
    (shared / "later").symlink_to(tree / "not-yet")
    (shared / "deep" / "in").symlink_to(shared / "rows.csv")
    for name in ("out", "out/key", "file", "later", "later/x", "", "*", "*/key", "o*"):
        assert "roots" in rule.problem(f"{shared}/{name}"), name
    assert rule.problem(f"{shared}/deep") is None  # its link stays below the root
    (shared / "deep" / "further").symlink_to(shared / "out")
    assert "link" in rule.problem(f"{shared}/deep")


def test_a_root_that_is_a_link_is_resolved(tree):
    (tree / "alias").symlink_to(tree / "shared")
    for root, path in (("alias", "shared"), ("shared", "alias")):
        assert roots(str(tree / root)).problem(str(tree / path / "rows.csv")) is None


def test_circular_links_end(tree):
    (tree / "shared" / "deep" / "up").symlink_to(tree / "shared")
    assert roots(str(tree / "shared")).problem(str(tree / "shared")) is None


# ------------------------------------------------------------------------------- configurations
def test_values_that_equal_the_defaults_are_not_checked():
    base = {
        "data": {"source": "/srv/in.csv", "spark": {"conf": {"spark.plugins": "Ours"}}},
        "run": {"user": "svc"}, "yarn": {"queue": "batch", "files": ["/etc/ours.cfg"]},
        "tracking": {"mlflow": {"uri": "http://mlflow:5000"}},
    }  # fmt: skip
    judged = judge(defaults=base)
    assert list(judged.config(configs.from_dict(base))) == []
    assert refused_of(judge()) == []  # Howdah's own defaults
    changed = configs.from_dict(base | {"run": {"user": None}, "yarn": {"files": []}})
    refused = " ".join(p.what for p in judge(keys=["*"], defaults=base).config(changed))
    assert "run.user is refused by the policy's rule `users`: it may not be emptied" in refused
    assert "yarn.queue" in refused and "emptied" in refused


def test_added_and_removed_entries_are_checked():
    base = {
        "data": {"spark": {"conf": {"spark.authenticate": "true"}}},
        "job": {"env": {"A": "1"}},
    }
    open_to_one = judge(keys=["*"], defaults=base, spark_conf=["spark.sql.shuffle.partitions"])

    def refused(conf):
        sections = base | {"data": {"spark": {"conf": conf}}}
        return " ".join(p.what for p in open_to_one.config(configs.from_dict(sections)))

    ours = {"spark.authenticate": "true"}
    assert refused(ours) == ""
    assert refused(ours | {"spark.sql.shuffle.partitions": "8"}) == ""
    assert "left out" in refused({})
    assert "may not be set" in refused({"spark.authenticate": "false"})
    for name in (
        "spark.driver.extraJavaOptions", "spark.jars", "spark.plugins",
        "spark.SQL.shuffle.partitions",
        " spark.sql.shuffle.partitions", "spark.sql.shuffle.partitions\n",
        "spark.hadoop.x",
        "spark.sql.shuffle.partitions\nspark.jars", "SPARK.JARS", "spark.sql.shuffle.partitions ",
    ):  # fmt: skip
        assert "spark_conf" in refused(ours | {name: "x"}), name
    smuggled = {"spark.sql.shuffle.partitions": "8\nspark.jars=/tmp/x.jar"}
    assert "cannot be seen" in refused(ours | smuggled)


def test_a_list_of_variables_is_checked_by_name():
    judged, config = judge(env=["OMP_NUM_THREADS"]), Config()
    names = ["OMP_NUM_THREADS", "HF_TOKEN"]
    (problem,) = judged._values("yarn.some_key", "variable", names, [], config)
    assert "'HF_TOKEN' may not be set" in problem.what
    assert list(judged._values("yarn.some_key", "variable", names, ["HF_TOKEN"], config)) == []


def test_the_same_source_under_another_format_is_another_source():
    judged = judge(keys=["*"], defaults={"data": {"source": "secrets"}})
    assert refused_of(judged, "data.source=secrets") == []
    (refused,) = refused_of(judged, "data.source=secrets", "data.format=hive")
    assert "`tables`" in refused


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("run.user=hdfs", "users"),
        ("yarn.view_users=['*']", "users"),
        ("yarn.queue=root.prod", "queues"),
        ("data.spark.queue=root.prod", "queues"),
        ("data.spark.master=spark://attacker:7077", "masters"),
        ("data.spark.master='local[*] '", "masters"),
        ("tracking.mlflow.uri=http://attacker", "mlflow_uris"),
        ("tracking.mlflow.uri=http://mlflow:5000/", "mlflow_uris"),
        ("data.rejects_table=hr.rejects", "tables"),
        ("data.source=/etc/passwd", "roots"),
        ("data.dataset=/etc/cron.d", "roots"),
        ("publish.directory=/var/www/html", "roots"),
        ("checkpoint.directory=/tmp/x", "roots"),
        ("checkpoint.resume=/tmp/step-1", "roots"),
        ("training.shard_cache_directory=/root", "roots"),
        ("data.spark.home=/tmp/spark", "roots"),
        ("data.spark.java_archive=/tmp/jre.zip", "roots"),
        ("yarn.python=/tmp/python", "roots"),
        ("yarn.staging=hdfs://other/x", "roots"),
        ("yarn.files=[/etc/ssh/ssh_host_rsa_key]", "roots"),
        ("run.directory=/etc", "roots"),
        ("model.base=/etc", "roots"),
        ("model.base=../secret", "roots"),
        ("model.base=distilbert-evil/model", "hub_models"),
        ("model.base=evil/distilbert-base-uncased", "hub_models"),
        ("model.revision=refs/pr/1", "hub_models"),
        ("model.revision=refs%2Fpr%2F1", "hub_models"),
        ("job.env={LD_PRELOAD: /tmp/x.so}", "env"),
        ("job.env={ld_preload: x}", "env"),
    ],
)
def test_values_are_checked_where_every_key_may_be_sent(override, rule):
    open_keys = judge(keys=["*"], mlflow_uris=["http://mlflow:5000"], tables=["news.*"])
    (refused,) = refused_of(open_keys, override)
    key = override.partition("=")[0]
    assert f"{key} is refused by the policy's rule `{rule}`" in refused
    (problem,) = open_keys.config(configs.load(None, [override]))
    assert problem.where == key
    assert problem.expected.startswith(f"{rule}: ")


@pytest.mark.parametrize(
    "override",
    [
        "run.user=ada", "yarn.queue=batch", "tracking.mlflow.uri=http://mlflow:5000",
        "data.spark.master=yarn", "data.rejects_table=news.rejects",
        "job.env={OMP_NUM_THREADS: '1'}",
        "data.dataset=hdfs:///data/set", "model.base=distilbert/distilbert-base-cased",
        "model.base=distilbert-base-cased", "checkpoint.resume=never", "model.revision=main",
        "data.columns.separator='\\n'", 'data.csv.delimiter="\\t"',
        "yarn.tags=[airflow-0123456789abcdef, airflow-config-0123456789abcdef]", "training.seed=3",
    ],
)  # fmt: skip
def test_listed_values_are_allowed(override):
    judged = judge(
        keys=["*"], users=["ada"], queues=["batch"], mlflow_uris=["http://mlflow:5000"],
        tables=["news.*"], env=["OMP_NUM_THREADS"], roots=["hdfs:///data"],
    )  # fmt: skip
    assert refused_of(judged, override) == []


def test_keytabs_are_checked_as_files_and_principals_as_users():
    for section in ("yarn", "data.spark"):
        refused = " ".join(
            refused_of(
                judge(keys=["*"]),
                f"{section}.keytab=/etc/hdfs.keytab",
                f"{section}.principal=hdfs@R",
            )
        )
        assert "`roots`" in refused and "`users`" in refused


def test_tables_are_checked_regardless_of_case():
    judged = judge(tables=["news.*", "default.texts", "cat.db.t"])
    for name in ("news.a", "NEWS.a", "texts", "default.texts", "spark_catalog.news.a", "cat.db.t"):
        assert list(judged.value("data.source", "table", name)) == [], name
    for name in ("hr.a", "newsx.a", "other.news.a", "news", "news.a.b", "`news`.a", "news.a;b", ""):
        assert list(judged.value("data.source", "table", name)), name


def test_a_query_reads_any_table_and_file_so_it_needs_both():
    for rules in ({}, {"tables": ["*"]}, {"roots": ["*"]}, {"tables": ["news.*"], "roots": ["*"]}):
        judged = judge(keys=["*"], **rules)
        assert refused_of(judged, "data.format=hive", "data.query_file=/srv/q.sql"), rules
    both = judge(keys=["*"], tables=["*"], roots=["*"])
    assert refused_of(both, "data.format=hive", "data.query_file=/srv/q.sql") == []


def test_a_directory_with_a_hub_names_text_is_a_directory(tmp_path):
    (tmp_path / "distilbert" / "private").mkdir(parents=True)
    judged = judge(directory=str(tmp_path))
    assert list(judged.value("model.base", "model", "distilbert/other")) == []
    (problem,) = judged.value("model.base", "model", "distilbert/private")
    assert "`roots`" in problem.what


def test_no_value_of_a_refused_key_and_no_password_is_repeated():
    judged = judge(keys=["data.source"])
    problems = list(
        judged.config(
            configs.load(None, ["job.env={X: hunter2}", "data.source=hdfs://u:hunter2@nn/x"])
        )
    )
    assert len(problems) == 3
    assert "hunter2" not in " ".join(map(str, problems))


def test_trusted_users_are_not_checked():
    judged = judge(trusted=True)
    assert refused_of(judged, "run.user=hdfs", "data.source=/etc/passwd") == []
    assert list(judged.value("--source", "rows", "/etc/passwd")) == []
