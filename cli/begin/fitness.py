"""`howdah doctor --config`: can this machine run what a configuration names?"""

from __future__ import annotations

from howdah import storage
from howdah.config.model import Config
from howdah.data.manifest import load_dataset
from howdah.data.modelfiles import base_config, fetch, on_hub
from howdah.doctor.checks import Check
from howdah.errors import HowdahError
from howdah.etl import peek
from howdah.models.version import find_version


@storage.waiting_at_most(10.0)  # seconds; a NameNode that does not answer is a finding
def check(config: Config) -> list[Check]:
    """Findings about the base model, the source, the dataset and the cluster."""
    findings = []
    for name, check_one in (
        ("base model", _base), ("source", _source), ("dataset", _dataset), ("cluster", _cluster),
    ):  # fmt: skip
        try:
            findings.append(check_one(config))
        except HowdahError as error:
            problems = [problem.what for problem in error.problems]
            got = "; ".join(part for part in (error.where, error.got, *problems) if part)
            what = f"{error.what}: {got}" if got else error.what
            findings.append(Check(name, "fail", what, error.remedy))
    return findings


def _base(config: Config) -> Check:
    model = config.model
    version = find_version(model.base, config.publish.directory)
    path = version.path if version else model.base
    if on_hub(path):
        return _on_hub(model.base, model.revision)
    fetch(path, patterns=["config.json"])
    fields = base_config(path) or {}
    return Check("base model", "ok", f"{storage.absolute(path)} ({fields.get('model_type')})")


def _on_hub(name: str, revision: str | None) -> Check:
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
        return Check("base model", "ok", f"{name}, in the Hugging Face hub's local cache")
    return Check(
        "base model", "warn", f"{name}: a name of the Hugging Face hub, not in its local cache",
        "it is fetched when it is first used; without a network set model.base to a directory",
    )  # fmt: skip


def _source(config: Config) -> Check:
    data = config.data
    if data.source is None and data.query_file is None:
        return Check("source", "skip", "data.source is not set")
    look = peek.look(data)
    if look is None:
        return Check("source", "skip", f"{data.source or data.query_file}: only Spark can read it")
    rows = f"{look.samples[0].path}, {len(look.labels)} labels in {look.rows:,} rows"
    warnings = [*look.warnings, *look.advice]
    return Check("source", "warn" if warnings else "ok", rows, "; ".join(warnings) or None)


def _dataset(config: Config) -> Check:
    path = config.data.dataset
    if not storage.exists(path):
        missing = f"{storage.absolute(path)} does not exist yet: `howdah etl` makes it"
        return Check("dataset", "skip", missing)
    dataset = load_dataset(path)
    rows = ", ".join(f"{name} {dataset.manifest.rows(name):,}" for name in dataset.manifest.splits)
    return Check("dataset", "ok", f"{storage.absolute(dataset.path)} ({rows} rows)")


def _cluster(config: Config) -> Check:
    from howdah.cli.jobs import cluster_of

    if "on" not in config.job.model_fields_set:
        return Check("cluster", "skip", "job.on is not set: `howdah train` runs on this machine")
    on = config.job.on
    where = f"job.on: {on}, data.spark.master: {config.data.spark.master}"
    if not storage.exists(config.data.dataset):
        return Check("cluster", "skip", f"{where}: checked once there is a dataset")
    notes: list[str] = []
    cluster = cluster_of(on, config)
    with cluster.session():
        cluster.check(notes.append)
    return Check("cluster", "ok", "; ".join([where, *notes]))
