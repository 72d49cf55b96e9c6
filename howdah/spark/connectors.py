"""Jars that Spark lacks for a format of `data.format`, and the settings that they need.

They travel with the application (`spark.jars`), so that nodes need no network and nothing
installed. One table: for each line of Spark the version of a connector that was made for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howdah.config.model import Config
from howdah.errors import ConfigError
from howdah.packaging import maven, spark_versions
from howdah.packaging.maven import Jar, Progress
from howdah.spark.shipping import spark_home

_POSTGRESQL = (
    Jar("org.postgresql", "postgresql", "42.7.14",
        "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"),
)  # fmt: skip


def _avro(scala: str, version: str, sha256: str) -> tuple[Jar, ...]:
    return (Jar("org.apache.spark", f"spark-avro_{scala}", version, sha256),)


def _iceberg(line: str, version: str, sha256: str) -> tuple[Jar, ...]:
    return (Jar("org.apache.iceberg", f"iceberg-spark-runtime-{line}", version, sha256),)


def _delta(artifact: str, version: str, sha256: str, storage: str) -> tuple[Jar, ...]:
    return (
        Jar("io.delta", artifact, version, sha256),
        Jar("io.delta", "delta-storage", version, storage),
    )


JARS: Mapping[str, Mapping[str, tuple[Jar, ...]]] = {
    "avro": {
        "3.4": _avro("2.12", "3.4.3",
            "28494f77dc4048414705dbf57259c34036bb1ae6f66397d466b6258701d2f7f2"),
        "3.5": _avro("2.12", "3.5.7",
            "b0660bc224cbd1eb3ae144001c1328863060e64f1834dd7bbadc1ddbf09d2b15"),
        "4.0": _avro("2.13", "4.0.2",
            "fd102b6c6754f72f53a01ac882f0da2b1a6f9f02127647ac3e1f0ca951d4433b"),
        "4.1": _avro("2.13", "4.1.1",
            "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d"),
        "4.2": _avro("2.13", "4.2.0",
            "4c186cedc03cbe4ee356a94b32232b347ef48611c3209400b3a77e4fe4abff4f"),
    },
    "jdbc": dict.fromkeys(("3.4", "3.5", "4.0", "4.1", "4.2"), _POSTGRESQL),
    # Iceberg 1.11 and 1.12, the newest, have no runtime for Spark 4.2, and that for 4.1 does not
    # load there.
    "iceberg": {
        "3.5": _iceberg("3.5_2.12", "1.10.2",
            "c562d482dcd16b666e808b755469fbc4b2604284b41622c9d87e2c02b7cc6c5f"),
        "4.0": _iceberg("4.0_2.13", "1.10.2",
            "7124a5da756f69c815f3f778691167ed00dfd813dde2c26025278aa35f35abb8"),
        "4.1": _iceberg("4.1_2.13", "1.11.0",
            "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242"),
    },
    "delta": {
        "3.4": _delta("delta-core_2.12", "2.4.0",
            "547a5b33bde8232b78fee67aa0226e979f73ab575eb42b24db1915db0c931622",
            "567686e9fd027c8d776463d4b3ad45928d477be0a04e16f1321ead09bc86ae8a"),
        "3.5": _delta("delta-spark_2.12", "3.3.2",
            "4e92085d5d794cf949c50bb665b91384857cad58680c2d0bfc9c7ad353e98e85",
            "c096975a2ca97ccc9b4005aa5cce16c9ac3903139d340da6665b66ace67d7c36"),
        "4.0": _delta("delta-spark_2.13", "4.0.0",
            "538511702aae0ef6973a6a70af3d4543c9009f8edbed786a00737e2d3cd7f04e",
            "9bdb9fb450f1e119eba53feb427f331b0d09072d26485b8273883ad72c9a2e1d"),
        "4.1": _delta("delta-spark_4.1_2.13", "4.4.0",
            "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
        "4.2": _delta("delta-spark_4.2_2.13", "4.4.0",
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    },
}  # fmt: skip
"""{format: {line of Spark: jars}}; tests/etl/sources/ (test_snapshots.py, test_jdbc.py) use Iceberg
on 3.5, the others on 4.2."""

_ARTIFACTS = {
    "avro": "spark-avro",
    "jdbc": "postgresql",
    "iceberg": "iceberg-spark-runtime",
    "delta": "delta-",  # delta-core before Spark 3.5, then delta-spark
}
_CLASSES = {
    "avro": "org.apache.spark.sql.avro.AvroFileFormat",
    "jdbc": "org.postgresql.Driver",
    "iceberg": "org.apache.iceberg.spark.source.IcebergSource",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
}
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
}
_LISTS = ("spark.jars", "spark.sql.extensions")
_OWN = ("spark.jars", "spark.jars.packages")


def settings(config: Config, progress: Progress, *, kind: str | None = None) -> dict[str, str]:
    """Spark's settings for the source's format; its jars are fetched where they are not cached.

    Where data.spark.conf names such a jar (spark.jars, spark.jars.packages), that one is used.

    Args:
        kind: of the source, where data.format is auto.

    Raises:
        ConfigError: no connector is known for this line of Spark.
        ClusterError: the jars cannot be fetched.
    """
    kind = kind or config.data.format
    if kind not in JARS:
        return {}
    more = dict(_SETTINGS.get(kind, {}))
    options = config.data.spark
    configured = ",".join(options.conf.get(key, "") for key in _OWN)
    if _ARTIFACTS[kind] in configured:
        return more
    home = spark_home(options)
    version, scala = spark_versions.version_of(home) or "unknown", spark_versions.scala_of(home)
    jars = JARS[kind].get(".".join(version.split(".")[:2]))
    # Spark 3 exists for either Scala, whose jars do not load in the other.
    if jars is None or any("_2." in j.artifact and f"_{scala}" not in j.artifact for j in jars):
        raise ConfigError(
            f"there is no connector for {kind} and this Spark",
            where=f"data.format {kind}, Spark {version} for Scala {scala}",
            expected=f"Spark {', '.join(JARS[kind])}; before 4.0 for Scala 2.12",
            remedy="set data.spark.home to such a Spark, or name the jar in data.spark.conf:"
            " {spark.jars: FILE}",
        )
    paths = maven.fetch(jars, f"the jars for data.format {kind}", progress)
    return {"spark.jars": ",".join(paths), **more}


def joined(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Both settings; theirs win, and lists of jars and extensions are those of both.

    >>> joined({"spark.jars": "a.jar", "x": "1"}, {"spark.jars": "b.jar", "x": "2"})
    {'spark.jars': 'a.jar,b.jar', 'x': '2'}
    """
    both = {**ours, **theirs}
    for key in _LISTS:
        if ours.get(key) and theirs.get(key):
            both[key] = f"{ours[key]},{theirs[key]}"
    return both


def require(spark: Any, kind: str) -> None:
    """Refuse a session without the classes of a format: one that was there before.

    Raises:
        ConfigError: it has none.
    """
    from py4j.protocol import Py4JJavaError

    if kind not in _CLASSES:
        return
    jvm = spark._jvm
    try:
        loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        jvm.java.lang.Class.forName(_CLASSES[kind], False, loader)
    except Py4JJavaError:
        raise ConfigError(
            f"the Spark session has no connector for {kind}",
            where=f"data.format {kind}",
            expected=f"the class {_CLASSES[kind]}",
            remedy="stop that session first (`howdah etl` starts one with the connector), or start"
            " it with the jars in spark.jars",
        ) from None
