"""Jobs on a Kerberised YARN: a ticket, a keytab, another user, no ticket at all."""

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
