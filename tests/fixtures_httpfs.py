"""HttpFS before the mini cluster's HDFS: a real gateway, of the newest Hadoop that has its jar."""

import secrets
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

HERE = Path(__file__).parent
MAIN = "org.apache.hadoop.fs.http.server.HttpFSServerWebServer"


def _ready(process, port, log):
    from yarn.minicluster import daemons

    if process.poll() is not None:
        pytest.fail(f"HttpFS ended with {process.returncode}: {log.read_text()[-3000:]}")
    return daemons.listens(port)


@pytest.fixture(scope="module")
def httpfs(cluster, tmp_path_factory):
    """webhdfs://localhost:PORT of a gateway to the session's cluster."""
    from yarn.minicluster import daemons, host, jars, settings

    plan = cluster.plan
    wanted = jars.Wanted("httpfs-3.4.1", HERE / "httpfs.xml", HERE / "httpfs.sha256")
    home = tmp_path_factory.mktemp("httpfs")
    for name in ("conf", "log", "temp"):
        (home / name).mkdir()
    lib = jars.fetch(print, wanted) / "lib"
    (home / "conf" / "httpfs-signature.secret").write_text(secrets.token_hex(16))
    with host.reserve_ports(["httpfs"], {}, {}) as ports:
        port = ports["httpfs"]
    site = {
        "httpfs.http.hostname": settings.HOST,
        "httpfs.http.port": str(port),
        "httpfs.hadoop.config.dir": str(plan.conf_dir),
        "hadoop.http.temp.dir": str(home / "temp"),
    }
    settings.write_site(home / "conf" / "httpfs-site.xml", site)
    log = home / "log" / "out"
    argv = [f"{plan.java_home}/bin/java", "-Xmx256m", *settings.java_flags(plan)]
    argv += [f"-Dhttpfs.{name}.dir={home / name}" for name in ("log", "temp")]
    argv += [f"-Dhttpfs.home.dir={home}", f"-Dhttpfs.config.dir={home / 'conf'}"]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [*argv, "-cp", f"{home / 'conf'}:{lib}/*", MAIN],
            env=daemons.daemon_environment(plan), cwd=home, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(lambda: _ready(process, port, log))
        yield f"webhdfs://{settings.HOST}:{port}"
    finally:
        process.kill()
        process.wait()
