"""Whose home and staging directory a job on YARN and an application of Spark use."""

import pytest

from howdah.config import loader
from howdah.errors import ConfigError
from howdah.packaging import cluster_paths

SECTIONS = {"yarn": lambda c: c.yarn, "data.spark": lambda c: c.data.spark}


@pytest.fixture
def hadoop(tmp_path, monkeypatch):
    """Writes core-site.xml; without Kerberos ada is logged in, with it alice has a ticket."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    monkeypatch.setattr(cluster_paths, "short_name", lambda: "alice")

    def write(**settings):
        rows = "".join(
            f"<property><name>{name.replace('_', '.')}</name><value>{value}</value></property>"
            for name, value in settings.items()
        )
        (tmp_path / "core-site.xml").write_text(f"<configuration>{rows}</configuration>")

    return write


def config(section, run=None, **options):
    staging = {"staging": options.pop("staging")} if "staging" in options else {}
    held = {"yarn": staging | (options if section == "yarn" else {})}
    held["data"] = {} if section == "yarn" else {"spark": options}
    return loader.from_dict({**held, "run": run or {}})


@pytest.mark.parametrize("section", SECTIONS)
def test_staging_is_the_configured_directory_else_below_the_users_home(section, hadoop):
    hadoop(fs_defaultFS="hdfs://nn")
    keytab = {"keytab": "/k", "principal": "bob/node@REALM"}
    for settings, expected in (
        (config(section), "hdfs://nn/user/ada/.howdah"),
        (config(section, **keytab), "hdfs://nn/user/bob/.howdah"),
        (config(section, run={"user": "carol"}, **keytab), "hdfs://nn/user/carol/.howdah"),
        (config(section, staging="hdfs://other/s"), "hdfs://other/s"),
    ):
        assert cluster_paths.staging(settings, SECTIONS[section](settings)) == expected
    hadoop()
    with pytest.raises(ConfigError, match=r"fs\.defaultFS"):
        cluster_paths.staging(config(section), SECTIONS[section](config(section)))


@pytest.mark.parametrize("section", SECTIONS)
def test_with_kerberos_the_user_is_the_tickets(section, hadoop):
    hadoop(fs_defaultFS="hdfs://nn", hadoop_security_authentication="kerberos")
    settings = config(section)
    assert cluster_paths.user(settings, SECTIONS[section](settings)) == "alice"
