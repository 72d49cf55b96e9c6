"""Alerts: one JSON object to a command's stdin, when something needs a look.

Sending changes nothing else: whatever fails in it is a line in the log. The same event is not sent
twice (a failed attempt that fails again in the same way is the same event): the first process that
sends it leaves a marker, `<directory>/alerts/<kind>-<hash>.json`, which holds what was sent. A
job's driver and the command that waits for it thus send one alert, not two. The event is news again
after 12 hours, so that a nightly command which fails every night is heard of every day, and after
the command has succeeded in between: a success removes the markers that the command has left.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from howdah import redact, storage
from howdah.config.model import Config
from howdah.config.options.alerts import KINDS, AlertKind
from howdah.core import shorten
from howdah.core.processes import session_members
from howdah.core.user import user_and_host
from howdah.errors import (
    AlreadyExists,
    CheckFailed,
    HowdahError,
    Interrupted,
    NotFound,
    StorageError,
    StorageFull,
    Terminated,
    UsageError,
)
from howdah.process import isolation
from howdah.run_files import RUN_JSON

FORMAT_VERSION = 1
_MOST_BYTES = 32_000
"""An alert's size: what chats and mail gateways take."""
_DIRECTORY = "alerts"
_NEWS_AGAIN_SECONDS = 12 * 3600.0
"""Seconds after which the same event is sent again: retries of one night are one event, two
nights are two. A storage's clock is compared with this machine's; minutes between them do not
matter here."""
_LEAST_FREE_BYTES = 5 * 2**30
"""Less free space than this where the run directory lies is an alert: six checkpoints of a base
model (0.8 GiB each), so that somebody can act before a save fails."""
_TIMEOUT_SECONDS = 10.0
"""How long the command may take: a job's driver sends from a thread of its own, but the end of a
command waits for it."""
_bounded = storage.waiting_at_most(5.0)
"""Decorates what asks storage, in seconds: the alert may be that it does not answer, and a job's
driver retries for half an hour."""
Say = Callable[[str], None]


def kind_of(error: BaseException, command: str) -> AlertKind | None:
    """The kind of alert for an error of a command; None: it is not sent.

    Wrong arguments and interruptions are not: the user who typed them knows.
    """
    if isinstance(error, KeyboardInterrupt | UsageError | Interrupted | Terminated):
        return None
    if isinstance(error, StorageFull):
        return "disk"
    if isinstance(error, CheckFailed):
        return {"gate": "gate", "publish": "gate", "drift": "drift", "score": "drift"}.get(
            command, "failure"
        )
    return "failure"


@_bounded
def run_error(config: Config) -> str | None:
    """The error that a failed run has left in run.json; None: there is none."""
    run = _run_json(config.run.directory)
    failed = run.get("status") == "failed" and run.get("error")
    return str(failed) if failed else None


def of_error(
    config: Config, command: str, error: BaseException, *, link: str | None = None, say: Say
) -> None:
    """Send what an error of a command is worth; never raises.

    Args:
        command: its name: train, gate, ...
    """
    kind = kind_of(error, command)
    if kind is None:
        return
    if not isinstance(error, HowdahError):
        error = HowdahError(f"a defect: {type(error).__name__}: {error}")
    shown = error.as_dict()
    send(
        config, kind, shown["what"], where=shown["where"], link=link,
        about={"command": _shown(command), "error": shown}, got=shown["got"],
        # The drift of a model is not an event of a run.
        directory=config.model_directory if kind == "drift" else None, say=say,
    )  # fmt: skip


def succeeded(config: Config, command: str, *, say: Say) -> None:
    """Forget the events that a command has left, since it has succeeded: the next one is news.

    Never raises.
    """
    _forget(config, lambda alert: alert.get("command") == _shown(command), say)


def _shown(command: str) -> str:
    return f"howdah {command}"


@_bounded
def _forget(config: Config, matches: Callable[[dict[str, Any]], bool], say: Say) -> None:
    try:
        for directory in (config.run.directory, config.model_directory):
            markers = storage.join(directory, _DIRECTORY)
            if not storage.is_dir(markers):
                continue
            for marker in storage.list_dir(markers):
                alert = storage.read_json(marker.path)
                if isinstance(alert, dict) and matches(alert):
                    storage.remove(marker.path)
    except Exception as error:  # noqa: BLE001 - an alert must never fail what it reports
        say(f"warning: markers of earlier alerts stay: {_brief(error)}")


