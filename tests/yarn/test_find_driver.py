"""How agents find their driver by its published file."""

import itertools

import pytest

from howdah.config.model import Config
from howdah.errors import ClusterError
from howdah.jobs import secret_file
from howdah.jobs.backend import DriverAddress
from howdah.jobs.net.signing import new_key
from howdah.yarn import skein_backend, spec

CONTAINER = "container_e17_1410901177871_0001_02_000005"


class Clock:
    """A clock that only `sleep` advances."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """Makes agents of one job, each with its clock."""
    secret = new_key()
    (tmp_path / spec.SECRET).write_text(secret_file.JobSecrets(secret=secret).text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTAINER_ID", CONTAINER)
    config = Config.model_validate({"run": {"directory": str(tmp_path / "run")}})

    def make():
        one = skein_backend.SkeinAgent(config)
        one.clock, one.secret = Clock(), secret
        monkeypatch.setattr(skein_backend, "time", one.clock)
        return one

    return make


def test_agents_read_their_drivers_file_at_different_times_and_not_often(agent):
    pauses = []
    for _ in range(20):
        one = agent()
        with pytest.raises(ClusterError, match="driver was not found") as caught:
            one.find_driver(120.0)
        assert "within 120 s" in caught.value.what
        pauses.append(one.clock.slept)
    assert all(30 < len(slept) < 100 for slept in pauses)
    assert all(slept[0] < 1.0 and max(slept) < 5.0 for slept in pauses)  # found soon
    looks = [round(moment, 2) for slept in pauses for moment in itertools.accumulate(slept)]
    assert len(set(looks)) > 0.8 * len(looks)


def driver_of(container, agent, monkeypatch):
    """The driver of an attempt that an agent is a container of."""
    monkeypatch.setenv("CONTAINER_ID", container)
    return skein_backend.SkeinDriver(agent._config)


def test_agents_with_the_secret_find_a_driver_that_has_published_its_address(
    agent, tmp_path, monkeypatch
):
    one, made = agent(), []
    path = tmp_path / "run" / "job" / "driver-application_1410901177871_0001-2.json"
    for _ in range(2):  # two driver processes: each has a key of its own
        driver = driver_of(CONTAINER, one, monkeypatch)
        published = DriverAddress("10.0.0.1", 4711, driver.session_key())
        driver.publish(published)
        assert one.find_driver(1.0) == published
        made.append(published.key)
    assert made[0] != made[1]
    text = path.read_text()
    for secret in (one.secret, *made):  # the file does not give its readers a key
        assert secret not in text

    path.write_text(text.replace("4711", "4712"))
    with pytest.raises(ClusterError, match="driver was not found") as caught:
        one.find_driver(1.0)
    assert "not signed by this job" in caught.value.got

    (tmp_path / spec.SECRET).write_text(secret_file.JobSecrets(secret=new_key()).text())
    path.write_text(text)
    with pytest.raises(ClusterError, match="driver was not found"):
        agent().find_driver(1.0)


def test_an_earlier_attempts_file_is_refused(agent, tmp_path, monkeypatch):
    one = agent()
    first = driver_of(CONTAINER.replace("_02_", "_01_"), one, monkeypatch)
    first.publish(DriverAddress("10.0.0.1", 4711, first.session_key()))
    (old,) = (tmp_path / "run" / "job").glob("driver-*-1.json")
    old.rename(old.with_name(old.name.replace("-1.json", "-2.json")))
    with pytest.raises(ClusterError, match="driver was not found") as caught:
        one.find_driver(1.0)
    assert "not signed by this job" in caught.value.got


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"status": "FAILED", "diagnostics": "a rank was lost"}', "FAILED"),
        ('{"status": "FAILED"}', None),
        ('{"status": "perhaps", "diagnostics": ""}', None),
        ("{half", None),
    ],
)
def test_an_earlier_attempts_verdict_counts_if_it_is_whole(tmp_path, text, status):
    config = Config.model_validate({"run": {"directory": str(tmp_path)}})
    assert skein_backend.verdict(config, "application_1_0001") is None
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "verdict-application_1_0001.json").write_text(text)
    ended = skein_backend.verdict(config, "application_1_0001")
    assert (ended and ended["status"]) == status
