"""Other users of this machine: a mini cluster without Kerberos gives each of them a shell.

Loopback is no boundary between the users of one machine. Without Kerberos the cluster believes any
user name that a client sends, and its containers run as the user who started it: a user who can
reach the ports can have programs run as that one, root included.
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
"""Environment variable that says what `--shared` does, for what starts a cluster in passing (tests,
the demo, `make airflow CLUSTER=1`)."""

_NO_LOGIN = {"", "nologin", "false", "true", "sync", "halt", "shutdown"}
_NOBODY = 65534
_DYNAMIC = range(61184, 65520)
"""Of systemd's services (systemd.exec(5), DynamicUser=)."""


@dataclass(frozen=True)
class Account:
    """A user of the machine, as passwd(5) has it."""

    name: str
    uid: int
    home: str
    shell: str


def others(
    accounts: Iterable[Account] | None = None,
    *,
    etc: str = "/etc",
    proc: str = "/proc",
    own: frozenset[int] | None = None,
) -> list[str]:
    """Names of other users who have processes here or can log in, sorted; why is in brackets.

    A person's account has an id from UID_MIN on (login.defs) and a login shell. It counts where it
    can be logged in to: with a password, or with authorized keys. Images of containers have
    accounts that cannot be used.

    Args:
        accounts: None: those of this machine.
        etc, proc: where login.defs, shadow and the processes are.
        own: ids that are oneself; None: those of this process, and the one that called sudo.
    """
    own = _own() if own is None else own
    least = _uid_min(os.path.join(etc, "login.defs"))
    found: dict[str, str] = {}
    users = {
        account.uid: account
        for account in (_listed() if accounts is None else accounts)
        if account.uid >= least
        and account.uid != _NOBODY
        and account.uid not in _DYNAMIC
        and account.uid not in own
        and os.path.basename(account.shell) not in _NO_LOGIN
    }
    passwords = _passwords(os.path.join(etc, "shadow"))
    for uid in _process_owners(proc):
        account = users.get(uid)
        if account is None and accounts is None and uid >= least and uid not in own:
            account = _of_directory_service(uid)
        if account is not None:
            found[account.name] = "has processes"
    for account in users.values():
        if account.name not in found and _can_log_in(account, passwords):
            found[account.name] = "can log in"
    return [f"{name} ({why})" for name, why in sorted(found.items())]


def _listed() -> list[Account]:
    return [Account(p.pw_name, p.pw_uid, p.pw_dir, p.pw_shell) for p in pwd.getpwall()]


def _own() -> frozenset[int]:
    called = os.environ.get("SUDO_UID", "")
    return frozenset({os.getuid(), os.geteuid(), *([int(called)] if called.isdigit() else [])})


def _uid_min(path: str) -> int:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        found = re.search(r"^\s*UID_MIN\s+(\d+)", file.read(), re.MULTILINE)
        if found:
            return int(found[1])
    return 1000


def _process_owners(proc: str) -> Iterator[int]:
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                yield os.stat(os.path.join(proc, name)).st_uid


def _of_directory_service(uid: int) -> Account | None:
    """An account that is looked up one by one (LDAP), and never listed; None: no person's."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    if uid == _NOBODY or uid in _DYNAMIC or os.path.basename(entry.pw_shell) in _NO_LOGIN:
        return None
    return Account(entry.pw_name, uid, entry.pw_dir, entry.pw_shell)


def _passwords(path: str) -> dict[str, str] | None:
    """shadow(5)'s second field by name; None: we may not read it."""
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
    """What a user who starts a cluster without Kerberos must know, in one line."""
    return (
        "without Kerberos every user of this machine can act as any user on this cluster, and can"
        f" have programs run as {user} (docs/minicluster.md)"
    )


def refuse_root_among_others(*, shared: bool) -> None:
    """Refuse to start a cluster without Kerberos as root on a machine with other users.

    Args:
        shared: the user accepts that.
    Raises:
        UsageError: there are, and it is not accepted.
    """
    if shared or os.environ.get(SHARED) == "1" or os.geteuid() != 0:
        return
    found = others()
    if found:
        raise UsageError(
            "a mini cluster without Kerberos would make every user of this machine root",
            where="this machine",
            expected="no other user on it, or another user than root to start the cluster",
            got=", ".join(found[:10]) + (f" and {len(found) - 10} more" if found[10:] else ""),
            remedy="start it as another user or with --kerberos; where all of them may be root,"
            f" --shared (make: SHARED=1; else {SHARED}=1) starts it",
        )
