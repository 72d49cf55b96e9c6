"""The doctor's questions to a Hadoop cluster: its settings, its NameNodes, our credentials."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping

from howdah.doctor_checks import Check
from howdah.errors import HowdahError
from howdah.hadoop import conf, rpc, tokens

_ASK_SECONDS = 5.0


def _settings(env: Mapping[str, str]) -> conf.HadoopConf | None:
    """The settings; None where there are none or they cannot be read (another check says why)."""
    try:
        found = conf.load(env)
    except HowdahError:
        return None
    return found if found.directory is not None else None


def check_namenode(env: Mapping[str, str]) -> Check:
    """Each NameNode behind fs.defaultFS is asked how it wants to be spoken to."""
    name, settings = "NameNode", _settings(env)
    authority = settings.default_authority() if settings else None
    if settings is None or not authority:
        return Check(name, "skip", "no hdfs:// fs.defaultFS is set")
    try:
        addresses = settings.rpc_addresses(authority)
    except HowdahError as error:
        return Check(name, "fail", error.what, error.remedy)
    answers, silent, methods = [], [], set()
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            offered = rpc.auth_methods(host, int(port), _ASK_SECONDS)
        except OSError as error:
            silent.append(f"{address}: {error.strerror or error}")
            continue
        methods.update(offered)
        answers.append(f"{address} answers ({', '.join(offered)})")
    found = "; ".join(answers + silent)
    if not answers:
        remedy = "check that it runs, its host and port in HADOOP_CONF_DIR, and the network"
        return Check(name, "fail", found, remedy)
    if "SIMPLE" not in methods and not settings.kerberos:
        remedy = (
            "take the cluster's own core-site.xml and hdfs-site.xml: they must say"
            " hadoop.security.authentication = kerberos"
        )
        return Check(name, "fail", f"{found}; the settings here know of no Kerberos", remedy)
    if silent:
        return Check(name, "warn", found, "the cluster can be used; one NameNode is away")
    return Check(name, "ok", found)


def check_login(env: Mapping[str, str]) -> Check:
    """Where the cluster wants Kerberos: tokens, a keytab or a ticket that it would take."""
    name, settings = "Kerberos", _settings(env)
    if settings is None or not settings.kerberos:
        return Check(name, "skip", "not wanted by HADOOP_CONF_DIR")
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
        found = "no keytab; whether there is a ticket cannot be told without klist"
        return Check(name, "warn", found, f"apt-get install krb5-user; {remedy}")
    done = subprocess.run([klist, "-s"], env=dict(env), check=False, timeout=30)
    cache = env.get("KRB5CCNAME", "the default cache")
    if done.returncode != 0:
        return Check(name, "fail", f"no keytab, and no valid ticket in {cache}", remedy)
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
    found = f"tokens for {', '.join(sorted(token.service for token in ours))} in {path}"
    if last <= 60:
        return Check(
            name, "fail", f"{found}, at the end of their life", "have the job fetch new ones"
        )
    return Check(name, "ok", f"{found}, to be renewed for at most {last / 3600:.1f} h")
