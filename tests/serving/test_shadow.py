"""A challenger that gets the same texts: counted, and never in a request's way."""

import dataclasses

import psutil
import pytest

from howdah.errors import ModelError, UsageError
from howdah.models.version import open_version
from howdah.serving.versions.shadow import challenger
from tests.support.waiting import wait_until


def shadowed(server, result: str) -> float:
    return server.metric("howdah_shadow_texts_total", result=result)


def test_disagreement_is_counted_and_a_killed_challenger_fails_no_request(start):
    server = start("--shadow", "v=1")  # which says the other label of every text
    wait_until(lambda: server.metric("howdah_shadow_up") == 1)
    for _ in range(5):
        status, answer = server.ask(body={"texts": ["the cat", "a dog", ""]})
        assert (status, answer["version"]) == (200, 2)
    wait_until(lambda: shadowed(server, "disagrees") == 10)
    assert shadowed(server, "agrees") == 0
    assert server.metric("howdah_shadow_text_seconds_count") == 10

    [challenger] = psutil.Process(server.process.pid).children()
    assert challenger.nice() == 19
    challenger.suspend()  # it hangs: what does not fit its queue is left out, requests go on
    for _ in range(20):
        assert server.ask(body={"texts": ["the cat"] * 32})[0] == 200
    wait_until(lambda: shadowed(server, "left out") > 0)
    challenger.kill()
    wait_until(lambda: server.metric("howdah_shadow_up") == 0)
    assert server.ask(body={"text": "the cat"})[0] == 200
    wait_until(lambda: server.metric("howdah_shadow_up") == 1)
    assert server.end() == 143
    assert not psutil.pid_exists(challenger.pid)


def test_a_challenger_is_a_version_or_a_model_with_the_same_labels(zoo):
    models = f"{zoo}/models"
    served = open_version("zoo", models)
    for given in ("1", "v=1", "zoo/v=1", str(zoo / "run-1")):
        assert challenger(given, served, f"{models}/zoo", models).run_id == "run-1"
    assert challenger("1", served, None, models).run_id == "run-1"
    with pytest.raises(ModelError, match="no such model"):
        challenger("7", served, f"{models}/zoo", models)
    with pytest.raises(UsageError, match="no challenger of an export"):
        challenger("1", open_version(str(zoo / "run-1"), models), None, models)
    other = dataclasses.replace(served, labels=("dog", "cat"))
    with pytest.raises(ModelError, match="different labels"):
        challenger("1", other, f"{models}/zoo", models)
