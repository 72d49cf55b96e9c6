"""Secrets are recognised, and nothing that is saved or shown contains one."""

import json

import pytest

from howdah import errors, redact
from howdah.config import loader as configs
from howdah.config.model import Config
from howdah.errors import ConfigError, HowdahError, UsageError
from howdah.models.runs.run_json import CONFIG, config_hash, freeze_config, readable_config

SECRETS = {
    "data.source": ["s3a://AKIAPLANT:planted/1+x@bucket/rows.csv"],
    "data.spark.conf": {
        "spark.hadoop.fs.s3a.access.key": "planted-2",
        "spark.hadoop.fs.s3a.secret.key": "planted-3",
        "spark.hadoop.fs.s3a.session.token": "planted-4",
        "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net": "planted-5",
        "spark.hadoop.fs.azure.sas.box.me.blob.core.windows.net": "sv=1&sig=planted-6",
        "spark.hadoop.fs.azure.account.oauth2.client.secret": "planted-7",
        "spark.hadoop.javax.jdo.option.ConnectionPassword": "planted-8",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:mysql://h:3306/d?password=planted-9&u=v",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=planted-10 -Dx=y",
        "spark.ssl.keyStorePassword": "planted-11",
        "spark.my.database": "jdbc:sqlserver://h:1433;user=u;password=planted-12;encrypt=true",
        "spark.my.oracle": "jdbc:oracle:thin:u/planted-13@h:1521:x",
    },
    "job.env": {
        "HF_TOKEN": "planted-14",
        "MLFLOW_TRACKING_PASSWORD": "planted-15",
        "AWS_SECRET_ACCESS_KEY": "planted-16",
        "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=planted-17==;X=y",
        "MY_HUB": "https://hub/?token=planted-18",
        "ODD": "hf_planted19planted19planted19",
    },
    "yarn.files": ["https://bot:planted-20@host/f"],
}  # fmt: skip
"""A secret of each sort; every one has "planted" in it."""

HARMLESS = {
    "data": {
        "source": "hdfs://nn:8020/a:b@c",
        "labels": {"password": "account", "token=1": "token"},
        "partitions": {"token": ["a", "b"]},
        "format": "hive",
        "spark": {
            "conf": {
                "spark.security.credentials.hive.enabled": "true",
                "spark.yarn.keytab": "/etc/k",
                "spark.hadoop.fs.defaultFS": "abfss://box@me.dfs.core.windows.net/x",
            }
        },
    },
    "job": {"env": {"TOKENIZERS_PARALLELISM": "false", "AWS_ACCESS_KEY_ID": "x", "PWD": "/x"}},
}
"""What only looks like a secret."""


def with_secrets(**more) -> Config:
    env, conf = SECRETS["job.env"], SECRETS["data.spark.conf"]
    sections = {
        "data": {"source": SECRETS["data.source"][0], "spark": {"conf": conf}},
        "yarn": {"files": SECRETS["yarn.files"]},
        "job": {"env": env},
        "tracking": {"mlflow": {"uri": "https://bot:planted-21@mlflow:5000/x"}},
    }
    return configs.from_dict({**sections, **more})


def test_every_sort_of_secret_is_redacted_and_the_rest_stays():
    config = with_secrets()
    shown = redact.config(config)
    text = configs.dump_yaml(shown)
    assert "planted" not in text
    assert shown.tracking.mlflow.uri == f"https://bot:{redact.LEFT_OUT}@mlflow:5000/x"
    conf = shown.data.spark.conf
    assert conf["spark.driver.extraJavaOptions"].endswith(f"={redact.LEFT_OUT} -Dx=y")
    assert conf["spark.my.database"].endswith(";encrypt=true")
    assert redact.config(shown) is shown  # once is enough
    assert configs.from_dict(json.loads(shown.model_dump_json())) == shown
    lacking = redact.left_out(shown)
    assert {"data.source", "job.env.HF_TOKEN", "yarn.files", "tracking.mlflow.uri"} <= set(lacking)
    assert len(lacking) == len(SECRETS["data.spark.conf"]) + len(SECRETS["job.env"]) + 3


