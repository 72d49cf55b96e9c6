"""Jobs on a Kerberised YARN: a ticket, a keytab, another user, no ticket at all."""

import subprocess

import pytest

from tests.yarn_jobs import LIMIT, Jobs, place_data, settings

pytestmark = [pytest.mark.hadoop, pytest.mark.mpi]


@pytest.fixture
def jobs(secure_cluster, secure_dir, tiny_model_dir, tmp_path, monkeypatch):
    """The command line; its commands are who they say they are."""
    for key, value in secure_cluster.env.items():
        monkeypatch.setenv(key, value)
    for key in ("HADOOP_USER_NAME", "HADOOP_PROXY_USER"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/own")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(secure_cluster.keytab("alice")))
    for user in ("alice", "bob"):
        secure_cluster.make_home(user)
    place_data(secure_dir, tiny_model_dir)
    made = Jobs(secure_cluster, tmp_path)
    made.url = secure_dir
    yield made
    secure_cluster.end_applications()


def ticket(jobs, user, name):
    """Environment of a command with a user's ticket."""
    cache = f"FILE:{jobs.directory}/{name}"
    argv = ["kinit", "-c", cache, "-kt", jobs.cluster.keytab(user), jobs.cluster.principal(user)]
    subprocess.run(argv, check=True, env=jobs.cluster.env)
    return {"KRB5CCNAME": cache, "KRB5_CLIENT_KTNAME": "/none"}


def none(jobs):
    return {"KRB5CCNAME": f"FILE:{jobs.directory}/none", "KRB5_CLIENT_KTNAME": "/none"}


def finished(jobs, config, **env):
    told = jobs.json("submit", "--config", config, "--wait", **env)
    assert told["status"]["final_status"] == "SUCCEEDED"
    return told


def test_without_a_ticket_the_error_says_kinit(jobs):
    config = jobs.config(settings(jobs.url, "nobody"))
    told = jobs.json(
        "submit", "--config", config, code=5, HOWDAH_STORAGE_RETRY_SECONDS="0", **none(jobs)
    )
    assert told["error"] == "NotAuthenticated", told
    assert "kinit" in told["remedy"]


def test_a_ticket_is_enough_and_the_job_reads_by_its_tokens(jobs):
    env = ticket(jobs, "alice", "alice")
    told = finished(jobs, jobs.config(settings(jobs.url, "ticket")), **env)
    assert told["status"]["user"] == "alice"
    assert jobs.json("kill", told["application"], **env)["state"] == "FINISHED"


@pytest.mark.full
def test_a_keytab_is_all_it_takes(jobs):
    yarn = {
        "keytab": str(jobs.cluster.keytab("alice")),
        "principal": jobs.cluster.principal("alice"),
    }
    told = finished(jobs, jobs.config(settings(jobs.url, "keytab", yarn=yarn)), **none(jobs))
    assert told["status"]["user"] == "alice"


@pytest.mark.full
def test_the_proxied_user_owns_the_application(jobs):
    jobs.cluster.keytab("bob")  # the realm must know bob
    held = settings(jobs.url, "proxied", run={"user": "bob"})
    env = ticket(jobs, jobs.cluster.plan.user, "super")  # who may impersonate
    told = finished(jobs, jobs.config(held), **env)
    assert told["status"]["user"] == "bob"


@pytest.mark.full
def test_acting_for_another_is_refused_by_name(jobs):
    held = settings(jobs.url, "refused", run={"user": "bob"})
    told = jobs.json(
        "submit", "--config", jobs.config(held), code=5, HOWDAH_STORAGE_RETRY_SECONDS="0",
        **ticket(jobs, "alice", "alice"),
    )  # fmt: skip
    assert "bob" in str(told), told


@pytest.mark.full
def test_only_who_may_can_kill(jobs):
    held = settings(jobs.url, "mine", training={"max_steps": 100_000})
    alice, bob = ticket(jobs, "alice", "alice"), ticket(jobs, "bob", "bob")
    application = jobs.json("submit", "--config", jobs.config(held), **alice)["application"]
    refused = jobs.json("kill", application, code=5, **bob)
    assert refused["error"] == "PermissionDenied", refused
    assert jobs.json("kill", application, **alice)["state"] == "KILLED"
    jobs.wait_until_gone(application, LIMIT)