@_bounded
def low_disk(config: Config, *, say: Say) -> None:
    """Send an alert of kind disk if less than _LEAST_FREE_BYTES are free; never raises."""
    if "disk" not in config.alerts.on or not config.alerts.asks:
        return
    try:
        directory = config.run.directory
        while not storage.exists(directory) and storage.parent(directory) != directory:
            directory = storage.parent(directory)
        free = storage.free_bytes(directory)
    except (HowdahError, OSError) as error:
        say(f"warning: the free space of {config.run.directory} is not known: {_brief(error)}")
        return
    if free is not None and free < _LEAST_FREE_BYTES:
        send(
            config, "disk", f"{free:,} bytes are free, less than {_LEAST_FREE_BYTES:,}",
            where=config.run.directory, about={"free_bytes": free}, event="low", say=say,
        )  # fmt: skip
    elif free is not None:
        _forget(config, lambda alert: "free_bytes" in alert, say)


@_bounded
def send(
    config: Config,
    kind: AlertKind,
    what: str,
    *,
    where: str | None = None,
    link: str | None = None,
    about: dict[str, Any] | None = None,
    event: str | None = None,
    got: str | None = None,
    directory: str | None = None,
    run_id: str | None = None,
    say: Say,
) -> bool:
    """Send an alert to the configured command, unless it is not news; never raises.

    Args:
        what: one sentence.
        link: a page to look at.
        about: further fields.
        event: what makes two alerts of a kind the same event; None: `what`.
        got: what was found. It tells events of a command without a run apart: another day, another
            partition, another count.
        directory: where the marker lies; None: the run directory.
        run_id: None: that of run.json.
        say: gets a line for what was sent, and for each failure.
    Returns:
        Whether the command took it.
    """
    alerts = config.alerts
    if not alerts.asks or kind not in alerts.on:
        return False
    try:
        alert = _alert(config, kind, what, where, link, about or {}, run_id)
        run = alert["run"]["id"]
        parts = [kind, run, event if event is not None else what, where]
        if run is None:
            parts += [got, alert.get("command")]
        key = json.dumps(parts)
        marker = storage.join(
            directory or config.run.directory,
            _DIRECTORY,
            f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json",
        )
        if not _first(marker, alert, say):
            return False
        data = json.dumps(alert, ensure_ascii=False).encode("utf-8", "replace")
        problem = _run(alerts.command, data)
        if problem is not None:
            say(f"warning: the alert did not reach the command: {problem}")
            storage.remove(marker)  # the next attempt is to try again
            return False
        say(f"alert sent: {alert['kind']}: {alert['what']}")
        return True
    except Exception as error:  # noqa: BLE001 - an alert must never fail what it reports
        say(f"warning: the alert ({kind}) was not sent: {_brief(error)}")
        return False


def _alert(
    config: Config,
    kind: AlertKind,
    what: str,
    where: str | None,
    link: str | None,
    about: dict[str, Any],
    run_id: str | None,
) -> dict[str, Any]:
    run = {"name": config.run.name, "directory": config.run.directory, "id": run_id}
    if run_id is None:
        run["id"] = _run_json(config.run.directory).get("run_id")
    alert = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "means": KINDS[kind],
        "what": what,
        "where": where,
        "link": link,
        "run": run,
        "model": config.model_directory,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "by": user_and_host(),
        **about,
    }
    return shorten.message(redact.plain(alert), _MOST_BYTES)


def _run_json(directory: str) -> dict[str, Any]:
    try:
        run = storage.read_json(storage.join(directory, RUN_JSON))
    except (HowdahError, OSError):
        return {}
    return run if isinstance(run, dict) else {}


def _first(marker: str, alert: dict[str, Any], say: Say) -> bool:
    """True if no process has sent this event yet, or the last one was sent long ago."""
    try:
        storage.make_dirs(storage.parent(marker))
        with contextlib.suppress(NotFound):
            if time.time() - storage.entry(marker).modified > _NEWS_AGAIN_SECONDS:
                storage.remove(marker)  # two processes at once may both send it: better than none
        storage.create_exclusive(marker, json.dumps(alert, ensure_ascii=False).encode())
    except AlreadyExists:
        return False
    except (StorageError, OSError) as error:
        # A full disk is what an alert may be about: sent twice is better than not at all.
        say(f"warning: no marker of the alert ({_brief(error)}): it may be sent again")
    return True


def _run(argv: list[str], data: bytes) -> str | None:
    """Run a command with the alert on its stdin; what went wrong, or None.

    At the end of its time it is killed with all that it has started.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, env=isolation.restored(),
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return f"{argv[0]}: {_brief(error)}"
    try:
        _, errors = process.communicate(data, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{argv[0]} took longer than {_TIMEOUT_SECONDS:g} s"
    finally:
        for pid in session_members(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return None
    last = errors.decode("utf-8", "replace").strip()[-300:]
    return f"{argv[0]} ended with exit code {process.returncode}" + (f": {last}" if last else "")


def _brief(error: object) -> str:
    text = error.what if isinstance(error, HowdahError) else str(error) or type(error).__name__
    return redact.text(text)[:300]
