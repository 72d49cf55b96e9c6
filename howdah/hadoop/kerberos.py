"""A Kerberos login of our own from a keytab, for the time of a command.

What is given a keytab itself (Spark, skein) takes it; storage, the REST clients and Hadoop's
command lines take a ticket cache. They get one that is nobody else's, kept fresh until the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator

from howdah import storage
from howdah.errors import ClusterError
from howdah.processes import environ

__all__ = ["logged_in", "short_name"]

_FRESH_SECONDS = 60.0  # a login costs the KDC next to nothing; tickets last minutes at the least


@contextlib.contextmanager
def logged_in(keytab: str | None, principal: str | None, key: str) -> Iterator[None]:
    """With KRB5CCNAME set to a cache that holds the principal's ticket; without a keytab, nothing.

    Args:
        key: the configuration's key of the keytab, for messages.
    Raises:
        ClusterError: the keytab is not there, or the KDC does not take it.
    """
    if keytab is None:
        yield
        return
    keytab = storage.local_path(keytab)
    where = f"{key} {keytab}, principal {principal}"
    with tempfile.TemporaryDirectory(prefix="howdah-krb5-") as place:
        cache = f"FILE:{os.path.join(place, 'cache')}"
        login(keytab, principal or "", cache, where)
        over = threading.Event()

        def keep() -> None:
            while not over.wait(_FRESH_SECONDS):
                # One that fails is tried again; the ticket there lasts longer than a minute.
                with contextlib.suppress(ClusterError):
                    login(keytab, principal or "", cache, where)

        thread = threading.Thread(target=keep, name="kerberos", daemon=True)
        thread.start()
        try:
            with environ({"KRB5CCNAME": cache, "KRB5_CLIENT_KTNAME": f"FILE:{keytab}"}):
                yield
        finally:
            over.set()
            thread.join()


def short_name() -> str | None:
    """Who one is to a Kerberised cluster: the first part of the principal of the ticket, or of the
    keytab that $KRB5_CLIENT_KTNAME names; None: there is neither.

    A cluster's own rules (hadoop.security.auth_to_local) are not looked at.
    """
    program = shutil.which("klist")
    if program is None:
        return None
    asked = [[program], [program, "-k", os.environ.get("KRB5_CLIENT_KTNAME", "")]]
    for argv in asked[: 2 if asked[1][2] else 1]:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        found = re.search(r"^(?:Default principal:|\s*\d+)\s+([^\s/@]+)\S*@", done.stdout, re.M)
        if done.returncode == 0 and found:
            return found.group(1)
    return None


def login(keytab: str, principal: str, cache: str, where: str) -> None:
    """kinit from a keytab into a cache."""
    program = shutil.which("kinit")
    if program is None:
        raise ClusterError(
            "a keytab cannot be used without kinit",
            where="PATH",
            expected="MIT Kerberos' kinit",
            remedy="install it (Debian: krb5-user)",
        )
    done = subprocess.run(
        [program, "-c", cache, "-k", "-t", keytab, principal],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise ClusterError(
            "the keytab gives no Kerberos ticket",
            where=where,
            got=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            remedy=f"look what is in it (klist -kt {keytab}), and at the realm in krb5.conf",
        )
