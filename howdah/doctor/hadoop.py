"""The doctor's checks of a Hadoop cluster: its NameNodes and this user's credentials."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping

from howdah.doctor.checks import Check, run_program
from howdah.errors import HowdahError
from howdah.hadoop import conf, rpc, tokens, versions, web
from howdah.storage.hdfs import kms

_PROBE_SECONDS = 5.0


def _settings(env: Mapping[str, str]) -> conf.HadoopConf | None:
    """Hadoop's settings; None: there are none, or another check reports why they cannot be read."""
    try:
        settings = conf.load(env)
    except HowdahError:
        return None
    return settings if settings.directory is not None else None


def check_namenode(env: Mapping[str, str]) -> Check:
    """Probe which authentication methods each NameNode of fs.defaultFS accepts."""
    name, settings = "NameNode", _settings(env)
    authority = settings.default_authority() if settings else None
    if settings is None or not authority:
        return Check(name, "skip", "no hdfs:// fs.defaultFS is set")
    try:
        addresses = settings.rpc_addresses(authority)
    except HowdahError as error:
        return Check(name, "fail", error.what, error.remedy)
    answers, failures, methods = [], [], set()
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            offered = rpc.auth_methods(host, int(port), _PROBE_SECONDS)
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
            continue
        methods.update(offered)
        answers.append(f"{address} answers ({', '.join(offered)})")
    if answers:
        answers += _version(settings, authority)
    description = "; ".join(answers + failures)
    if not answers:
        remedy = "check that it runs, its host and port in HADOOP_CONF_DIR, and the network"
        return Check(name, "fail", description, remedy)
    if "SIMPLE" not in methods and not settings.kerberos:
        remedy = (
            "take the cluster's own core-site.xml and hdfs-site.xml: they must say"
            " hadoop.security.authentication = kerberos"
        )
        return Check(
            name, "fail", f"{description}; the settings here do not enable Kerberos", remedy
        )
    if failures:
        return Check(
            name, "warn", description, "the cluster can be used; one NameNode does not answer"
        )
    return Check(name, "ok", description)


def _version(settings: conf.HadoopConf, authority: str) -> list[str]:
    """The version that the first NameNode to answer on its web port reports; [] if none does."""
    import requests

    try:
        urls = settings.namenode_pages(authority)
    except HowdahError:
        return []
    query = {"qry": "Hadoop:service=NameNode,name=NameNodeInfo"}
    for url in urls:
        try:
            session = web.session(settings, url)
            answer = session.get(f"{url}/jmx", params=query, timeout=_PROBE_SECONDS)
            return [versions.remark("Hadoop", answer.json()["beans"][0]["SoftwareVersion"])]
        except (HowdahError, requests.RequestException, ValueError, LookupError):
            continue
    return []


def check_key_servers(env: Mapping[str, str]) -> Check:
    """Ask each server of the KMS, which has the keys of encryption zones, whether it answers."""

    name, settings = "KMS", _settings(env)
    servers = kms.KeyServers.of(settings) if settings else None
    if settings is None or servers is None:
        return Check(name, "skip", f"{kms.PROVIDER} names none: only for encryption zones")
    answers, failures = [], []
    for url in servers.urls:
        try:
            session = web.session(kms.NO_TICKET, url)
            session.get(f"{url}/v1/", timeout=_PROBE_SECONDS)  # any answer will do, also 401
            answers.append(f"{url} answers")
        except OSError as error:  # those of requests are OSErrors
            distrust = f"its certificate is not trusted ({web.TRUST}): "
            failures.append(f"{url}: {distrust if web.is_distrust(error) else ''}{error}")
    description = "; ".join(answers + failures)
    if not failures:
        return Check(name, "ok", description)
    remedy = f"check {kms.PROVIDER} of core-site.xml, and the network: without it no file of an"
    return Check(
        name, "warn" if answers else "fail", description, f"{remedy} encryption zone can be used"
    )


def check_login(env: Mapping[str, str]) -> Check:
    """For a cluster with Kerberos: tokens, a keytab or a valid ticket."""
    name, settings = "Kerberos", _settings(env)
    if settings is None or not settings.kerberos:
        return Check(name, "skip", "not enabled in HADOOP_CONF_DIR")
    remedy = "kinit, or set KRB5_CLIENT_KTNAME to a keytab"
    if env.get(tokens.ENVIRONMENT):
        return _tokens(name, env)
    keytab = (env.get("KRB5_CLIENT_KTNAME") or "").removeprefix("FILE:")
    if keytab:
        if os.access(keytab, os.R_OK):
            return Check(name, "ok", f"keytab {keytab}")
        return Check(name, "fail", f"keytab {keytab}: cannot be read", remedy)
    klist = shutil.which("klist", path=env.get("PATH", ""))
    if klist is None:
        description = "no keytab; without klist tickets cannot be checked"
        return Check(name, "warn", description, f"apt-get install krb5-user; {remedy}")
    code, text = run_program([klist, "-s"], env)
    cache = env.get("KRB5CCNAME", "the default cache")
    if code != 0:
        why = f"no valid ticket in {cache}" if code == 1 else f"klist -s: {text.strip() or code}"
        return Check(name, "fail", f"no keytab, and {why}", remedy)
    return Check(name, "ok", f"a valid ticket in {cache}")


def _tokens(name: str, env: Mapping[str, str]) -> Check:
    try:
        held = tokens.load(env)
    except HowdahError as error:
        return Check(name, "fail", f"{error.where}: {error.got}", error.remedy)
    ours = [token for token in held if token.kind == tokens.HDFS_KIND]
    path = env[tokens.ENVIRONMENT]
    if not ours:
        return Check(name, "fail", f"{path} holds no token of HDFS", "have the job fetch one")
    last = max(token.expires for token in ours) - time.time()
    description = f"tokens for {', '.join(sorted(token.service for token in ours))} in {path}"
    if last <= 60:
        expiring = f"{description}, which expire within a minute"
        return Check(name, "fail", expiring, "have the job fetch new ones")
    return Check(name, "ok", f"{description}, to be renewed for at most {last / 3600:.1f} h")
