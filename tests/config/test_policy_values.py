"""Values that set other things than themselves: trials' keys, databases' tables, alerts."""

import pytest

from howdah.config import loader as configs
from tests.config.test_policy import judge, refused_of


@pytest.mark.parametrize(
    "override",
    ["alerts.on=[]", "alerts.stall_seconds=1000", "alerts.command=[id]"],
)  # fmt: skip
def test_where_and_of_what_alerts_go_is_the_installations(override):
    """Whichever key of the section."""
    open_policy = judge(keys=["*"], roots=["*"])
    assert any("where alerts go" in what for what in refused_of(open_policy, override))
    assert not refused_of(judge(keys=["*"], roots=["*"], defaults={"alerts": {"on": []}}),
                          "alerts.on=[]")  # fmt: skip


@pytest.mark.parametrize(
    ("key", "choices", "rule"),
    [
        ("data.dataset", ["/etc", "/root"], "roots"),
        ("data.dataset", ["/data/a", "/etc"], "roots"),
        ("model.base", ["evil/repo"], "hub_models"),
        ("model.base", ["a\u0000b"], "cannot be seen"),
    ],
)
def test_what_trials_may_set_is_judged_as_if_it_were_sent(key, choices, rule):
    judged = judge(keys=["*"], roots=["/data"])
    space = {"tune": {"space": {key: {"choices": choices}}}}
    assert any(rule in problem.what for problem in judged.config(configs.from_dict(space)))
    sent = judge(keys=["tune"], roots=["/data"])
    assert any("`keys`" in problem.what for problem in sent.config(configs.from_dict(space)))


def test_choices_that_may_be_sent_are_allowed():
    judged = judge(keys=["*"], roots=["/data"])
    space = {
        "data.dataset": {"choices": ["/data/a", "/data/b"]},
        "model.base": {"choices": ["bert-base-uncased"]},
        "training.learning_rate": {"low": 1e-5, "high": 1e-4},
    }
    assert not list(judged.config(configs.from_dict({"tune": {"space": space}})))


def test_a_database_that_the_worker_can_read_is_not_hive():
    source = ["data.format=jdbc", "data.source=news.salaries"]
    allowed = {"keys": ["*"], "roots": ["*"]}
    assert any(
        "jdbc_tables" in what for what in refused_of(judge(**allowed, tables=["news.*"]), *source)
    )
    for pattern in ("news.salaries", "news.*", "*"):
        assert not refused_of(judge(**allowed, jdbc_tables=[pattern]), *source)
    for pattern in ("news.other", "salaries.*", "news"):
        assert refused_of(judge(**allowed, jdbc_tables=[pattern]), *source)
    hive = ["data.format=hive", "data.source=news.salaries"]
    assert refused_of(judge(**allowed, jdbc_tables=["news.*"]), *hive)


@pytest.mark.parametrize(
    "overrides",
    [["data.query_file=/data/q.sql"]],
)
def test_a_query_of_a_database_needs_all_of_its_tables(overrides):
    allowed = {"keys": ["*"], "roots": ["*"], "tables": ["*"]}
    overrides = ["data.format=jdbc", *overrides]
    assert any("jdbc_tables" in what for what in refused_of(judge(**allowed), *overrides))
    some = judge(**allowed, jdbc_tables=["news.*"])
    assert any("jdbc_tables" in what for what in refused_of(some, *overrides))
    assert not refused_of(judge(**allowed, jdbc_tables=["*"]), *overrides)
