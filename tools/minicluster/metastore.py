"""A real Hive metastore service for the mini cluster, with Derby.

With the newest Hadoop it is PySpark's own, with an older one that of Hive 3.1, as clusters have it.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from howdah.errors import ClusterError
from tools.minicluster import kerberos, settings
from tools.minicluster.maven import jars
from tools.minicluster.plan import Plan

NAME = "metastore"
_PACKAGE = "org.apache.hadoop.hive.metastore"
MAIN = f"{_PACKAGE}.HiveMetaStore"
LOOPBACK = Path(__file__).parent / "maven" / "LoopbackMain.java"
LOG4J2 = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{2}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
# It logs a warning with a stack trace for each table that it creates.
logger.datanucleus.name = DataNucleus
logger.datanucleus.level = error
"""


def uri(plan: Plan) -> str:
    """thrift://localhost:PORT"""
    return f"thrift://{plan.address(NAME)}"


def client_site(plan: Plan) -> dict[str, str]:
    """hive-site.xml of clients, with the metastore's address."""
    site = {
        "hive.metastore.uris": uri(plan),
        "hive.metastore.warehouse.dir": f"hdfs://{plan.authority}/user/hive/warehouse",
    }
    if plan.kerberos:
        site["hive.metastore.sasl.enabled"] = "true"
        site["hive.metastore.kerberos.principal"] = f"hive/_HOST@{plan.kerberos['realm']}"
    return site


def server_site(plan: Plan) -> dict[str, str]:
    """hive-site.xml of the service: Derby in the cluster's directory, with a new schema."""
    database = plan.path(NAME, "db")
    site = {
        **client_site(plan),
        "hive.async.log.enabled": "false",
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={database};create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        # PySpark lacks the pool that is Hive's default, which the service would need when a
        # database is dropped.
        "datanucleus.connectionPoolingType": "HikariCP",
    }
    if plan.hadoop != jars.HADOOP_VERSION:  # the defaults are classes of Hive's query engine
        site["hive.metastore.expression.proxy"] = f"{_PACKAGE}.DefaultPartitionExpressionProxy"
        site["metastore.task.threads.always"] = f"{_PACKAGE}.events.EventCleanerTask"
    del site["hive.metastore.uris"]  # a service with this key would be a client
    if plan.kerberos:
        site["hive.metastore.kerberos.keytab.file"] = str(kerberos.keytab_path(plan, "services"))
    return site


def write_conf(plan: Plan) -> None:
    """Write hive-site.xml for the service, and for Spark into the clients' HADOOP_CONF_DIR."""
    directory = settings.daemon_conf(plan, NAME)
    settings.write_site(directory / "hive-site.xml", server_site(plan))
    (directory / "hive-log4j2.properties").write_text(LOG4J2)
    settings.write_site(plan.conf_dir / "hive-site.xml", client_site(plan))


def argv(plan: Plan, flags: list[str]) -> list[str]:
    """The command of the service.

    Raises:
        ClusterError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")  # for its path, without importing it
    if spec is None or spec.origin is None:
        raise ClusterError(
            "the Hive metastore needs PySpark's jars, and PySpark is not installed",
            remedy="pip install 'howdah[etl]'",
        )
    spark = Path(spec.origin).parent / "jars"
    path = f"{spark}/*"
    if plan.hadoop != jars.HADOOP_VERSION:
        hive = jars.fetch(print, jars.METASTORE)
        # The compiler of `LOOPBACK`, and the file formats by which ACID tables are recognised, with
        # all that these need.
        names = ("janino-*", "commons-compiler-*", "hive-[!m]*", "orc-*")
        more = [str(jar) for name in names for jar in spark.glob(name)]
        # Hadoop's libraries come first: Hive's are older.
        path = ":".join([f"{plan.jars}/lib/*", f"{hive}/lib/*", *more])
    plan.path(NAME).mkdir(exist_ok=True)
    return [
        f"{plan.java_home}/bin/java",
        *flags,
        f"-Dderby.stream.error.file={plan.path(NAME, 'derby.log')}",
        f"-Dlog4j2.configurationFile={settings.daemon_conf(plan, NAME)}/hive-log4j2.properties",
        "-cp",
        f"{settings.daemon_conf(plan, NAME)}:{path}",
        "org.codehaus.janino.SimpleCompiler",
        str(LOOPBACK),
        LOOPBACK.stem,
        MAIN,
        "-p",
        str(plan.ports[NAME]),
    ]


def forget(plan: Plan) -> None:
    """Remove all tables; the next start creates an empty metastore."""
    shutil.rmtree(plan.path(NAME), ignore_errors=True)
