"""Kerberos for the mini cluster: a real KDC (Debian's krb5-kdc) with its own realm.

It uses only files in the cluster's directory: database, keys, keytabs and ticket caches are in
kerberos/.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Any

from howdah.errors import ClusterError, UsageError
from tools.minicluster.plan import HOST, Plan

NAME = "kdc"
REALM = "HOWDAH.TEST"
SERVICES = ("nn", "dn", "rm", "nm", "jhs", "hive", "HTTP")
DAY = 24 * 3600
UNTRIED = ("3.1.4", "3.2.4")
"""Hadoops without ...kerberos.endpoint.whitelist, which opens /jmx to checks without a ticket."""


def options(
    *, ticket_seconds: int = DAY, token_renew_seconds: int = DAY, token_max_seconds: int = 7 * DAY
) -> dict[str, Any]:
    """`Plan.kerberos`: lifetimes of tickets, and of tokens without and with renewals."""
    return {
        "realm": REALM,
        "ticket_seconds": ticket_seconds,
        "token_renew_seconds": token_renew_seconds,
        "token_max_seconds": token_max_seconds,
    }


def kdc_path(plan: Plan, *parts: str) -> Path:
    """A path in kerberos/."""
    return plan.path("kerberos", *parts)


def keytab_path(plan: Plan, name: str) -> Path:
    """Path of the keytab of a user, or of the services."""
    return kdc_path(plan, "keytabs", f"{name}.keytab")


def principal(plan: Plan, user: str) -> str:
    """user@REALM; "nn/localhost" and the like for services."""
    return f"{user}@{_options(plan)['realm']}"


def _options(plan: Plan) -> dict[str, Any]:
    if plan.kerberos is None:
        raise UsageError(
            "the mini cluster has no Kerberos",
            where=plan.directory,
            remedy="start it with --kerberos",
        )
    return plan.kerberos


# ---------------------------------------------------------------------------------- the realm
def _program(name: str) -> str:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    program = shutil.which(name, path=path)
    if program is None:
        raise ClusterError(
            f"the Kerberos variant needs {name}",
            remedy="apt-get install krb5-kdc krb5-admin-server krb5-user",
        )
    return program


def environment(plan: Plan) -> dict[str, str]:
    """The environment of the KDC's programs."""
    return {
        "KRB5_CONFIG": str(kdc_path(plan, "krb5.conf")),
        "KRB5_KDC_PROFILE": str(kdc_path(plan, "kdc.conf")),
    }


def client_environment(plan: Plan) -> dict[str, str]:
    """Environment variables by which clients find the realm.

    Java has no variable for it, so JAVA_TOOL_OPTIONS replaces /etc/krb5.conf. The ticket cache
    belongs to the cluster, so that `kinit` does not change the user's.
    """
    conf = kdc_path(plan, "krb5.conf")
    return {
        "KRB5_CONFIG": str(conf),
        "KRB5CCNAME": f"FILE:{kdc_path(plan, 'ticket')}",
        "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={conf}",
    }


def make_realm(plan: Plan) -> None:
    """Write krb5.conf and kdc.conf; create the database and the services' keytab if missing."""
    chosen = _options(plan)
    realm, life = chosen["realm"], chosen["ticket_seconds"]
    kdc_path(plan, "keytabs").mkdir(parents=True, exist_ok=True)
    kdc_path(plan).chmod(0o700)
    kdc_path(plan, "krb5.conf").write_text(
        f"""[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  rdns = false
  dns_canonicalize_hostname = false
  udp_preference_limit = 1
  forwardable = true
  ticket_lifetime = {life}s
  renew_lifetime = {7 * DAY}s
  default_ccache_name = FILE:{kdc_path(plan, "ticket")}
[realms]
  {realm} = {{
    kdc = {plan.address(NAME)}
  }}
[domain_realm]
  {HOST} = {realm}
"""
    )
    kdc_path(plan, "kdc.conf").write_text(
        f"""[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = 127.0.0.1:{plan.ports[NAME]}
[realms]
  {realm} = {{
    database_name = {kdc_path(plan, "principal")}
    key_stash_file = {kdc_path(plan, "stash")}
    acl_file = {kdc_path(plan, "kadm5.acl")}
    max_life = {life}s
    max_renewable_life = {7 * DAY}s
    supported_enctypes = aes256-cts:normal aes128-cts:normal
  }}
[logging]
  kdc = STDERR
"""
    )
    if not kdc_path(plan, "stash").exists():
        _run(plan, "kdb5_util", "create", "-s", "-r", realm, "-P", secrets.token_hex(16))
    if not keytab_path(plan, "services").exists():
        names = [f"{service}/{HOST}" for service in SERVICES]
        _add(plan, names, keytab_path(plan, "services"))
    secret = kdc_path(plan, "http-signature")
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))


def argv(plan: Plan) -> list[str]:
    """The KDC's command, in the foreground."""
    return [_program("krb5kdc"), "-n", "-r", _options(plan)["realm"]]


