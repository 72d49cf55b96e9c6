"""The Kerberos ticket of Airflow's triggerer, a process that many tasks share.

GSSAPI takes its ticket from the process's environment, so a process has one at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import threading

from howdah.errors import ConfigError
from howdah.hadoop import kerberos

_LOCK = threading.Lock()
_held: tuple[str, str | None] | None = None


def hold(keytab: str | None, principal: str | None, where: str) -> None:
    """Hold a keytab's ticket from now until the process ends, renewed in time.

    Args:
        keytab: none: use the ticket that the process has.
        principal: of the keytab.
        where: named in errors.
    Raises:
        ConfigError: another keytab's ticket is held. ClusterError: the keytab gives none.
    """
    global _held
    if keytab is None:
        return
    with _LOCK:
        if _held == (keytab, principal):
            return
        if _held is not None:
            raise ConfigError(
                "a triggerer holds one Kerberos ticket, and has another",
                where=where,
                expected=f"principal {_held[1]} of {_held[0]}",
                got=f"principal {principal} of {keytab}",
                remedy="use one keytab in all Connections and set run.user to the proxied user, or"
                " run a triggerer for each keytab",
            )
        with contextlib.ExitStack() as stack:
            stack.enter_context(kerberos.logged_in(keytab, principal, where))
            atexit.register(stack.pop_all().close)
        _held = (keytab, principal)
