"""Other users of this machine, each of whom gets a shell from a mini cluster without Kerberos.

Loopback does not separate the users of one machine. Without Kerberos the cluster believes any user
name that a client sends, and its containers run as the user who started it. So a user who can reach
the ports can run programs as that user, who may be root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from howdah.errors import UsageError

SHARED = "HOWDAH_MINICLUSTER_SHARED"
"""Environment variable with the effect of `--shared`, for programs that start a cluster (tests, the
demo, `make airflow CLUSTER=1`)."""

_NO_LOGIN = {"", "nologin", "false", "true", "sync", "halt", "shutdown"}
_NOBODY = 65534
_DYNAMIC = range(61184, 65520)
"""User ids of systemd's services (systemd.exec(5), DynamicUser=)."""


@dataclass(frozen=True)
class Account:
    """An entry of passwd(5)."""

    name: str
    uid: int
    home: str
    shell: str

    @property
    def is_person(self) -> bool:
        """True if it has a login shell, and is not a service's."""
        is_service = self.uid == _NOBODY or self.uid in _DYNAMIC
        return not is_service and os.path.basename(self.shell) not in _NO_LOGIN


def others(
    accounts: Iterable[Account] | None = None,
    *,
    etc: str = "/etc",
    proc: str = "/proc",
    own_ids: frozenset[int] | None = None,
) -> list[str]:
    """Sorted names of other users who have processes or can log in, with the reason in brackets.

    A person's account has an id of at least UID_MIN (login.defs) and a login shell. It counts if
    its user can log in, by a password or authorized keys: images of containers have accounts that
    cannot be used.

    Args:
        accounts: accounts to check; None: those of this machine.
        etc, proc: directories with login.defs and shadow, and with the processes.
        own_ids: ids of this user; None: those of this process, and of the caller of sudo.
    """
    own_ids = _own_ids() if own_ids is None else own_ids
    least = _uid_min(os.path.join(etc, "login.defs"))
    reasons: dict[str, str] = {}
    users = {
        account.uid: account
        for account in (map(_account, pwd.getpwall()) if accounts is None else accounts)
        if account.uid >= least and account.uid not in own_ids and account.is_person
    }
    passwords = _passwords(os.path.join(etc, "shadow"))
    for uid in _process_owners(proc):
        account = users.get(uid)
        if account is None and accounts is None and uid >= least and uid not in own_ids:
            account = _of_directory_service(uid)
        if account is not None:
            reasons[account.name] = "has processes"
    for account in users.values():
        if account.name not in reasons and _can_log_in(account, passwords):
            reasons[account.name] = "can log in"
    return [f"{name} ({why})" for name, why in sorted(reasons.items())]


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_dir, entry.pw_shell)


def _own_ids() -> frozenset[int]:
    called = os.environ.get("SUDO_UID", "")
    return frozenset({os.getuid(), os.geteuid(), *([int(called)] if called.isdigit() else [])})


def _uid_min(path: str) -> int:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        match = re.search(r"^\s*UID_MIN\s+(\d+)", file.read(), re.MULTILINE)
        if match:
            return int(match[1])
    return 1000


def _process_owners(proc: str) -> Iterator[int]:
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                yield os.stat(os.path.join(proc, name)).st_uid


def _of_directory_service(uid: int) -> Account | None:
    """An account that can be looked up (LDAP) but is not listed; None: it is not a person's."""
    try:
        account = _account(pwd.getpwuid(uid))
    except KeyError:
        return None
    return account if account.is_person else None


def _passwords(path: str) -> dict[str, str] | None:
    """The second field of shadow(5) by name; None: the file is not readable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            fields = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return None
    return {line[0]: line[1] for line in fields if len(line) > 1}


def _can_log_in(account: Account, passwords: dict[str, str] | None) -> bool:
    if passwords is None or account.name not in passwords:  # not readable, or another service's
        return True
    if passwords[account.name][:1] not in ("!", "*"):
        return True
    for name in ("authorized_keys", "authorized_keys2"):
        with contextlib.suppress(OSError):
            if os.stat(os.path.join(account.home, ".ssh", name)).st_size:
                return True
    return False


def warning(user: str) -> str:
    """A one-line warning for the user who starts a cluster without Kerberos."""
    return (
        "without Kerberos every user of this machine can act as any user on this cluster, and can"
        f" have programs run as {user} (docs/minicluster.md)"
    )


def refuse_root_among_others(*, shared: bool) -> None:
    """Refuse to start a cluster without Kerberos as root on a machine with other users.

    Args:
        shared: the user accepts that.
    Raises:
        UsageError: the machine has other users, and `shared` is not set.
    """
    if shared or os.environ.get(SHARED) == "1" or os.geteuid() != 0:
        return
    names = others()
    if names:
        raise UsageError(
            "a mini cluster without Kerberos would make every user of this machine root",
            where="this machine",
            got=", ".join(names[:10]) + (f" and {len(names) - 10} more" if names[10:] else ""),
            remedy="start it as another user or with --kerberos; if all of them may be root,"
            f" use --shared (make: SHARED=1; else {SHARED}=1)",
        )