def keytab(plan: Plan, user: str) -> str:
    """The keytab of a user, who is added to the realm if necessary."""
    path = keytab_path(plan, user)
    if not path.exists():
        _add(plan, [user], path)
    return str(path)


def _add(plan: Plan, names: list[str], path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    # kadmin.local reads queries from stdin, which is faster than a call for each principal.
    queries = [f"addprinc -randkey {principal(plan, name)}" for name in names]
    queries += [f"ktadd -norandkey -k {temporary} {principal(plan, name)}" for name in names]
    _run(plan, "kadmin.local", "-r", _options(plan)["realm"], text="\n".join([*queries, ""]))
    if not temporary.exists():
        raise ClusterError("the keytab was not written", where=str(path))
    temporary.chmod(0o600)
    temporary.replace(path)


def _run(
    plan: Plan, program: str, *arguments: str, text: str = "", env: dict[str, str] | None = None
) -> None:
    done = subprocess.run(
        [_program(program), *arguments],
        env={**os.environ, **(env or environment(plan))},
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise ClusterError(
            f"{program} ended with {done.returncode}",
            where=str(kdc_path(plan)),
            got=done.stderr.strip()[-500:],
        )


def admin_environment(plan: Plan) -> dict[str, str]:
    """A client's environment with a ticket of the superuser, in a separate cache."""
    env = {**client_environment(plan), "KRB5CCNAME": f"FILE:{kdc_path(plan, 'admin-ticket')}"}
    _run(plan, "kinit", "-kt", keytab(plan, plan.user), principal(plan, plan.user), env=env)
    return env


# ------------------------------------------------------------------------- Hadoop's settings
def site(plan: Plan) -> dict[str, dict[str, str]]:
    """Additional settings of a secure cluster."""
    chosen = _options(plan)
    realm = chosen["realm"]
    keys = str(keytab_path(plan, "services"))
    web = principal(plan, f"HTTP/{HOST}")
    # All services run as one user, who is HDFS's superuser and may impersonate.
    # (The pattern of a rule cannot contain brackets.)
    rules = [
        f"RULE:[2:$1@$0]({service}@{realm})s/.*/{plan.user}/"
        for service in SERVICES
        if service != "HTTP"
    ]
    core = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hadoop.rpc.protection": "authentication",
        "hadoop.security.auth_to_local": "\n".join([*rules, "DEFAULT"]),
        "hadoop.http.authentication.type": "kerberos",
        "hadoop.http.authentication.simple.anonymous.allowed": "false",
        "hadoop.http.authentication.kerberos.principal": web,
        "hadoop.http.authentication.kerberos.keytab": keys,
        "hadoop.http.authentication.signature.secret.file": str(kdc_path(plan, "http-signature")),
        # Health checks have no ticket.
        "hadoop.http.authentication.kerberos.endpoint.whitelist": "/jmx",
        "hadoop.http.filter.initializers": "org.apache.hadoop.security"
        ".AuthenticationFilterInitializer",
    }
    hdfs = {
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "authentication",
        # Ports below 1024 are root's; the protection above secures these.
        "ignore.secure.ports.for.testing": "true",
        "dfs.namenode.kerberos.principal": principal(plan, f"nn/{HOST}"),
        "dfs.namenode.keytab.file": keys,
        "dfs.namenode.kerberos.internal.spnego.principal": web,
        "dfs.datanode.kerberos.principal": principal(plan, f"dn/{HOST}"),
        "dfs.datanode.keytab.file": keys,
        "dfs.web.authentication.kerberos.principal": web,
        "dfs.web.authentication.kerberos.keytab": keys,
        "dfs.namenode.delegation.token.renew-interval": str(1000 * chosen["token_renew_seconds"]),
        "dfs.namenode.delegation.token.max-lifetime": str(1000 * chosen["token_max_seconds"]),
    }
    yarn = {
        "yarn.resourcemanager.principal": principal(plan, f"rm/{HOST}"),
        "yarn.resourcemanager.keytab": keys,
        "yarn.resourcemanager.webapp.spnego-principal": web,
        "yarn.resourcemanager.webapp.spnego-keytab-file": keys,
        "yarn.nodemanager.principal": principal(plan, f"nm/{HOST}"),
        "yarn.nodemanager.keytab": keys,
        "yarn.nodemanager.webapp.spnego-principal": web,
        "yarn.nodemanager.webapp.spnego-keytab-file": keys,
        # A NodeManager of a secure cluster can read logs only with Hadoop's native library, which
        # is not on Maven Central: it would die at the first aggregation.
        "yarn.log-aggregation-enable": "false",
    }
    mapred = {
        "mapreduce.jobhistory.principal": principal(plan, f"jhs/{HOST}"),
        "mapreduce.jobhistory.keytab": keys,
        "mapreduce.jobhistory.webapp.spnego-principal": web,
        "mapreduce.jobhistory.webapp.spnego-keytab-file": keys,
    }
    return {"core-site": core, "hdfs-site": hdfs, "yarn-site": yarn, "mapred-site": mapred}
