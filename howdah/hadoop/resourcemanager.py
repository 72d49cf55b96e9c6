"""YARN's ResourceManager by its REST interface: applications, queues and nodes, without Java.

Works from any machine that reaches the ResourceManager's web port, without a route to containers.
High availability, HTTPS and Kerberos are configured by yarn-site.xml; proxy variables of the
environment are ignored.
"""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from howdah.errors import (
    ClusterError,
    ConfigError,
    HowdahError,
    NotAuthenticated,
    NotFound,
    PermissionDenied,
)
from howdah.hadoop import conf as settings
from howdah.hadoop import queue_access, web
from howdah.hadoop.conf import HadoopConf

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
_PAIR_SECONDS = 5.0
"""Limit of the first answer where there is another ResourceManager to ask; doubled each time."""
PATIENCE_SECONDS = 30.0
"""How long to retry while a ResourceManager restarts or fails over."""
APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")
"""An application's id, also within a line."""
OVER = ("FINISHED", "FAILED", "KILLED")
"""States of an application that has ended."""
LIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
"""All others, as `ResourceManager.applications(states=)` takes them."""
_JOB_PAGE = "pages/job/"
"""Path of a job's page below the application's proxied address (jobs/driver/driver.py)."""
_PAUSE_SECONDS = 0.5
_JSON = "application/json"
_REMEDY = "check that it runs, and yarn.resourcemanager.webapp.address in yarn-site.xml"


def web_urls(conf: HadoopConf) -> list[str]:
    """Addresses ("http://host:port") of the ResourceManagers' REST interface, one each.

    Raises:
        ConfigError: yarn-site.xml does not have them.
    """
    kind, key, port = ("http", "address", 8088)
    if conf.https_only("yarn"):
        kind, key, port = ("https", "https.address", 8090)
    ids: list[str | None] = [None]
    if (conf.get("yarn.resourcemanager.ha.enabled") or "").strip().lower() == "true":
        names = (conf.get("yarn.resourcemanager.ha.rm-ids") or "").split(",")
        ids = [name.strip() for name in names if name.strip()] or [None]
    urls = []
    for member in ids:
        end = f".{member}" if member else ""
        address = (conf.get(f"yarn.resourcemanager.webapp.{key}{end}") or "").strip()
        host = (conf.get(f"yarn.resourcemanager.hostname{end}") or "").strip()
        # Hadoop's default is ${yarn.resourcemanager.hostname}:8088, and 0.0.0.0 for the host
        address = address.replace("${yarn.resourcemanager.hostname}", host)
        if not address and host:
            address = f"{host}:{port}"
        if not address or address.startswith("0.0.0.0"):
            raise ConfigError(
                "the ResourceManager's address is not known",
                where=conf.directory or "HADOOP_CONF_DIR (not set)",
                expected=f"yarn.resourcemanager.webapp.{key}{end}, or"
                f" yarn.resourcemanager.hostname{end}, in yarn-site.xml",
                remedy="set HADOOP_CONF_DIR to the directory of the cluster's yarn-site.xml",
            )
        urls.append(f"{kind}://{address}")
    return urls


