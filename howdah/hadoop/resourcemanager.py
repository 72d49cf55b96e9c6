"""YARN's ResourceManager by its REST interface: applications, queues and nodes, without Java.

Works from any machine that reaches the ResourceManager's web port; no route to an application's
own containers is needed. A pair of them, HTTPS and Kerberos are as yarn-site.xml says; proxy
variables of the environment are not looked at.
"""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from howdah.errors import ClusterError, ConfigError, NotAuthenticated, NotFound, PermissionDenied
from howdah.hadoop import conf as settings
from howdah.hadoop import queue_access, web
from howdah.hadoop.conf import HadoopConf

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
PATIENCE_SECONDS = 30.0
"""How long a ResourceManager is waited for that restarts, or whose partner takes over."""
OVER = ("FINISHED", "FAILED", "KILLED")
"""States of an application that has ended."""
LIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
"""All others, as `ResourceManager.applications(states=)` takes them."""
_JOB_PAGE = "pages/job/"
"""Where a job's own page lies below the application's proxied address (yarn/driver.py)."""
_PAUSE_SECONDS = 0.5
_JSON = "application/json"
_REMEDY = "look whether it runs, and at yarn.resourcemanager.webapp.address in yarn-site.xml"


def web_urls(conf: HadoopConf) -> list[str]:
    """Addresses ("http://host:port") of the ResourceManagers' REST interface, one each.

    Raises:
        ConfigError: yarn-site.xml does not tell.
    """
    secure = (conf.get("yarn.http.policy") or "HTTP_ONLY").strip().upper() == "HTTPS_ONLY"
    kind, key, port = ("http", "address", 8088)
    if secure:
        kind, key, port = ("https", "https.address", 8090)
    ids: list[str | None] = [None]
    if (conf.get("yarn.resourcemanager.ha.enabled") or "").strip().lower() == "true":
        ids = [n.strip() for n in (conf.get("yarn.resourcemanager.ha.rm-ids") or "").split(",")]
    found = []
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
        found.append(f"{kind}://{address}")
    return found


