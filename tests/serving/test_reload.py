"""Publishing while it serves: no request fails, and each answer names the version that gave it."""

import http.client
import json
import os
import shutil
import threading

import pytest

from howdah.serving.registry.publish import republish
from tests.runs.finished_runs import LABELS, config_of
from tests.runs.servers import LIMIT, Server, publish_version
from tests.support.waiting import wait_until

FAST = {"reload_seconds": 0.05}
MIB = 2**20


@pytest.fixture
def place(tmp_path, base):
    publish_version(tmp_path, base, 1)
    return tmp_path


def version_of(server: Server) -> int:
    return server.ask(body={"text": "the cat"})[1]["version"]


class Load:
    """Clients that ask without a pause, on connections that stay open.

    Attributes:
        wrong: answers that are no 200, or whose label is not that of the version they name.
        versions: that have answered.
    """

    def __init__(self, server: Server, clients: int = 6) -> None:
        self.wrong: list[object] = []
        self.versions: set[int] = set()
        self.answers = 0
        self._server, self._over = server, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT)

    def _ask(self, number: int) -> None:
        connection = self._server.connect()
        body = json.dumps({"texts": ["the cat and a dog"] * (1 + number % 4)})
        while not self._over.is_set():
            try:
                connection.request("POST", "/v1/classify", body)
                answer = connection.getresponse()
                content = json.load(answer)
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(repr(error))
                return
            if answer.status != 200:
                self.wrong.append(content)
                continue
            version = content["version"]
            labels = {one["label"] for one in content["predictions"]}
            if labels != {LABELS[version % 2]} or content["run_id"] != f"run-{version}":
                self.wrong.append(content)
            self.versions.add(version)
            self.answers += 1
        connection.close()


def publish_under_load(start, place, base, count: int, grows: int) -> None:
    server = start(place=place, limits=FAST)
    with Load(server) as load:
        wait_until(lambda: load.answers > 20)
        for number in range(2, 2 + count):
            publish_version(place, base, number)
            wait_until(lambda number=number: number in load.versions, LIMIT)
            if number == 4:
                before = server.memory()
    assert load.wrong == []
    assert load.versions == set(range(1, 2 + count))
    assert server.metric("howdah_reloads_total", result="swapped") == count
    assert server.metric("howdah_model_info", version=str(1 + count)) == 1
    assert server.metric("howdah_model_info", version="1") == 0
    assert server.memory() < before + grows  # old versions do not stay


def test_a_few_publishes_under_load(start, place, base):
    publish_under_load(start, place, base, 4, 64 * MIB)


@pytest.mark.full
def test_thirty_publishes_under_load_and_memory_stays_flat(start, place, base):
    publish_under_load(start, place, base, 30, 48 * MIB)


def damage(path: str) -> None:
    """Change one byte in the middle: the file opens, and is another one."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x40]))


def refusals(server: Server, result: str = "refused") -> float:
    return server.metric("howdah_reloads_total", result=result)


def test_a_damaged_version_never_serves_until_it_is_repaired(start, place, base):
    server = start(place=place, limits=FAST)
    # Published, then damaged before the server looks: current.json is moved last.
    publish_version(place, base, 2)
    wait_until(lambda: version_of(server) == 2)
    weights = str(place / "models" / "zoo" / "v=1" / "model.safetensors")
    shutil.copy(weights, place / "whole")
    damage(weights)
    config = config_of(str(place / "run-1"), str(place / "models"))
    pointer = place / "models" / "zoo" / "current.json"
    current = json.loads(pointer.read_text())
    point_to(pointer, {**current, "version": 1})
    with Load(server, 2) as load:
        wait_until(lambda: refusals(server) == 1)
        looks = load.answers
        wait_until(lambda: load.answers > looks + 100)  # it is not tried again meanwhile
    assert refusals(server) == 1 and load.wrong == [] and load.versions == {2}
    assert "v=1 is not served, zoo v=2 stays: a published file is damaged" in server.output()
    shutil.copy(place / "whole", weights)
    wait_until(lambda: version_of(server) == 1)
    republish(config, 2)
    wait_until(lambda: version_of(server) == 2)


def point_to(pointer, content: dict) -> None:
    fresh = pointer.with_name("current.fresh")
    fresh.write_text(json.dumps(content))
    os.replace(fresh, pointer)


def test_a_version_with_other_labels_and_a_pointer_that_is_away_change_nothing(start, place, base):
    server = start(place=place, limits=FAST)
    publish_version(place, base, 2, labels=["cat", "dog", "cow"], answers="cow")
    wait_until(lambda: refusals(server, "labels changed") == 1)
    assert version_of(server) == 1
    assert "the new version has other labels" in server.output()

    pointer = place / "models" / "zoo" / "current.json"
    pointer.write_text("{ not JSON")
    wait_until(lambda: server.metric("howdah_pointer_errors_total") >= 3)
    assert version_of(server) == 1
    assert server.output().count("current.json cannot be read") == 1
    pointer.unlink()
    publish_version(place, base, 3)
    wait_until(lambda: version_of(server) == 3)
    assert "current.json can be read again" in server.output()


@pytest.mark.full
def test_a_version_that_is_named_stays(start, zoo, base):
    server = start("--model", "zoo/v=1", limits=FAST)
    assert version_of(server) == 1
    assert server.ask("/v2/models/zoo")[1]["versions"] == ["1"]


def test_an_export_is_served_by_its_runs_name(start, zoo):
    server = start("--model", str(zoo / "run-1"))
    status, answer = server.ask(body={"text": "the cat"})
    assert (status, answer["model"], answer["version"]) == (200, "zoo", None)
    status, about = server.ask("/v2/models/zoo")
    assert (status, about["versions"]) == (200, [])
    assert server.ask("/v2/models/zoo/versions/1")[0] == 404
