"""Checks whether YARN runs containers of different users as different users of their node.

It only does so with the LinuxContainerExecutor, and without Kerberos only if a setting says so.
Otherwise all run as the NodeManager's user: the protection of a job on its nodes (file modes of its
secrets and delegation tokens, the relay's check of its peer's user) then works against other users
of the machine, but not against other users of the cluster.

The executor is a setting of the NodeManagers. It is read from this machine's yarn-site.xml, else
from the ResourceManager's `/conf`, else from a NodeManager's.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping

from howdah.errors import HowdahError
from howdah.hadoop import web
from howdah.hadoop.resourcemanager import ResourceManager

_EXECUTOR = "yarn.nodemanager.container-executor.class"
_LIMIT = "yarn.nodemanager.linux-container-executor.nonsecure-mode.limit-users"
_LOCAL_USER = "yarn.nodemanager.linux-container-executor.nonsecure-mode.local-user"
_DEFAULT_FILE = "yarn-default.xml"
_SECONDS = 3.0


def warning(manager: ResourceManager, user: str) -> str | None:
    """A warning if other users' containers run as the same user as the job's.

    Args:
        user: the submitter.
    Returns:
        None: users are separated, the cluster has no other users, or the executor is not known.
    """
    try:
        if not _has_others(manager, user):
            return None
        why = shared_user(manager)
    except HowdahError:  # a failed look-up must not stop a submission
        return None
    if why is None:
        return None
    return (
        f"containers of all users run as one user of their node ({why}): other users' jobs there"
        " can read this job's secrets and delegation tokens; docs/operations.md,"
        ' "Other users of the cluster"'
    )


def shared_user(manager: ResourceManager) -> str | None:
    """Why all containers of a node run as one user; None: they do not, or that is not known."""
    executor = _setting(manager, _EXECUTOR)
    if executor is None:
        return None
    if not executor.endswith("LinuxContainerExecutor"):
        return f"{_EXECUTOR} is {executor.rpartition('.')[2]}"
    if manager.conf.kerberos or (_setting(manager, _LIMIT) or "true").lower() == "false":
        return None
    local = _setting(manager, _LOCAL_USER) or "nobody"
    return f"without Kerberos the LinuxContainerExecutor runs them as {local}: {_LIMIT}"


def _has_others(manager: ResourceManager, user: str) -> bool:
    acls = (manager.conf.get("yarn.acl.enable") or "").strip().lower() == "true"
    if manager.conf.kerberos or acls:
        return True
    live = manager.applications(states="ACCEPTED,RUNNING")
    return any(app.get("user") != user for app in live)


def _setting(manager: ResourceManager, name: str) -> str | None:
    """A NodeManager's setting; None: not known.

    A default of this machine or of the ResourceManager is ignored, since the nodes may differ.
    """
    local = (manager.conf.get(name) or "").strip()
    if local:
        return local
    setting = _parse(manager.settings_page(name), name)
    if setting is not None and setting[1] != _DEFAULT_FILE:
        return setting[0]
    for node in manager.nodes()[:1]:
        setting = _parse(_node_page(manager, node, name), name)
        if setting is not None:
            return setting[0]
    return None


def _node_page(manager: ResourceManager, node: Mapping[str, object], name: str) -> str | None:
    """A NodeManager's /conf; None: it cannot be reached from here."""
    import requests

    address = str(node.get("nodeHTTPAddress") or "")
    if not address:
        return None
    secure = manager.conf.https_only("yarn")
    url = f"{'https' if secure else 'http'}://{address}/conf"
    try:
        answer = web.session(manager.conf, url).get(
            url, params={"name": name, **web.identity(manager.conf, manager.user)},
            headers={"Accept": "text/xml"}, timeout=_SECONDS, allow_redirects=False,
        )  # fmt: skip
    except (requests.RequestException, HowdahError):
        return None
    return answer.text if answer.status_code == 200 else None


def _parse(page: str | None, name: str) -> tuple[str, str] | None:
    """Value and source file of a setting in a page of Hadoop's /conf; None: the page lacks it."""
    if page is None:
        return None
    try:
        root = ElementTree.fromstring(page)
    except ElementTree.ParseError:
        return None
    for item in root.iter("property"):
        value = (item.findtext("value") or "").strip()
        if item.findtext("name") == name and value:
            sources = [source.text or "" for source in item.findall("source")]
            return value, (sources[0].rpartition("/")[2] if sources else "")
    return None
