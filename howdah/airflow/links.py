"""Links of a task in Airflow's pages: pushed as soon as their URLs are known.

Airflow asks an operator for its links when the task has ended. A URL that is pushed to a link's
XCom key before that is shown while the task runs or is deferred, and stays after a failure.
"""

from __future__ import annotations

import howdah.airflow.required

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom
from airflow.sdk.types import TaskInstanceKey

from howdah.core import paths
from howdah.run_files import REPORT

_LOGGED_RUN = re.compile(r"MLflow run: ([0-9a-f]{32})$")


class PushedLink(BaseOperatorLink):
    """A link whose URL the operator, or its trigger, pushes."""

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """The URL that was pushed, or "" before that."""
        return XCom.get_value(ti_key=ti_key, key=self.xcom_key) or ""


class ApplicationLink(PushedLink):
    """The application in YARN's ResourceManager."""

    name = "YARN application"
    xcom_key = "howdah_link_application"


class LogsLink(PushedLink):
    """The logs of the application's driver, which link to those of its containers."""

    name = "Logs on YARN"
    xcom_key = "howdah_link_logs"


class JobPageLink(PushedLink):
    """The job's own page: ranks, loss, events."""

    name = "Training job"
    xcom_key = "howdah_link_job"


class ReportLink(PushedLink):
    """The run directory with its report."""

    name = "Report"
    xcom_key = "howdah_link_report"


class DriftLink(PushedLink):
    """The page of a day's drift."""

    name = "Drift"
    xcom_key = "howdah_link_drift"


class MlflowLink(PushedLink):
    """The run in MLflow."""

    name = "MLflow run"
    xcom_key = "howdah_link_mlflow"


def push(where: Mapping[str, Any], link: type[PushedLink], url: str | None) -> None:
    """Set the URL of a task's link.

    Args:
        where: dag_id, run_id, task_id and map_index of the task.
        link: the link's class.
        url: the URL; None: the link is not shown.
    """
    XCom.set(key=link.xcom_key, value=url or "", **where)


def push_meanwhile(
    where: Mapping[str, Any], link: type[PushedLink], url: str | None, log: Any
) -> None:
    """Set a link's URL while a command runs. The command goes on without it: a failure is only
    logged."""
    try:
        push(where, link, url)
    except (AirflowException, AirflowRuntimeError, OSError, TypeError) as error:
        log.warning("Airflow did not take the link %s: %s", link.name, error)


def application_page(manager: Any, application: str) -> str:
    """The ResourceManager's page of an application."""
    return f"{manager.urls[0]}/cluster/app/{application}"


def run_page(
    settings: Any, run_root: str, directory: str, *, conf: Any = None, report: bool = False
) -> str | None:
    """The page of a run directory; None: no server shows it.

    Args:
        settings: settings of the Connection; its `files_url` shows the files of `run_root`.
        directory: the run directory.
        conf: the cluster's HadoopConf: the NameNode has a page for each directory on HDFS.
        report: True once the report is written: link to it where a browser can show it.
    """
    if page := file_page(settings, run_root, directory):
        return f"{page}/{REPORT}" if report else f"{page}/"
    return directory_page(conf, directory) if conf is not None else None


def file_page(settings: Any, run_root: str, path: str) -> str | None:
    """The URL of a file below `run_root`; None: the path is elsewhere, or no server shows it."""
    inside = path.removeprefix(run_root.rstrip("/") + "/")
    if settings.files_url and inside != path:
        return f"{settings.files_url.rstrip('/')}/{quote(inside)}"
    return None


def directory_page(conf: Any, directory: str) -> str | None:
    """The NameNode's page of a directory; None: the directory is not on HDFS.

    The link is to the directory, not to the report in it: WebHDFS makes a browser save files, and
    the directory exists from the start.

    Args:
        conf: the cluster's HadoopConf.
        directory: hdfs://, webhdfs:// or swebhdfs://.
    """
    scheme, authority = paths.scheme(directory), paths.authority(directory)
    authority = authority or conf.default_authority()
    if not paths.on_hdfs(directory) or not authority:
        return None
    if scheme == "hdfs":
        urls = conf.namenode_pages(authority)
    else:
        urls = conf.web_urls(authority, secure=scheme == "swebhdfs")
    return f"{urls[0]}/explorer.html#{quote(paths.inner(directory))}"


def tracking_page(config: Mapping[str, Any]) -> str | None:
    """The MLflow server's pages; None: the run is not tracked on a server.

    Args:
        config: the run configuration, nested.
    """
    options = (config.get("tracking") or {}).get("mlflow") or {}
    server = str(options.get("uri") or "")
    if not server.startswith(("http://", "https://")):
        return None
    parts = urlsplit(server)
    host = parts.netloc.rpartition("@")[2]  # without user and password
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/") + "/"


def logged_run(line: str) -> str | None:
    """MLflow's id of the run in a line of rank 0; None: the line has none."""
    match = _LOGGED_RUN.search(line)
    return match and match.group(1)


def tracked_run(page: str | None, run_id: str | None) -> str | None:
    """The page of a run in MLflow; before the run's id is known, the server's.

    Args:
        page: the result of `tracking_page`.
        run_id: MLflow's id of the run.
    """
    return f"{page}#/runs/{run_id}" if page and run_id else page
