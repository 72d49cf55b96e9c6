"""Spark's settings reach it by a private file: `ps` does not show them."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from howdah.config import loader as config_module
from howdah.errors import ConfigError
from howdah.etl.launch import submit
from howdah.spark import applications, properties
from tests import ROOT

PLANTED = {
    "spark.hadoop.fs.s3a.secret.key": "Planted/S3+Key=",
    "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net": "PlantedAzureKey==",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:postgresql://db/x?user=u&password=Planted",
    "spark.howdah.odd": " Planted: \\ # ! = ü\u20ac\n\tend",
}


# ------------------------------------------------------------------------------------ the file
def test_the_file_is_private_holds_the_sparks_own_settings_first_and_goes(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a  1\nspark.b 2 \\")
    defaults = properties.defaults_of(str(tmp_path), {})
    with properties.written({"spark.a": "3"}, defaults) as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert Path(path).read_text() == "spark.a  1\nspark.b 2 \\\n\nspark.a=3\n"
    assert not os.path.exists(path)
    other = tmp_path / "other"
    assert properties.defaults_of(str(tmp_path), {"SPARK_CONF_DIR": str(other)}) == ""


def test_submit_arguments_stay_and_their_properties_file_is_the_base(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("spark.mine 1\n")
    arguments = f"--properties-file {mine} --proxy-user 'a b' pyspark-shell"
    with properties.launching({"spark.a": "1"}, str(tmp_path), arguments) as variables:
        arguments = variables["PYSPARK_SUBMIT_ARGS"]
        match = re.fullmatch(r"--properties-file (\S+) --proxy-user 'a b' pyspark-shell", arguments)
        assert Path(match.group(1)).read_text() == "spark.mine 1\n\n\nspark.a=1\n"
    with pytest.raises(ConfigError, match="no such file"):
        with properties.launching({}, str(tmp_path), "--properties-file /none pyspark-shell"):
            pass


def test_the_redaction_pattern_extends_sparks_own():
    (pattern,) = properties.redacting({}, "").values()
    for name in [*PLANTED][:2]:
        assert re.search(pattern, name)
    assert re.search(pattern, PLANTED["spark.hadoop.javax.jdo.option.ConnectionURL"])
    assert not re.search(pattern, "spark.executor.memory")
    (both,) = properties.redacting({}, "spark.redaction.regex   my.own\n").values()
    assert re.search(both, "my.own") and re.search(both, "fs.azure.sas.c.a")
    settings = {"spark.redaction.regex": "mine"}
    assert properties.redacting(settings, "spark.redaction.regex x") == settings


def test_spark_submit_gets_its_settings_only_from_the_file(tmp_path):
    config = config_module.from_dict({"data": {"spark": {"master": "yarn", "conf": PLANTED}}})
    directory = "hdfs://nn/run"
    with submit._settings_file(str(tmp_path), config, {}, directory, "tag") as path:
        argv = submit._command("/spark", config, path, directory)
        assert "Planted" not in " ".join(argv)
        assert "--conf" not in argv
        assert path in argv
        text = Path(path).read_text()
    assert "spark.hadoop.fs.s3a.secret.key=Planted/S3+Key=" in text
    assert not os.path.exists(path)


def test_only_our_own_application_is_found_by_its_tag():
    line = "{}\thowdah etl\tSPARK\t{}\tdefault\t{}\tUNDEFINED\t10%\thttp://x"
    rows = [("application_1_0001", "ada", "RUNNING"), ("application_1_0002", "mallory", "RUNNING"),
            ("application_1_0003", "ada", "FINISHED")]  # fmt: skip
    listing = "Total number of applications: 3\n" + "\n".join(line.format(*row) for row in rows)
    assert applications.live(listing, "ada") == ["application_1_0001"]
    assert applications.live(listing, None) == ["application_1_0001", "application_1_0002"]


# ------------------------------------------------------------------------------- a real session
SESSION = """
import json, os, sys
from pathlib import Path
from howdah.config import loader as config
from howdah.spark.session import session

options = config.from_dict({"data": {"spark": json.loads(sys.stdin.read())}}).data.spark
with session(options) as spark:
    held = dict(spark.sparkContext.getConf().getAll())
    assert spark.range(3).count() == 3
    lists = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            lists.append(Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            pass
    heap = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
    left = [p for p in os.listdir(os.environ["TMPDIR"]) if p.startswith("howdah-spark-conf-")]
print(json.dumps({"conf": held, "lists": lists, "heap": heap, "left": left}))
"""


@pytest.mark.spark
def test_a_sessions_jvm_has_its_settings_and_no_argument_list_does(tmp_path):
    defaults = tmp_path / "conf"
    defaults.mkdir()
    (defaults / "spark-defaults.conf").write_text(
        "spark.of.the.cluster yes\nspark.driver.memory 300m\nspark.redaction.regex my.own\n"
    )
    options = {"master": "local[1]", "driver_memory": "700m", "conf": PLANTED}
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(defaults),
           "TMPDIR": str(tmp_path)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SESSION], input=json.dumps(options), env=env, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert {key: report["conf"][key] for key in PLANTED} == PLANTED
    assert report["conf"]["spark.of.the.cluster"] == "yes"
    assert "my.own" in report["conf"]["spark.redaction.regex"]
    assert 600 * 2**20 < report["heap"] <= 700 * 2**20  # known before the JVM starts
    assert any("SparkSubmit" in argv for argv in report["lists"])
    assert not [argv for argv in report["lists"] if "Planted" in argv]
    assert report["left"] == []


@pytest.mark.parametrize(
    ("defaults", "value"),
    [
        ("spark.driver.extraJavaOptions\nspark.executor.memory 4g\n", ""),
        ("spark.driver.extraJavaOptions=\nspark.executor.memory 4g\n", ""),
        ("spark.driver.extraJavaOptions -Da=b \\\n    -Dc=d\n", "-Da=b -Dc=d "),
        ("spark.driver.extraJavaOptions : -Da=b \nx y\n", "-Da=b "),
        ("spark.driver.extraJavaOptionsOther -Da=b\n", ""),
    ],
)
def test_a_value_of_the_defaults_ends_with_its_line(defaults, value):
    zoned = properties.in_utc({}, defaults)["spark.driver.extraJavaOptions"]
    assert zoned == f"{value}-Duser.timezone=UTC"


def test_the_file_is_utf8_in_every_locale(tmp_path):
    """Spark reads it so; the defaults may have letters beyond ASCII."""
    code = r"""
from howdah.spark import properties
with properties.written({"spark.a": "1"}, "spark.b f\u00fcr") as path:
    print(open(path, "rb").read())
"""
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == repr("spark.b für\n\nspark.a=1\n".encode())


def test_submit_arguments_in_other_spellings(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("spark.mine 1\n")
    arguments = f"--properties-file={mine} --conf a=b pyspark-shell"
    with properties.launching({"spark.a": "1"}, str(tmp_path), arguments) as variables:
        option, path, *others = variables["PYSPARK_SUBMIT_ARGS"].split()
        assert option == "--properties-file" and others == ["--conf", "a=b", "pyspark-shell"]
        assert Path(path).read_text() == "spark.mine 1\n\n\nspark.a=1\n"
    with pytest.raises(ConfigError, match="cannot be read"):
        with properties.launching({}, str(tmp_path), "--conf 'a"):
            pass
