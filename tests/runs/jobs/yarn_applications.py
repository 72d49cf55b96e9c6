"""A YARN application without any framework: one container that runs a shell command."""

import json
import time

from tools.minicluster.variants import web

LIMIT = 120.0  # seconds; a test that hangs waits longer than this


def rest(cluster, method: str, path: str, body: dict | None = None) -> dict:
    """A call of the ResourceManager's REST interface; {} for an empty answer."""
    connection = web.connection(cluster.plan, f"{cluster.active('resourcemanager')}-http")
    try:
        connection.request(
            method,
            f"/ws/v1/cluster/{path}?user.name={cluster.plan.user}",
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return json.loads(text) if text else {}
    finally:
        connection.close()


def submit(cluster, command: str, *, queue: str = "default") -> str:
    """Submit an application whose master is `command`; its id.

    The command does not use YARN's protocol: the application runs as long as it does, and counts as
    failed afterwards.
    """
    application = rest(cluster, "POST", "apps/new-application")["application-id"]
    rest(
        cluster,
        "POST",
        "apps",
        {
            "application-id": application,
            "application-name": "shell",
            "application-type": "SHELL",
            "queue": queue,
            "max-app-attempts": 1,
            "resource": {"memory": 256, "vCores": 1},
            "am-container-spec": {"commands": {"command": command}},
        },
    )
    return application


def state(cluster, application: str) -> str:
    return rest(cluster, "GET", f"apps/{application}/state")["state"]


def wait_for(what, cause) -> None:
    """Wait until what() is true; cause() is the message if it never is."""
    deadline = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < deadline, cause()
        time.sleep(0.1)


def wait_for_state(cluster, application: str, *states: str) -> None:
    wait_for(lambda: state(cluster, application) in states, lambda: state(cluster, application))
