"""HTTP to Hadoop's daemons: who one is, and sessions that no proxy variable leads astray."""

from __future__ import annotations

import os
from typing import Any

from howdah.errors import NotAuthenticated
from howdah.hadoop.conf import HadoopConf

__all__ = ["current_user", "identity", "session"]


def current_user() -> str:
    """Who one is to a cluster without Kerberos."""
    from howdah.storage.faults import local_user

    return os.environ.get("HADOOP_USER_NAME") or local_user()


def identity(conf: HadoopConf, user: str | None = None) -> dict[str, str]:
    """Query parameters that say whom a request is from; with Kerberos the ticket says that.

    Args:
        user: whom to act for; none: $HADOOP_PROXY_USER, else oneself.
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

    made = requests.Session()
    made.trust_env = False  # no proxies: the daemons are on our network
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    made.verify = bundle or True
    if conf.kerberos:
        made.auth = _negotiation(url)
    return made


def _negotiation(url: str) -> Any:
    try:
        from requests_kerberos import OPTIONAL, HTTPKerberosAuth
    except ImportError as error:
        raise NotAuthenticated(
            "Hadoop's web interfaces with Kerberos need the package requests-kerberos",
            where=url,
            got=str(error),
            remedy="apt-get install gcc libkrb5-dev; pip install 'howdah[kerberos]'",
        ) from None
    return HTTPKerberosAuth(mutual_authentication=OPTIONAL)