def test_values_that_only_look_like_secrets_stay():
    config = configs.from_dict(HARMLESS)
    assert redact.config(config) is config
    default = Config()
    assert redact.config(default) is default and not redact.left_out(default)
    secret = [key for key, _ in list(configs.keys()) if redact.is_secret_name(key)]
    assert not secret
    assert not list(redact.find("", config.model_dump(mode="json")))


def test_found_secrets_are_named_by_key_only():
    reasons = dict(redact.find("", with_secrets().model_dump(mode="json")))
    assert reasons["job.env.HF_TOKEN"] == "a secret"
    assert reasons["tracking.mlflow.uri"] == "a password in a URL"
    assert reasons["job.env.MY_HUB"] == "a secret in a text"
    assert "planted" not in str(reasons)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("://u:p@ss@host/x", f"://u:{redact.LEFT_OUT}@host/x"),
        ("http://a:p@h,http://b:q@h", f"http://a:{redact.LEFT_OUT}@h,http://b:{redact.LEFT_OUT}@h"),
        ("https://u:12345@h/x", f"https://u:{redact.LEFT_OUT}@h/x"),
        ("{'HF_TOKEN': 'abc', 'a': 1}", f"{{'HF_TOKEN': {redact.LEFT_OUT}, 'a': 1}}"),
        ("jdbc:mysql://h1:3306,h2:3306/d?a=b@c", None),
        ("hdfs://[::1]:8020/a@b", None),
        ("/data/token=abc/part-0", None),
        ("training.per_device_max_tokens=8192", None),
        ("kernel design=3", None),
    ],
)
def test_texts(text, redacted):
    assert redact.text(text) == (redacted or text)
    assert redact.text(redact.text(text)) == redact.text(text)


def test_errors_show_no_secrets():
    error = HowdahError("cannot reach https://bot:planted@h", got="password=planted", where="a=b")
    assert "planted" not in errors.render(error) + json.dumps(error.as_dict())
    for overrides in (["job.env.HF_TOKEN.x=7777"], ["run.user=x", "run.user.password=7777"]):
        with pytest.raises((ConfigError, UsageError)) as caught:
            configs.load(None, overrides)
        assert "7777" not in errors.render(caught.value)


def test_a_configuration_without_its_secrets_is_refused_where_they_are_needed():
    shown = redact.config(with_secrets())
    with pytest.raises(ConfigError) as caught:
        configs.require_secrets(shown)
    assert "job.env.HF_TOKEN" in caught.value.where and "planted" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        configs.require_secrets(shown, "tracking")
    assert caught.value.where == "tracking.mlflow.uri"
    configs.require_secrets(shown, "training", "model")
    configs.require_secrets(with_secrets())


def test_the_frozen_configuration_lists_its_redacted_keys(tmp_path):
    directory = str(tmp_path)
    path = freeze_config(with_secrets(), directory)
    text = (tmp_path / CONFIG).read_text()
    assert "planted" not in text and "# job.env.HF_TOKEN\n" in text
    assert (tmp_path / CONFIG).stat().st_mode & 0o777 == 0o640
    assert configs.load(path) == redact.config(with_secrets())
    freeze_config(Config(), directory)
    assert "#" not in (tmp_path / CONFIG).read_text()


def test_a_rank_reads_a_private_copy_that_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory, config = str(tmp_path / "run"), with_secrets()
    with pytest.raises(KeyError), readable_config(config, directory) as path:
        assert configs.load(path) == config
        (copy,) = [p for p in tmp_path.rglob("*.yaml") if p.parent.name != "run"]
        assert str(copy) == path and copy.stat().st_mode & 0o777 == 0o600
        assert copy.parent.stat().st_mode & 0o777 == 0o700
        raise KeyError
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "run" / CONFIG]
    with readable_config(Config(), directory) as path:
        assert path == str(tmp_path / "run" / CONFIG)


def test_a_changed_password_is_no_other_run():
    env = {"env": SECRETS["job.env"] | {"HF_TOKEN": "another"}}
    conf = SECRETS["data.spark.conf"] | {"spark.ssl.keyStorePassword": "another"}
    data = {"source": SECRETS["data.source"][0], "spark": {"conf": conf}}
    assert config_hash(with_secrets()) == config_hash(with_secrets(job=env, data=data))
