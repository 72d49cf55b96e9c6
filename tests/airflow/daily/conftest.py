"""What tasks of a day are given by Airflow, and by the installation."""

import json
from types import SimpleNamespace

import pytest

from tests.support.airflow.day_tasks import Store, Ti


@pytest.fixture
def context(monkeypatch):
    from howdah.airflow import links

    monkeypatch.setattr(links, "push", lambda where, link, url: None)
    following = SimpleNamespace(get_flat_relatives=lambda upstream: [])
    return {"ti": Ti(), "task": following, "task_state_store": Store(), "params": {}}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Writes this installation's defaults."""

    def write(**values):
        (tmp_path / "defaults.json").write_text(json.dumps(values))
        monkeypatch.setenv("HOWDAH_AIRFLOW_DEFAULTS", str(tmp_path / "defaults.json"))

    return write