class ResourceManager:
    """The cluster's active ResourceManager.

    Args:
        conf: of `conf.load(names=conf.YARN_FILES)`; None: loaded.
        user: the user to impersonate (`run.user`); None: $HADOOP_PROXY_USER, else the current user.
        urls: addresses of all ResourceManagers ("http://host:8088"); None: from the settings.
        patience: seconds to retry while none answers.
    """

    def __init__(
        self,
        conf: HadoopConf | None = None,
        *,
        user: str | None = None,
        urls: Sequence[str] | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.conf = conf or settings.load(names=settings.YARN_FILES)
        self.urls = list(urls) if urls else web_urls(self.conf)
        self.user = user
        self.patience = patience
        self._http: Any = None

    # ------------------------------------------------------------------------- applications
    def application(self, application: str) -> dict[str, Any]:
        """YARN's report of one: id, state, finalStatus, diagnostics, trackingUrl, queue...

        Raises:
            NotFound: YARN has never had it, or has forgotten it.
            ClusterError: no ResourceManager answers, or it has not recovered its applications.
        """
        return self._recovered(lambda: self._call("GET", f"apps/{application}")["app"])

    def page(self, report: Mapping[str, Any]) -> str:
        """The URL of an application's page, also before its ApplicationMaster runs."""
        return report.get("trackingUrl") or f"{self.urls[0]}/proxy/{report['id']}/"

    def job_page(self, report: Mapping[str, Any]) -> str:
        """The URL of a training job's own page behind YARN's proxy, also before the job runs; after
        its end the URL of YARN's page of the application.

        The tracking URL of a running job is skein's page, which fails with newer Javas.
        """
        if report.get("state") not in LIVE.split(","):
            return self.page(report)
        url, proxied = str(report.get("trackingUrl") or ""), f"/proxy/{report['id']}"
        if proxied not in url:
            url = self.urls[0] + proxied
        return f"{url.rstrip('/')}/{_JOB_PAGE}"

    def applications(self, **filters: str) -> list[dict[str, Any]]:
        """Applications, newest first.

        Args:
            filters: YARN's: states, applicationTags, user, queue (each comma separated). Any user
                can set any tag, so to find one's own application give `user` too.
        """

        def ask() -> list[dict[str, Any]]:
            answer = self._call("GET", "apps", params=filters).get("apps") or {}
            user = filters.get("user")
            return [
                app for app in answer.get("app") or [] if user is None or app.get("user") == user
            ]

        return sorted(self._recovered(ask), key=lambda app: app.get("startedTime", 0), reverse=True)

    def _recovered(self, ask: Callable[[], Any]) -> Any:
        """What `ask` finds. A ResourceManager that starts answers before it has recovered its
        applications, so an empty answer counts only once it reports itself active.
        """
        try:
            if applications := ask():
                return applications
        except NotFound:
            pass
        until = time.monotonic() + self.patience
        while (state := str(self.info().get("haState") or "ACTIVE")) != "ACTIVE":
            if time.monotonic() > until:
                raise ClusterError(
                    "YARN's ResourceManager is starting, and has not recovered its applications",
                    where=self.urls[0],
                    got=state,
                )
            time.sleep(_PAUSE_SECONDS)
        return ask()  # again: it may have become active in between

    def attempts(self, application: str) -> list[dict[str, Any]]:
        """Its attempts in order: appAttemptId, containerId, nodeHttpAddress, logsLink."""
        answer = self._call("GET", f"apps/{application}/appattempts")
        entries = (answer.get("appAttempts") or {}).get("appAttempt") or []
        return sorted(entries, key=lambda attempt: attempt.get("id", 0))

    def containers(self, application: str, attempt: str) -> list[dict[str, Any]]:
        """Running containers of an attempt: containerId, nodeHttpAddress, logUrl, nodeId."""
        answer = self._call("GET", f"apps/{application}/appattempts/{attempt}/containers")
        entries = answer.get("container") or (answer.get("containers") or {}).get("container")
        return [entries] if isinstance(entries, dict) else entries or []

    def kill(self, application: str, why: str = "") -> str:
        """Ask YARN to kill one; its state then (KILLED, or the final state that it had before).

        YARN may take a moment: the returned state may still be a running one.

        Raises:
            NotFound, PermissionDenied, ClusterError: as the ResourceManager answers.
        """
        body = {"state": "KILLED", **({"diagnostics": why} if why else {})}
        try:
            return self._call("PUT", f"apps/{application}/state", body=body)["state"]
        except ClusterError:
            state = self.application(application)["state"]
            if state in OVER:
                return state
            raise

    def set_priority(self, application: str, priority: int) -> int:
        """Set an application's priority; the new value, which a queue or the cluster may limit."""
        answer = self._call("PUT", f"apps/{application}/priority", body={"priority": priority})
        return int(answer.get("priority", priority))

    # ------------------------------------------------------------------------ nodes, queues
    def info(self) -> dict[str, Any]:
        """The ResourceManager itself: state, haState, resourceManagerVersion, startedOn."""
        return self._call("GET", "info").get("clusterInfo") or {}

    def nodes(self) -> list[dict[str, Any]]:
        """Running NodeManagers: id, nodeHostName, totalResource, availMemoryMB, nodeLabels..."""
        answer = self._call("GET", "nodes", params={"states": "running"})
        return (answer.get("nodes") or {}).get("node") or []

    def queues(self) -> list[dict[str, Any]]:
        """All queues, parents too, as the scheduler reports them; leaves have no children."""
        return list(queue_access.every(self._queue_tree()))

    def _queue_tree(self) -> dict[str, Any]:
        top = self._call("GET", "scheduler")["scheduler"]["schedulerInfo"]
        return top.get("rootQueue", top)

    def refused_submission(self, queue: str, user: str) -> str | None:
        """Why a user may not submit to a queue; None: allowed or unknown: YARN may still refuse."""
        enforced = self._setting("yarn.acl.enable")
        if enforced == "false":
            return None
        query = {"user": user, "queue-acl-type": "SUBMIT_APPLICATIONS"}
        path = f"queues/{queue}/access"
        try:
            # As XML: Hadoop 3.5 fails to write this one answer as JSON.
            text = self._answer("GET", path, params=query, accept="application/xml").text
            access = ElementTree.fromstring(text)
        except (ClusterError, NotFound, PermissionDenied, ElementTree.ParseError):
            # Only the queue's administrators may ask this, but all users can read its lists.
            listed = queue_access.refused(self._queue_tree(), queue, user)
            return listed if enforced == "true" else None
        if (access.findtext("allowed") or "true").strip().lower() == "true":
            return None
        return access.findtext("diagnostics") or "its access list does not have the user"

    def labels(self) -> list[str]:
        """The cluster's node labels."""
        answer = self._call("GET", "get-node-labels") or {}
        answer = answer.get("nodeLabelsInfo") or answer
        entries = answer.get("nodeLabelInfo")
        entries = [entries] if isinstance(entries, Mapping) else entries or []
        return [label["name"] for label in entries]

    def clock(self) -> float:
        """Seconds since 1970 by the ResourceManager's clock (whole ones, of the HTTP Date)."""
        from email.utils import parsedate_to_datetime

        return parsedate_to_datetime(self._answer("GET", "info").headers["Date"]).timestamp()

    def settings_page(self, name: str) -> str | None:
        """The ResourceManager's /conf page of a setting, as XML; None: it does not answer.

        Older versions write all settings at once.
        """
        try:
            return self._answer("GET", "/conf", params={"name": name}, accept="text/xml").text
        except (ClusterError, NotFound, PermissionDenied):
            return None

    def _setting(self, name: str) -> str | None:
        """A setting of the ResourceManager itself; None: unknown."""
        text = self.settings_page(name)
        try:
            page = ElementTree.fromstring(text or "")
        except ElementTree.ParseError:
            return None
        values = [p.findtext("value") for p in page.iter("property") if p.findtext("name") == name]
        return (values[-1] or "").strip().lower() if values else None

    # ------------------------------------------------------------------------------ calling
    def _call(self, method: str, path: str, *, params=None, body=None) -> dict[str, Any]:
        answer = self._answer(method, path, params=params, body=body)
        return answer.json() if answer.content else {}

    def _answer(
        self, method: str, path: str, *, params=None, body=None, accept: str = _JSON
    ) -> Any:
        """The answer of the active one; while none answers, retry for `patience` seconds."""
        until = time.monotonic() + self.patience
        seconds = ANSWER_SECONDS if len(self.urls) == 1 else _PAIR_SECONDS
        while True:
            causes = []
            for url in list(self.urls):
                answer, cause = self._try(method, url, path, params, body, accept, seconds)
                if answer is not None:
                    self.urls = sorted(self.urls, key=lambda other: other != url)  # it comes first
                    return answer
                causes.append(f"{url}: {cause}")
            is_slow = seconds < ANSWER_SECONDS and "timed out" in str(causes)
            if time.monotonic() > until and not is_slow:
                raise ClusterError(
                    "YARN's ResourceManager does not answer",
                    where=", ".join(self.urls),
                    got="; ".join(causes),
                    remedy=_REMEDY,
                )
            seconds = min(2 * seconds, ANSWER_SECONDS)
            time.sleep(_PAUSE_SECONDS)

    def _try(
        self, method: str, url: str, path: str, params, body, accept: str, seconds: float
    ) -> tuple[Any, str]:
        """One request to one ResourceManager: its answer, or why it cannot be used now."""
        import requests

        if self._http is None:
            self._http = web.session(self.conf, self.urls[0])
        # A proxy may serve it below a path.
        address = f"{url}{path}" if path.startswith("/") else f"{url}/ws/v1/cluster/{path}"
        try:
            answer = self._http.request(
                method,
                address,
                params={**(params or {}), **web.identity(self.conf, self.user)},
                json=body,
                headers={"Accept": accept},
                timeout=(min(CONNECT_SECONDS, seconds), seconds),
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as error:
            if not web.is_distrust(error):
                return None, _short(error)
            raise ClusterError(
                "the ResourceManager's certificate is not trusted",
                where=url,
                got=str(error),
                remedy=web.TRUST_REMEDY,
            ) from None
        except requests.RequestException as error:
            return None, _short(error)
        if answer.status_code == 307 or "Refresh" in answer.headers:
            return None, "is on standby"
        if answer.status_code in (502, 503, 504) and not _remote(answer):
            return None, f"HTTP {answer.status_code}"
        if answer.status_code >= 300:
            raise _refusal(answer, address)
        if answer.content and accept not in answer.headers.get("Content-Type", ""):
            return None, "its answer is not the ResourceManager's"
        return answer, ""


def _remote(answer: Any) -> dict[str, Any]:
    """The RemoteException of an answer; {} if it has none."""
    try:
        remote = answer.json().get("RemoteException")
    except (ValueError, AttributeError):
        return {}
    return remote if isinstance(remote, dict) else {}


def _refusal(answer: Any, where: str) -> Exception:
    """The error for an answer with an HTTP error status."""
    text = _remote(answer).get("message") or answer.reason or ""
    where = urlsplit(where)._replace(query="").geturl()
    if answer.status_code == 401 and "Basic" in answer.headers.get("WWW-Authenticate", ""):
        return NotAuthenticated(
            "this is a password-protected gateway (such as Knox), not the ResourceManager",
            where=where,
            expected="the ResourceManagers' own web addresses, or a proxy that passes paths and"
            " Kerberos on unchanged",
            remedy="see yarn.resourcemanager.webapp.address in the cluster's own yarn-site.xml",
        )
    if answer.status_code == 401:
        return NotAuthenticated(
            "the ResourceManager requires Kerberos, and accepts none of your tickets",
            where=where,
            got=f"HTTP 401 {text}".strip(),
            remedy="kinit, or set yarn.keytab and yarn.principal",
        )
    if answer.status_code == 403:
        return PermissionDenied(
            "the ResourceManager does not allow this request",
            where=where,
            got=text,
            remedy="ask to be added to the queue's or the application's access list",
        )
    if answer.status_code == 404:
        return NotFound("YARN has no such application or resource", where=where, got=text)
    return ClusterError(
        "the ResourceManager refused the request",
        where=where,
        got=f"HTTP {answer.status_code} {text}",
    )


def _short(error: Exception) -> str:
    """The cause inside requests' and urllib3's wrappings."""
    inner: Any = error
    for _ in range(5):
        below = getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)
        if not isinstance(below, Exception):
            break
        inner = below
    return str(inner).rpartition(": ")[2] or type(inner).__name__


def kill_and_wait(
    manager: ResourceManager,
    application: str,
    why: str,
    *,
    seconds: float,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Kill an application and wait until YARN confirms that it is over.

    Args:
        why: for YARN's diagnostics.
        seconds: how long to wait for YARN.
        pause: sleeps between two requests.
    Returns:
        Its state: FINISHED, FAILED or KILLED; another one if YARN has not confirmed the end within
        `seconds`; "UNKNOWN" if YARN has forgotten it.
    """
    until = time.monotonic() + seconds
    state = "UNKNOWN"
    while True:
        try:
            state = manager.kill(application, why)
        except NotFound:  # also while the ResourceManager starts
            if _forgotten(manager, application):
                return state
        except PermissionDenied:  # no later answer will be another one
            raise
        except HowdahError:
            if time.monotonic() > until:
                raise
        if state in OVER or time.monotonic() > until:
            return state
        pause(_PAUSE_SECONDS)


def _forgotten(manager: ResourceManager, application: str) -> bool:
    """True only if YARN answers that it does not know the application."""
    try:
        manager.application(application)
    except NotFound:
        return True
    except HowdahError:
        return False
    return False
