"""Jobs on a Kerberised YARN: a ticket, a keytab, another user, no ticket at all."""

import os
import signal
from pathlib import Path

import pytest

from tests.runs.jobs.yarn_jobs import LIMIT, Jobs, access_lists, place_data, settings
from tests.support.hadoop.kerberos_users import become_alice, ticket

pytestmark = [pytest.mark.hadoop, pytest.mark.mpi]


@pytest.fixture
def jobs(secure_cluster, secure_dir, tiny_model_dir, tmp_path, monkeypatch):
    """The command line on a Kerberised cluster."""
    become_alice(secure_cluster, tmp_path, monkeypatch)
    place_data(secure_dir, tiny_model_dir)
    made = Jobs(secure_cluster, tmp_path)
    made.url = secure_dir
    yield made
    secure_cluster.end_applications()


def none(jobs):
    return {"KRB5CCNAME": f"FILE:{jobs.directory}/none", "KRB5_CLIENT_KTNAME": "/none"}


def environment(pid):
    return Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")


def finished(jobs, config, **env):
    answer = jobs.json("submit", "--config", config, "--wait", **env)
    assert answer["status"]["final_status"] == "SUCCEEDED"
    return answer


def test_without_a_ticket_the_error_says_kinit(jobs):
    config = jobs.config(settings(jobs.url, "no-ticket"))
    answer = jobs.json(
        "submit", "--config", config, code=5, HOWDAH_STORAGE_RETRY_SECONDS="0", **none(jobs)
    )
    assert answer["error"] == "NotAuthenticated", answer
    assert "kinit" in answer["remedy"]


@pytest.mark.full
def test_a_ticket_is_enough_and_the_job_reads_by_its_tokens(jobs):
    env = ticket(jobs.cluster, jobs.directory, "alice", "alice")
    answer = finished(jobs, jobs.config(settings(jobs.url, "ticket")), **env)
    assert answer["status"]["user"] == "alice"
    assert jobs.json("kill", answer["application"], **env)["state"] == "FINISHED"


def test_a_keytab_is_all_it_takes(jobs):
    yarn = {
        "keytab": str(jobs.cluster.keytab("alice")),
        "principal": jobs.cluster.principal("alice"),
    }
    answer = finished(jobs, jobs.config(settings(jobs.url, "keytab", yarn=yarn)), **none(jobs))
    assert answer["status"]["user"] == "alice"


@pytest.mark.full
def test_the_proxied_user_owns_the_application(jobs):
    jobs.cluster.keytab("bob")  # the realm must know bob
    held = settings(jobs.url, "proxied", run={"user": "bob"})
    superuser = jobs.cluster.plan.user  # who may impersonate
    env = ticket(jobs.cluster, jobs.directory, superuser, "super")
    answer = finished(jobs, jobs.config(held), **env)
    assert answer["status"]["user"] == "bob"


@pytest.mark.full
def test_acting_for_another_is_refused_by_name(jobs):
    held = settings(jobs.url, "refused", run={"user": "bob"})
    answer = jobs.json(
        "submit", "--config", jobs.config(held), code=5, HOWDAH_STORAGE_RETRY_SECONDS="0",
        **ticket(jobs.cluster, jobs.directory, "alice", "alice"),
    )  # fmt: skip
    assert "bob" in str(answer), answer


@pytest.mark.full
def test_only_users_with_the_right_can_kill(jobs):
    jobs.cluster.reconfigure("resourcemanager", access_lists(jobs.cluster.plan.user))
    held = settings(jobs.url, "mine", training={"max_steps": 100_000})
    alice, bob = (ticket(jobs.cluster, jobs.directory, who, who) for who in ("alice", "bob"))
    application = jobs.json("submit", "--config", jobs.config(held), **alice)["application"]
    refused = jobs.json("kill", application, code=5, **bob)
    assert refused["error"] == "PermissionDenied", refused
    assert jobs.json("kill", application, **alice)["state"] == "KILLED"
    jobs.wait_until_gone(application, LIMIT)


@pytest.mark.full
def test_a_job_whose_token_has_ended_says_so_at_once_and_a_submission_resumes_it(jobs):
    job = {"min_workers": 1, "max_workers": 2, "max_restarts": 100}
    held = settings(
        jobs.url, "no-token", job=job, training={"max_steps": 200_000, "num_train_epochs": 10**6}
    )
    del held["job"]["workers"]
    config, alice = jobs.config(held), ticket(jobs.cluster, jobs.directory, "alice", "alice")
    application = jobs.json("submit", "--config", config, **alice)["application"]
    jobs.wait_for_step(application, 8)
    ranks = {
        pid: dict(word.split("=", 1) for word in environment(pid) if word)
        for pid, words in jobs.processes(application).items()
        if "howdah.training" in words
    }
    held_by_rank = {one["HADOOP_TOKEN_FILE_LOCATION"] for one in ranks.values()}
    for path in held_by_rank:  # of one token, which is cancelled for all
        jobs.cluster.run("hdfs", "fetchdt", "--cancel", path, env=alice, check=False)
    os.kill(min(ranks), signal.SIGKILL)
    status = jobs.wait_for_end(application, 60)
    assert status["final_status"] == "FAILED", status
    assert "delegation token" in str(status) and "submit again" in str(status), status
    again = jobs.json("submit", "--config", config, **alice)["application"]
    jobs.wait_for_step(again, 12)  # by a new token
    jobs.json("kill", again, **alice)
    jobs.wait_until_gone(again, LIMIT)
