"""Inputs and outputs of a task, from its fields and its commands' answers. Pure functions: they
import neither Airflow nor OpenLineage and open no files.

Names follow OpenLineage's naming specification (openlineage.io/docs/spec/naming): a file is the
storage's namespace and the path, a Hive table is hive://<metastore> and database.table.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from howdah.config.options.partition import is_files, parse
from howdah.config.options.source import LAKES
from howdah.core import paths
from howdah.core.address import split_address

_DATASET = re.compile(r"(.+)/v=([0-9A-Za-z]+)/?")
_METASTORE = ("spark.hadoop.hive.metastore.uris", "spark.hive.metastore.uris",
              "hive.metastore.uris")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Item:
    """A dataset in OpenLineage's sense: a table, files, a dataset version, a run, a model."""

    namespace: str
    name: str
    version: str | None = None
    """Version of the data: a manifest's hash, a model's number, a snapshot."""
    partitions: tuple[Mapping[str, str], ...] = ()
    """{column: value} of each partition, for a part of a table."""
    rows: int | None = None
    kind: str = "data"
    """data, run or model."""


@dataclass(frozen=True, kw_only=True)
class Touched:
    """Inputs and outputs of a task, and facts about its run."""

    inputs: tuple[Item, ...] = ()
    outputs: tuple[Item, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """{name: value} of the run facet `howdah`."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """The storage, metastore and directory that names are resolved by."""

    hdfs: str | None = None
    """host:port, or the name service, of fs.defaultFS."""
    metastore: str | None = None
    """host:port of the Hive metastore."""
    directory: str = "/"
    """Base of relative paths on the machine where commands run."""

    def of(self, name: str, **more: Any) -> Item:
        """A table or a path as an Item.

        Args:
            name: database.table, table:NAME, or a path.
            more: further fields of the Item.
        """
        bare = name.removeprefix("table:")
        if bare != name or not is_files(bare):
            return self.table(bare, **more)
        return self.path(name, **more)

    def table(self, name: str, **more: Any) -> Item:
        """A table of the metastore; a name without a database is in the database default."""
        parts = name.split(".")[-2:]
        full = ".".join(parts if len(parts) == 2 else ["default", *parts])
        space = f"hive://{self.metastore}" if self.metastore else "hive"
        return Item(namespace=space, name=full, **more)

    def path(self, path: str, **more: Any) -> Item:
        """A file or directory on any storage."""
        if paths.is_local(path):
            local = os.path.expanduser(paths.without_scheme(path))
            name = posixpath.normpath(posixpath.join(self.directory, local))
            return Item(namespace="file", name=name, **more)
        scheme, name = paths.scheme(path), paths.inner(path)
        host = paths.authority(path).rpartition("@")[2] or (self.hdfs if scheme == "hdfs" else "")
        space = f"{scheme}://{host}" if host else scheme
        # In an object store the name is the key, which does not begin with a slash.
        name = name if paths.on_hdfs(path) else name.lstrip("/") or "/"
        return Item(namespace=space, name=name, **more)


def places_of(
    config: Mapping[str, Any], hadoop: Mapping[str, str] | None = None, directory: str = "/"
) -> Places:
    """The places of a configuration.

    Args:
        config: nested; Spark's settings may name the metastore.
        hadoop: settings of Hadoop's client on Airflow's machine, if it has any.
        directory: base of relative paths.
    """
    conf = ((config.get("data") or {}).get("spark") or {}).get("conf") or {}
    client = hadoop or {}
    uris = next((conf[key] for key in _METASTORE if conf.get(key)), None)
    uris = uris or client.get("hive.metastore.uris") or ""
    default = urlsplit(str(client.get("fs.defaultFS") or ""))
    return Places(
        hdfs=default.netloc if default.scheme == "hdfs" else None,
        metastore=urlsplit(uris.split(",")[0].strip()).netloc or None,
        directory=directory,
    )


# ----------------------------------------------------------------------------------- the tasks
def etl(places: Places, config: Any, made: Mapping[str, Any] | None) -> Touched:
    """`howdah etl`: source rows in, a version of the dataset out.

    Args:
        made: the command's JSON object; None: it has not ended, or has failed.
    """
    if not isinstance(config, Mapping):
        return Touched()
    data = config["data"]
    source = data.get("source")
    inputs = ()
    if source:
        partitions = data.get("partitions") or {}
        rows = [{}]
        for column, values in partitions.items():
            rows = [{**row, column: value} for row in rows for value in values]
        more: dict[str, Any] = {"partitions": tuple(rows) if partitions else ()}
        if data.get("as_of") is not None:
            more["version"] = str(data["as_of"])
        table = data.get("format") in ("hive", "jdbc", *LAKES) and not is_files(source)
        inputs = ((places.table if table else places.of)(source, **more),)
    path = str((made or {}).get("dataset") or data["dataset"])
    rows_made = (made or {}).get("rows") or {}
    total = sum(rows_made.values()) if made else None
    match = _DATASET.fullmatch(path)
    base, version = match.groups() if match else (path, None)
    return Touched(inputs=inputs, outputs=(places.path(base, version=version, rows=total),))


def trained(places: Places, config: Any, made: Mapping[str, Any] | None) -> Touched:
    """`howdah train`: the dataset and the initial weights in, the run out."""
    if not isinstance(config, Mapping):
        return Touched()
    model, directory = config["model"], config["run"]["directory"]
    begin = model.get("init_from") or model["base"]
    inputs = [places.path(config["data"]["dataset"])]
    if model.get("init_from") or ("/" in begin.rstrip("/") and _is_path(begin)):
        root, number = split_address(begin)
        version = None if number is None else str(number)
        inputs.append(places.path(root, version=version, kind="model"))
    run_id = (made or {}).get("run_id")
    facts = {"run_directory": directory, **({"run_id": run_id} if run_id else {})}
    output = places.path(directory, version=run_id, kind="run")
    return Touched(inputs=tuple(inputs), outputs=(output,), facts=facts)


def published(places: Places, config: Any, made: Mapping[str, Any] | None) -> Touched:
    """`howdah publish`: the run in, a version of the model out."""
    if not isinstance(config, Mapping):
        return Touched()
    publish, run = config["publish"], config["run"]
    name = publish.get("name") or run["name"]
    root = f"{publish['directory'].rstrip('/')}/{name}"
    made = made or {}
    version = str(made["version"]) if made.get("version") is not None else None
    facts = {"run_directory": run["directory"], "model": root}
    facts |= {key: str(made[key]) for key in ("run_id", "version") if made.get(key) is not None}
    return Touched(
        inputs=(places.path(run["directory"], version=made.get("run_id"), kind="run"),),
        outputs=(places.path(root, version=version, kind="model"),),
        facts=facts,
    )


def scored(
    places: Places,
    *,
    source: str,
    output: str,
    model: str,
    made: Mapping[str, Any],
    partitions: Sequence[str] = (),
) -> Touched:
    """`howdah score` and `howdah predict`: rows and model in, scores out.

    Args:
        made: the command's JSON object; empty: it has not ended, or has failed.
    """
    specs = () if is_files(source) else tuple(map(parse, partitions))
    rows = made.get("rows")
    if rows is None and made.get("partitions"):
        rows = sum(each.get("rows") or 0 for each in made["partitions"])
    root, spelt = split_address(model)
    number = made.get("version") or spelt
    facts = {"model": root, **({"version": str(number)} if number else {})}
    if made.get("run_id"):
        facts["run_id"] = str(made["run_id"])
    scorer = places.path(root, version=None if number is None else str(number), kind="model")
    inputs = (places.of(source, partitions=specs), scorer)
    return Touched(
        inputs=inputs, outputs=(places.of(output, partitions=specs, rows=rows),), facts=facts
    )


def judged(places: Places, *, scored: Mapping[str, Any]) -> Touched:
    """`howdah drift`: the scores in, or the rows of files, which it classifies itself."""
    read = scored.get("source" if scored.get("files") else "output")
    if not read:
        return Touched()
    names = [each["partition"] for each in scored.get("partitions") or []]
    specs = () if scored.get("files") else tuple(map(parse, names))
    facts = {"model": str(scored["model"])} if scored.get("model") else {}
    return Touched(inputs=(places.of(read, partitions=specs),), facts=facts)


def _is_path(name: str) -> bool:
    """True for a directory, False for a name of the hub, which has at most one slash."""
    return "://" in name or name.startswith(("/", ".", "~")) or name.count("/") > 1
