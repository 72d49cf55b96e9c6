"""The notifiers of a Connection, created from import paths that the policy allows."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping
from typing import Any, Literal

from airflow.sdk import BaseNotifier

from howdah.airflow.hook import HowdahHook
from howdah.airflow.runner.settings import NotifierSettings
from howdah.errors import ConfigError, HowdahError
from howdah.policy import rules

Event = Literal["failure", "drift"]


class NotSent(HowdahError):
    """At least one notifier has failed; all others have sent their notification."""

    exit_code = 5


def made(hook: HowdahHook, event: Event) -> list[tuple[str, BaseNotifier]]:
    """The Connection's notifiers for an event, with their import paths.

    The installation's policy decides which may be named; the Connection's own policy does not.

    Raises:
        ConfigError: with each path that the policy refuses, that is not a notifier, or that does
            not take its arguments.
        HowdahCommandRefused: the Connection is not valid.
    """
    policy, name = rules.in_force()
    problems: list[HowdahError] = []
    notifiers = []
    for each in hook.settings.notifiers:
        if event not in each.events:
            continue
        if not policy.may_notify_by(each.path):
            problems.append(
                HowdahError(
                    "a notifier is refused by the policy's rule `notifiers`: it is not listed",
                    where=name,
                    expected=", ".join(policy.notifiers) or "none",
                    got=each.path,
                )
            )
            continue
        try:
            notifiers.append((each.path, _made(each)))
        except ConfigError as error:
            problems.append(error)
    if problems:
        place = f"Airflow Connection {hook.conn_id}, field notifiers"
        raise ConfigError("notifiers cannot be used", where=place, problems=problems)
    return notifiers


def _made(each: NotifierSettings) -> BaseNotifier:
    from airflow.sdk.module_loading import import_string

    try:
        kind = import_string(each.path)
    except ImportError as error:
        raise ConfigError(
            "the notifier's class cannot be imported",
            where=each.path,
            got=str(error),
            remedy="install its provider where Airflow's workers run",
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
        raise ConfigError("this class is not an Airflow BaseNotifier", where=each.path)
    try:
        return kind(**each.arguments)
    except TypeError as error:  # names arguments, not their values
        what = "the notifier does not take its arguments"
        raise ConfigError(what, where=each.path, got=str(error)) from None


def notify(
    hook: HowdahHook, event: Event, context: Mapping[str, Any], about: Mapping[str, Any]
) -> list[str]:
    """Send an event by each notifier of the Connection; return the import paths of all.

    Args:
        context: the task's context, for templates in the notifiers' arguments.
        about: facts of the event, which templates see as `howdah`: `what`, and more.
    Raises:
        NotSent: a notifier has failed; the others were still tried.
        ConfigError: see `made`; nothing was sent.
    """
    sent: list[str] = []
    problems: list[HowdahError] = []
    for path, notifier in made(hook, event):
        # BaseNotifier.__call__ does the same, but logs an error of `notify` and reports success.
        fields = {name: getattr(notifier, name) for name in notifier.template_fields}
        seen = {**context, **fields, "howdah": dict(about)}
        try:
            notifier.render_template_fields(seen)
            notifier.notify(seen)
        except Exception as error:
            hook.log.exception("the notifier %s failed", path)
            problems.append(HowdahError(f"{path} failed", got=f"{type(error).__name__}: {error}"))
        else:
            hook.log.info("notified by %s", path)
            sent.append(path)
    if problems:
        raise NotSent(
            "notifiers failed",
            where=f"Airflow Connection {hook.conn_id}",
            problems=problems,
            got=f"sent by {', '.join(sent) or 'none'}",
        )
    return sent