class ResourceManager:
    """The cluster's ResourceManager, whichever of a pair is active.

    Args:
        conf: of `conf.load(names=conf.YARN_FILES)`; none: loaded.
        user: whom to act for (`run.user`); none: $HADOOP_PROXY_USER, else oneself.
        urls: its addresses, both of a pair ("http://host:8088"); none: as the settings say.
        patience: seconds to try again while none answers.
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
        self._made: Any = None

    # ------------------------------------------------------------------------- applications
    def application(self, application: str) -> dict[str, Any]:
        """What YARN knows of one: id, state, finalStatus, diagnostics, trackingUrl, queue...

        Raises:
            NotFound: YARN has never had it, or has forgotten it.
            ClusterError: none of the ResourceManagers answers, or it still starts.
        """
        return self._recovered(lambda: self._call("GET", f"apps/{application}")["app"])

    def page(self, report: Mapping[str, Any]) -> str:
        """The URL of an application's page; before its master runs, where it will be."""
        told = report.get("trackingUrl")
        return told or f"{self.urls[0]}/proxy/{report['id']}/"

    def job_page(self, report: Mapping[str, Any]) -> str:
        """The URL of a training job's own page, behind YARN's proxy; before the job runs, where it
        will be, and after its end YARN's page of the application.

        While it runs, what YARN calls the application's page is skein's, which newer Javas fail to
        show.
        """
        if report.get("state") not in LIVE.split(","):
            return self.page(report)
        told, proxied = str(report.get("trackingUrl") or ""), f"/proxy/{report['id']}"
        if proxied not in told:
            told = self.urls[0] + proxied
        return f"{told.rstrip('/')}/{_JOB_PAGE}"

    def applications(self, **filters: str) -> list[dict[str, Any]]:
        """Applications, newest first.

        Args:
            filters: of YARN's: states, applicationTags, user, queue (each comma separated).
        """

        def ask() -> list[dict[str, Any]]:
            return (self._call("GET", "apps", params=filters).get("apps") or {}).get("app") or []

        found = self._recovered(ask)
        return sorted(found, key=lambda app: app.get("startedTime", 0), reverse=True)

    def _recovered(self, ask: Callable[[], Any]) -> Any:
        """What `ask` finds. One that starts answers before it has read what it knew: that it knows
        nothing of an application counts once it is active, as it says itself.
        """
        try:
            if found := ask():
                return found
        except NotFound:
            pass
        until = time.monotonic() + self.patience
        while (state := self._ha_state()) != "ACTIVE":
            if time.monotonic() > until:
                raise ClusterError(
                    "YARN's ResourceManager is starting, and has not recovered its applications",
                    where=self.urls[0],
                    got=state,
                    remedy="wait; its log says what it does",
                )
            time.sleep(_PAUSE_SECONDS)
        return ask()  # again: it may have become active in between

    def _ha_state(self) -> str:
        told = self._call("GET", "info").get("clusterInfo") or {}
        return str(told.get("haState") or "ACTIVE")

    def attempts(self, application: str) -> list[dict[str, Any]]:
        """Its attempts, the first first: appAttemptId, containerId, nodeHttpAddress, logsLink."""
        told = self._call("GET", f"apps/{application}/appattempts")
        found = (told.get("appAttempts") or {}).get("appAttempt") or []
        return sorted(found, key=lambda attempt: attempt.get("id", 0))

    def containers(self, application: str, attempt: str) -> list[dict[str, Any]]:
        """Containers of an attempt that run: containerId, nodeHttpAddress, logUrl, nodeId."""
        told = self._call("GET", f"apps/{application}/appattempts/{attempt}/containers")
        found = told.get("container") or (told.get("containers") or {}).get("container") or []
        return [found] if isinstance(found, dict) else found

    def kill(self, application: str, why: str = "") -> str:
        """Ask YARN to end one; its state then (KILLED, or what it had ended as before).

        YARN may take a moment: the state told may still be a running one.

        Raises:
            NotFound, PermissionDenied, ClusterError: as the ResourceManager says.
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
        """Set an application's priority; what it is then (a queue or cluster may bound it)."""
        told = self._call("PUT", f"apps/{application}/priority", body={"priority": priority})
        return int(told.get("priority", priority))

    # ------------------------------------------------------------------------ nodes, queues
    def info(self) -> dict[str, Any]:
        """The ResourceManager itself: state, haState, resourceManagerVersion, startedOn."""
        return self._call("GET", "info")["clusterInfo"]

    def nodes(self) -> list[dict[str, Any]]:
        """NodeManagers that run: id, nodeHostName, totalResource, availMemoryMB, nodeLabels..."""
        told = self._call("GET", "nodes", params={"states": "running"})
        return (told.get("nodes") or {}).get("node") or []

    def queues(self) -> list[dict[str, Any]]:
        """All queues (parents too), as the scheduler tells; those without children have none."""
        return list(queue_access.every(self._queue_tree()))

    def _queue_tree(self) -> dict[str, Any]:
        top = self._call("GET", "scheduler")["scheduler"]["schedulerInfo"]
        return top.get("rootQueue", top)

    def refused_submission(self, queue: str, user: str) -> str | None:
        """Why a user may not submit to a queue; None: allowed, or not told: YARN refuses later."""
        enforced = self._setting("yarn.acl.enable")
        if enforced == "false":
            return None
        asked = {"user": user, "queue-acl-type": "SUBMIT_APPLICATIONS"}
        path = f"queues/{queue}/access"
        try:
            # As XML: Hadoop 3.5 fails to write this one answer as JSON.
            text = self._answer("GET", path, params=asked, accept="application/xml").text
            told = ElementTree.fromstring(text)
        except (ClusterError, NotFound, PermissionDenied, ElementTree.ParseError):
            # Only the queue's administrators are told; its lists are for everybody to read.
            listed = queue_access.refused(self._queue_tree(), queue, user)
            return listed if enforced == "true" else None
        if (told.findtext("allowed") or "true").strip().lower() == "true":
            return None
        return told.findtext("diagnostics") or "its access list does not have the user"

    def labels(self) -> list[str]:
        """The cluster's node labels."""
        told = self._call("GET", "get-node-labels") or {}
        found = told.get("nodeLabelInfo") or (told.get("nodeLabelsInfo") or {}).get("nodeLabelInfo")
        found = [found] if isinstance(found, Mapping) else found or []
        return [label["name"] for label in found]

    def clock(self) -> float:
        """Seconds since 1970 by the ResourceManager's clock (whole ones: of its HTTP Date)."""
        from email.utils import parsedate_to_datetime

        return parsedate_to_datetime(self._answer("GET", "info").headers["Date"]).timestamp()

    def _setting(self, name: str) -> str | None:
        """A setting as the ResourceManager itself has it; None: it does not tell."""
        try:
            # As XML: old ones write nothing else, and all settings at once.
            text = self._answer("GET", "/conf", params={"name": name}, accept="text/xml").text
            told = ElementTree.fromstring(text)
        except (ClusterError, NotFound, PermissionDenied, ElementTree.ParseError):
            return None
        found = [p.findtext("value") for p in told.iter("property") if p.findtext("name") == name]
        return (found[-1] or "").strip().lower() if found else None

    # ------------------------------------------------------------------------------ calling
    def _call(self, method: str, path: str, *, params=None, body=None) -> dict[str, Any]:
        answer = self._answer(method, path, params=params, body=body)
        return answer.json() if answer.content else {}

    def _answer(
        self, method: str, path: str, *, params=None, body=None, accept: str = _JSON
    ) -> Any:
        """The active one's answer; while none answers, try again for `patience` seconds."""
        until = time.monotonic() + self.patience
        while True:
            causes = []
            for url in list(self.urls):
                answer, cause = self._try(method, url, path, params, body, accept)
                if answer is not None:
                    self._put_first(url)
                    return answer
                causes.append(f"{url}: {cause}")
            if time.monotonic() > until:
                raise ClusterError(
                    "YARN's ResourceManager does not answer",
                    where=", ".join(self.urls),
                    got="; ".join(causes),
                    remedy=_REMEDY,
                )
            time.sleep(_PAUSE_SECONDS)

    def _try(self, method: str, url: str, path: str, params, body, accept: str) -> tuple[Any, str]:
        """One request to one of them: its answer, or why this one cannot be used now."""
        import requests

        place = urljoin(f"{url}/ws/v1/cluster/", path)
        try:
            answer = self._session().request(
                method,
                place,
                params={**(params or {}), **web.identity(self.conf, self.user)},
                json=body,
                headers={"Accept": accept},
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as error:
            raise ClusterError(
                "the ResourceManager's certificate is not trusted",
                where=url,
                got=str(error),
                remedy="set REQUESTS_CA_BUNDLE to the certificate of its authority",
            ) from None
        except requests.RequestException as error:
            return None, _short(error)
        if answer.status_code == 307 or "Refresh" in answer.headers:
            return None, "is on standby"
        if answer.status_code in (502, 503, 504) and not _remote(answer):
            return None, f"HTTP {answer.status_code}"
        if answer.status_code >= 300:
            raise _refusal(answer, place)
        if answer.content and accept not in answer.headers.get("Content-Type", ""):
            return None, "its answer is not the ResourceManager's"
        return answer, ""

    def _put_first(self, url: str) -> None:
        if self.urls[0] != url:
            self.urls.remove(url)
            self.urls.insert(0, url)

    def _session(self) -> Any:
        if self._made is None:
            self._made = web.session(self.conf, self.urls[0])
        return self._made


def _remote(answer: Any) -> dict[str, Any]:
    """The RemoteException of an answer; {}: it has none."""
    try:
        told = answer.json().get("RemoteException")
    except (ValueError, AttributeError):
        return {}
    return told if isinstance(told, dict) else {}


def _refusal(answer: Any, where: str) -> Exception:
    """What an answer that is none means."""
    text = _remote(answer).get("message") or answer.reason or ""
    where = urlsplit(where)._replace(query="").geturl()
    if answer.status_code == 401:
        return NotAuthenticated(
            "the ResourceManager wants Kerberos, and takes none of ours",
            where=where,
            got=f"HTTP 401 {text}".strip(),
            remedy="kinit, or set yarn.keytab and yarn.principal",
        )
    if answer.status_code == 403:
        return PermissionDenied(
            "the ResourceManager does not allow it",
            where=where,
            got=text,
            remedy="ask for the right in the queue's or the application's access list",
        )
    if answer.status_code == 404:
        return NotFound("YARN does not know it", where=where, got=text)
    return ClusterError(
        "the ResourceManager refused", where=where, got=f"HTTP {answer.status_code} {text}"
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
