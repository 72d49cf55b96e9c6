"""HTTP to Hadoop's daemons: the user's identity, and sessions that ignore `*_PROXY`."""

from __future__ import annotations

import os
import ssl
from typing import Any

from howdah.errors import NotAuthenticated
from howdah.faults import local_user
from howdah.hadoop.conf import HadoopConf

TRUST = "REQUESTS_CA_BUNDLE"
"""Variable with the file of certificates that is trusted in place of the usual ones."""

TRUST_REMEDY = f"set {TRUST} to the certificate of its authority"
AUTHORITIES = "authorities.pem"
"""Name of that file's copy in containers."""


def current_user() -> str:
    """The user's name on a cluster without Kerberos."""
    return os.environ.get("HADOOP_USER_NAME") or local_user()


def identity(conf: HadoopConf, user: str | None = None) -> dict[str, str]:
    """Query parameters with the user of a request; with Kerberos the ticket identifies the user.

    Args:
        user: the user to impersonate; None: $HADOOP_PROXY_USER, else the current user.
    """
    user = user or os.environ.get("HADOOP_PROXY_USER") or None
    if conf.kerberos:
        return {"doAs": user} if user else {}
    return {"user.name": user or current_user()}


def session(conf: HadoopConf, url: str) -> Any:
    """A `requests` session for a daemon at `url`.

    Raises:
        NotAuthenticated: the cluster has Kerberos, and requests-kerberos is not installed.
    """
    import requests

    http = requests.Session()
    http.trust_env = False  # no proxies: the daemons are on the local network
    http.verify = _authorities() or True
    if conf.kerberos:
        require_kerberos(url)
        from requests_kerberos import OPTIONAL, HTTPKerberosAuth

        http.auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL)
    return http


def is_distrust(error: Exception) -> bool:
    """True if a request failed because of a certificate, or of the file of those to trust: asking
    again would not help. Other errors of TLS are temporary, such as a connection that ends."""
    import requests

    # requests has errors of its own but for a file of certificates that is missing.
    missing = not isinstance(error, requests.RequestException)
    return missing or "CERTIFICATE_VERIFY_FAILED" in str(error)


def authorities_file() -> str | None:
    """The local file of certificates that is trusted here, for other machines to trust as well.

    None: the usual ones are trusted, or those of a directory, which OpenSSL finds by links.
    """
    place = _authorities()
    return place if place is not None and os.path.isfile(place) else None


def trust_elsewhere() -> dict[str, str]:
    """The variable for a process in another directory, where a relative path leads elsewhere."""
    place = os.environ.get(TRUST)
    return {TRUST: os.path.abspath(place)} if place else {}


def _authorities() -> str | None:
    """The file or directory of certificates to trust; None: the usual ones."""
    return os.environ.get(TRUST) or os.environ.get("CURL_CA_BUNDLE") or None


def tls() -> ssl.SSLContext:
    """What a connection without `requests` trusts: the same as a `session`."""
    place = _authorities()
    if place is None:
        return ssl.create_default_context()
    return ssl.create_default_context(**{"capath" if os.path.isdir(place) else "cafile": place})


def require_kerberos(url: str) -> None:
    """Raise NotAuthenticated where requests-kerberos is not installed."""
    try:
        import requests_kerberos  # noqa: F401
    except ImportError as error:
        raise NotAuthenticated(
            "Hadoop's web interfaces with Kerberos need the package requests-kerberos",
            where=url,
            got=str(error),
            remedy="apt-get install gcc libkrb5-dev; pip install 'howdah[kerberos]'",
        ) from None
