"""`howdah doctor --config` of a cluster that does not answer."""

from howdah.cli.begin import fitness
from howdah.config.loader import from_dict
from howdah.errors import StorageUnavailable
from howdah.storage import retry


def test_a_storage_that_is_away_is_a_finding_within_seconds(monkeypatch):
    monkeypatch.delenv(retry.ENVIRONMENT, raising=False)
    limits = []

    def away(*_, **__):
        limits.append(retry.limit_seconds())
        raise StorageUnavailable("no answer", where="webhdfs://nn/x")

    for name in ("_base", "_source", "_dataset", "_cluster"):
        monkeypatch.setattr(fitness, name, away)
    findings = fitness.check(from_dict({}))
    assert {one.name: one.status for one in findings} == dict.fromkeys(
        ("base model", "source", "dataset", "cluster"), "fail"
    )
    assert all("webhdfs://nn/x" in one.found for one in findings)
    assert len(limits) == 4 and max(limits) <= 10
    assert retry.limit_seconds() == retry.DEFAULT_SECONDS  # as before
