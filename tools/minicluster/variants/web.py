"""The daemons' web ports: plain HTTP, or HTTPS with a certificate of the cluster's own (`--tls`).

With TLS every port named ...-http speaks HTTPS alone, and with Kerberos too all RPC and data
transfers are encrypted, as on clusters where TLS is everywhere.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import ssl
import subprocess
from pathlib import Path
from urllib.parse import quote

from howdah.errors import ClusterError
from tools.minicluster.plan import HOST, Plan

_ADDRESS = re.compile(
    r"(dfs\.(?:namenode|datanode|journalnode)[.-])http([.-]address.*)"
    r"|((?:yarn\.(?:resourcemanager|nodemanager)|mapreduce\.jobhistory)\.webapp\.)(address.*)"
)
DAYS = 3650


def scheme(plan: Plan) -> str:
    """http or https"""
    return "https" if plan.tls else "http"


def connection(plan: Plan, port: str, timeout: float = 60) -> http.client.HTTPConnection:
    """A connection to a daemon's web port, such as "namenode-http"."""
    number = plan.ports[port]
    if not plan.tls:
        return http.client.HTTPConnection(HOST, number, timeout=timeout)
    context = ssl.create_default_context(cafile=str(certificate(plan)))
    return http.client.HTTPSConnection(HOST, number, timeout=timeout, context=context)


def jmx(plan: Plan, port: str, bean: str, *attributes: str) -> dict | None:
    """A daemon's management bean by HTTP.

    None: no process answers, or the bean lacks the attributes. A starting daemon has the bean
    before its values. Without `attributes` any answer will do.
    """
    web = connection(plan, port, timeout=5)
    try:
        web.request("GET", f"/jmx?qry={quote(bean)}")
        answer = web.getresponse()
        if answer.status == 401 and not attributes:
            return {}  # it serves: those of Hadoop before 3.4 want a ticket here too
        if answer.status != 200:
            return None
        beans = json.loads(answer.read())["beans"]
        return beans[0] if beans and all(name in beans[0] for name in attributes) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        web.close()


# ------------------------------------------------------------------------------------------ TLS
def certificate(plan: Plan) -> Path:
    """The certificate that clients are to trust, in PEM."""
    return plan.path("tls", "certificate.pem")


def client_environment(plan: Plan) -> dict[str, str]:
    """Variables by which Python's clients trust the cluster's certificate."""
    return {"REQUESTS_CA_BUNDLE": str(certificate(plan))}


def make_certificate(plan: Plan) -> None:
    """A key with a certificate for localhost, and the store of what the daemons trust."""
    if certificate(plan).exists():
        return
    plan.path("tls").mkdir(exist_ok=True)
    plan.path("tls").chmod(0o700)
    password = plan.path("tls", "password")
    password.touch(mode=0o600)
    password.write_text(secrets.token_hex(16))
    made, trusted = plan.path("tls", ".certificate"), plan.path("tls", "trusted.p12")
    key = (
        "-genkeypair", "-alias", "web", "-keyalg", "RSA", "-keysize", "2048", "-dname",
        f"CN={HOST}", "-ext", f"san=dns:{HOST},ip:127.0.0.1", "-validity", str(DAYS), "-storetype",
        "PKCS12", "-keystore", str(plan.path("tls", "keys.p12")),
    )  # fmt: skip
    export = ("-exportcert", "-rfc", "-alias", "web", "-keystore", key[-1], "-file", str(made))
    trust = (
        "-importcert", "-noprompt", "-alias", "web", "-storetype", "PKCS12", "-keystore",
        str(trusted), "-file", str(made),
    )  # fmt: skip
    for words in (key, export, trust):
        done = subprocess.run(
            [f"{plan.java_home}/bin/keytool", *words, "-storepass:file", str(password)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()
            raise ClusterError("keytool failed", where=str(plan.path("tls")), got=output[-500:])
    os.replace(made, certificate(plan))


def secure(files: dict[str, dict[str, str]], plan: Plan) -> None:
    """Change the settings to HTTPS, and with Kerberos to encrypted RPC and data transfers."""
    for values in files.values():
        for key in list(values):
            if match := _ADDRESS.fullmatch(key):
                hdfs, rest, yarn, end = match.groups()
                values[f"{hdfs}https{rest}" if hdfs else f"{yarn}https.{end}"] = values.pop(key)
    files["hdfs-site"]["dfs.http.policy"] = "HTTPS_ONLY"
    files["yarn-site"]["yarn.http.policy"] = "HTTPS_ONLY"
    files["mapred-site"]["mapreduce.jobhistory.http.policy"] = "HTTPS_ONLY"
    logs = files["yarn-site"]["yarn.log.server.url"]
    files["yarn-site"]["yarn.log.server.url"] = logs.replace("http://", "https://", 1)
    if plan.kerberos:
        files["core-site"]["hadoop.rpc.protection"] = "privacy"
        files["hdfs-site"]["dfs.data.transfer.protection"] = "privacy"
    password = plan.path("tls", "password").read_text()
    for side, stores in (("server", ("keys", "trusted")), ("client", ("trusted",))):
        site = files.setdefault(f"ssl-{side}", {})
        for store in stores:
            name = f"ssl.{side}.{'keystore' if store == 'keys' else 'truststore'}"
            site[f"{name}.location"] = str(plan.path("tls", f"{store}.p12"))
            site[f"{name}.password"] = password
            site[f"{name}.type"] = "pkcs12"
    files["ssl-server"]["ssl.server.keystore.keypassword"] = password
