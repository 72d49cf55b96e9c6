"""The notifiers of a Connection: made by their import paths, as far as the policy allows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from howdah.airflow import require

require()

from airflow.sdk import BaseNotifier  # noqa: E402

from howdah.airflow.hook import HowdahHook  # noqa: E402
from howdah.airflow.runner.settings import NotifierSettings  # noqa: E402
from howdah.errors import ConfigError, HowdahError  # noqa: E402
from howdah.policy import rules  # noqa: E402

Event = Literal["failure", "drift"]


class NotSent(HowdahError):
    """Some notifiers have failed; the others have sent their notification."""

    exit_code = 5


def made(hook: HowdahHook, event: Event) -> list[tuple[str, BaseNotifier]]:
    """The Connection's notifiers for an event, with their import paths.

    The installation's policy decides which may be named, not a policy of the Connection's own.

    Raises:
        ConfigError: with each that the policy refuses, that is no notifier, or that does not take
            its arguments. HowdahCommandRefused: the Connection is not valid.
    """
    policy, name = rules.in_force()
    problems: list[HowdahError] = []
    found = []
    for each in hook.settings.notifiers:
        if event not in each.events:
            continue
        if not policy.may_notify_by(each.path):
            problems.append(
                HowdahError(
                    "a notifier is refused by the policy's rule `notifiers`: it is not one of them",
                    where=name, expected=", ".join(policy.notifiers) or "none", got=each.path,
                )
            )  # fmt: skip
            continue
        try:
            found.append((each.path, _made(each)))
        except ConfigError as error:
            problems.append(error)
    if problems:
        raise ConfigError(
            "notifiers of the Connection cannot be used",
            where=f"Airflow Connection {hook.conn_id}, field notifiers", problems=problems,
        )  # fmt: skip
    return found


def _made(each: NotifierSettings) -> BaseNotifier:
    from airflow.sdk.module_loading import import_string

    try:
        kind = import_string(each.path)
    except ImportError as error:
        raise ConfigError(
            "there is no such notifier", where=each.path, got=str(error),
            remedy="install its provider where Airflow's workers run",
        ) from None  # fmt: skip
    if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
        raise ConfigError(
            "this is no notifier", where=each.path, expected="an Airflow BaseNotifier"
        )
    try:
        return kind(**each.arguments)
    except TypeError as error:  # names arguments, not their values
        raise ConfigError("a notifier does not take its arguments", where=each.path,
                          got=str(error)) from None  # fmt: skip


def notify(
    hook: HowdahHook, event: Event, context: Mapping[str, Any], about: Mapping[str, Any]
) -> list[str]:
    """Send an event by each notifier of the Connection; their import paths, none if it has none.

    Args:
        context: the task's; templates of the notifiers' arguments see it.
        about: the event's own facts, which templates see as `howdah`: what, and more.
    Raises:
        NotSent: a notifier has failed; the others were tried all the same.
        ConfigError: as `made`; none was tried.
    """
    sent: list[str] = []
    problems: list[HowdahError] = []
    for path, notifier in made(hook, event):
        # As BaseNotifier.__call__, which logs an error of `notify` and reports success.
        fields = {name: getattr(notifier, name) for name in notifier.template_fields}
        seen = {**context, **fields, "howdah": dict(about)}
        try:
            notifier.render_template_fields(seen)
            notifier.notify(seen)
        except Exception as error:
            hook.log.exception("the notifier %s has failed", path)
            problems.append(
                HowdahError(f"{path} has failed", got=f"{type(error).__name__}: {error}")
            )
        else:
            hook.log.info("notified by %s", path)
            sent.append(path)
    if problems:
        raise NotSent(
            "a notification was not sent", where=f"Airflow Connection {hook.conn_id}",
            problems=problems, got=f"sent by {', '.join(sent) or 'none'}",
        )  # fmt: skip
    return sent
