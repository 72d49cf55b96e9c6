"""A challenger that gets the same texts: counted, and never in a request's way."""

import json

import psutil
import pytest

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


@pytest.mark.parametrize(
    ("given", "code", "what"), [("7", 4, "no such model"), ("models/none", 4, "no such model")]
)
def test_a_challenger_that_is_none_is_refused(zoo, tmp_path, given, code, what):
    from tests.runs.servers import Server

    server = Server(zoo, tmp_path, "--shadow", given)
    answer = json.loads(server.process.stdout.readline())
    assert (server.end(), what in answer["what"]) == (code, True)
