"""A Kerberos login from a keytab for the duration of a command.

Spark and skein take the keytab itself; storage, the REST clients and Hadoop's command lines need a
ticket cache. They get a private one, which is renewed until the command ends.
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

from howdah.core import threads
from howdah.core.paths import local_path
from howdah.core.processes import environ
from howdah.errors import ClusterError

_END_SECONDS = 30.0  # wait for a login in progress; a hanging one does not block the command's end
_RENEW_SECONDS = 60.0  # a login is cheap for the KDC, and tickets last at least some minutes


@contextlib.contextmanager
def logged_in(keytab: str | None, principal: str | None, key: str) -> Iterator[None]:
    """Inside, KRB5CCNAME names a cache with the principal's ticket. No keytab: no effect.

    Args:
        key: the configuration's key of the keytab, for messages.
    Raises:
        ClusterError: the keytab is missing, or the KDC does not accept it.
    """
    if keytab is None:
        yield
        return
    keytab = local_path(keytab)
    where = f"{key} {keytab}, principal {principal}"
    with tempfile.TemporaryDirectory(prefix="howdah-krb5-") as directory:
        cache = f"FILE:{os.path.join(directory, 'cache')}"
        login(keytab, principal or "", cache, where)
        over = threading.Event()

        def renew() -> None:
            while not over.wait(_RENEW_SECONDS):
                # A failure is retried; the present ticket lasts longer than a minute.
                with contextlib.suppress(ClusterError):
                    login(keytab, principal or "", cache, where)

        # RESTART: without this thread the ticket would expire during the command.
        thread = threads.start(renew, name="kerberos", failed=threads.RESTART)
        try:
            with environ({"KRB5CCNAME": cache, "KRB5_CLIENT_KTNAME": f"FILE:{keytab}"}):
                yield
        finally:
            over.set()
            thread.join(_END_SECONDS)


def short_name() -> str | None:
    """The user's name on a Kerberised cluster: the first part of the principal of the ticket, or of
    the keytab in $KRB5_CLIENT_KTNAME; None: there is neither.

    A cluster's rules (hadoop.security.auth_to_local) are not applied.
    """
    program = shutil.which("klist")
    if program is None:
        return None
    commands = [[program], [program, "-k", os.environ.get("KRB5_CLIENT_KTNAME", "")]]
    for argv in commands[: 2 if commands[1][2] else 1]:
        done = _run(argv)
        # MIT's klist, Heimdal's (a cache alone), and MIT's list of a keytab
        line = r"^\s*(?:Default principal:|Principal:|\d+)\s+([^\s/@]+)\S*@"
        match = re.search(line, done.stdout, re.MULTILINE)
        if done.returncode == 0 and match:
            return match.group(1)
    return None


def login(keytab: str, principal: str, cache: str, where: str) -> None:
    """kinit from a keytab into a cache; ClusterError if it fails."""
    program = shutil.which("kinit")
    if program is None:
        raise ClusterError(
            "a keytab cannot be used without kinit",
            where="PATH",
            remedy="install MIT Kerberos' kinit (Debian: krb5-user)",
        )
    done = _run([program, "-c", cache, "-k", "-t", keytab, principal])
    if done.returncode:
        raise ClusterError(
            "the keytab gives no Kerberos ticket",
            where=where,
            got=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            remedy=f"check its contents (klist -kt {keytab}) and the realm in krb5.conf",
        )


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of Kerberos in English: its answers are translated, and parsed here."""
    return subprocess.run(
        argv, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, errors="replace",
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
