"""Addresses that a job's processes listen on, compared with the rows of docs/clusters.md."""

import ipaddress
import re

import psutil

from tests import ROOT

DRIVER, RELAY, RANKS, SPARK, RAY = (
    "the job's driver, everywhere", "an agent's relay", "ranks (Gloo)", "Spark",
    "Ray (GCS, raylet, workers, agents; the job's driver is one of its workers)",
)  # fmt: skip
_ROLES = (  # by what is in the command line, the first that fits
    (RELAY, " howdah.jobs.clusters agent "), (RANKS, " howdah.training --config "),
    (SPARK, "pyspark"), (SPARK, "org.apache.spark"), (RAY, "ray"),
)  # fmt: skip


def sockets_of(one):
    """{row: addresses} of the driver and all below it: TCP that listens, and UDP."""
    by_row = {}
    for process in [psutil.Process(one.driver.pid), *one.descendants()]:
        try:
            words = " ".join(process.cmdline()) + " "
            sockets = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        row = DRIVER if process.pid == one.driver.pid else role(words)
        for socket in sockets:
            if socket.status == psutil.CONN_LISTEN or (socket.type == 2 and not socket.raddr):
                by_row.setdefault(row, set()).add(socket.laddr.ip)
    return by_row


def role(words):
    return next((row for row, text in _ROLES if text in words), words)


def documented():
    """{row: what the table says it listens on}."""
    text = (ROOT / "docs" / "clusters.md").read_text()
    table = text.partition("## What listens")[2].partition("\n## ")[0]
    return {row: on for row, on, _ in re.findall(r"^\| (.+?) \| (.+?) \|(.*)\|$", table, re.M)}


def check(one, on):
    """A job whose world is formed, on a Spark of this machine or a Ray of its own, listens on what
    the table says, and its ranks on nothing."""
    documents, ports = documented(), sockets_of(one)
    assert {DRIVER, RELAY, RANKS, SPARK, RAY} == documents.keys() - {""}
    cluster = {"local": set(), "spark": {SPARK}, "ray": {RAY}}[on]
    assert ports.keys() == {DRIVER, RELAY} | cluster, ports
    wide = {row for row, addresses in ports.items() if not all(map(is_loopback, addresses))}
    assert wide == ({DRIVER, RAY} if on == "ray" else set()), ports
    assert all(word in documents[row] for row, word in (
        (DRIVER, "loopback (local, `local[N]`, `local-cluster`, a Ray of its own)"),
        (RELAY, "loopback"), (SPARK, "loopback with local masters"), (RAY, "ALL interfaces"),
    ))  # fmt: skip


def is_loopback(address):
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
