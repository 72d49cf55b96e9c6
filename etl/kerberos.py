"""A Kerberos login of our own from `data.spark.keytab`, for the time of a run.

Spark takes the keytab by itself; the storage client and Hadoop's command lines (kill, logs) take a
ticket cache. They get one that is nobody else's, kept fresh until the run ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator

from etl.spark import environ
from howdah import storage
from howdah.config_model import SparkOptions
from howdah.errors import ClusterError

_FRESH_SECONDS = 60.0  # a login costs the KDC next to nothing; tickets last minutes at the least


@contextlib.contextmanager
def logged_in(options: SparkOptions) -> Iterator[None]:
    """With KRB5CCNAME set to a cache that holds the principal's ticket; without a keytab, nothing.

    Raises:
        ClusterError: the keytab is not there, or the KDC does not take it.
    """
    if options.keytab is None:
        yield
        return
    keytab = storage.local_path(options.keytab)
    with tempfile.TemporaryDirectory(prefix="howdah-krb5-") as place:
        cache = f"FILE:{os.path.join(place, 'cache')}"
        _login(keytab, options.principal, cache)
        over = threading.Event()

        def keep() -> None:
            while not over.wait(_FRESH_SECONDS):
                # One that fails is tried again; the ticket there lasts longer than a minute.
                with contextlib.suppress(ClusterError):
                    _login(keytab, options.principal, cache)

        thread = threading.Thread(target=keep, name="etl-kerberos", daemon=True)
        thread.start()
        try:
            with environ({"KRB5CCNAME": cache, "KRB5_CLIENT_KTNAME": f"FILE:{keytab}"}):
                yield
        finally:
            over.set()
            thread.join()


def _login(keytab: str, principal: str, cache: str) -> None:
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
            where=f"data.spark.keytab {keytab}, principal {principal}",
            got=(done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            remedy=f"look what is in it (klist -kt {keytab}), and at the realm in krb5.conf",
        )
