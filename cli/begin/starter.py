"""`howdah config init --source`: a configuration from a look at the source's first rows."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from howdah import storage
from howdah.config.data import CsvOptions, DataSection
from howdah.config.model import ModelSection
from howdah.config.yaml_text import flow
from howdah.core.cache import cache_root
from howdah.core.terminal import as_cell
from howdah.data.files import peek, records
from howdah.data.files.peek import Sample
from howdah.data.targets import label_name
from howdah.errors import DataError
from howdah.etl import peek as etl_peek
from howdah.etl.sources import source as sources
from howdah.etl.sources.source import Source

_OFFLINE = "minilm-l6-*"
"""Directory of the cache into which set-up puts the demo's base model."""
_HUB = ModelSection().base
_MOST_PARTITIONS = 8
"""Directories of which a file is looked at, where their names are columns."""
_PLAIN = re.compile("[^A-Za-z0-9._-]+")


def from_source(path: str) -> tuple[str, list[str]]:
    """(the configuration as YAML, lines about it) for a file or directory of rows.

    Raises:
        ConfigError, DataError: it cannot be read, or holds no text.
    """
    path = storage.absolute(path)
    data = DataSection(source=path)
    source = sources.resolve(data)
    first = source.files[0].path
    options = peek.sniffed(first, data.csv) if source.kind == "csv" else data.csv
    sample = peek.sample(first, source.kind, options, source.root)
    if source.kind == "csv" and _begins_with_a_row(sample):
        names = [f"column_{n}" for n, _ in enumerate(sample.names, start=1)]
        options = options.model_copy(update={"header": False, "names": names})
        sample = peek.sample(first, source.kind, options, source.root)
    if not sample.rows:
        raise _without_rows(first, sample)
    sample = _with_partitions(sample, source, options)
    columns = peek.guessed(sample)
    numbers = ", ".join(peek.numeric(sample, columns.values()))
    notes = [
        f"the header names the column {name!r} {count} times: rename one of them"
        for name, count in Counter(sample.names).items()
        if count > 1
    ]
    if "text" not in columns:
        notes.append(
            "no column looks like a text: set data.columns.text to one of"
            f" {', '.join(sample.names)} (of an object a field: a.b)"
        )
    if "label" not in columns:
        notes.append(
            "no column looks like a label (from 2 to 100 values that repeat): set"
            f" data.columns.label to one of {', '.join(sample.names)}"
            + (f"; for numbers, as in {numbers}, set data.task: regression too" if numbers else "")
        )
    return "\n".join(_lines(path, sample, options, columns)) + "\n", notes


def _with_partitions(sample: Sample, source: Source, options: CsvOptions) -> Sample:
    """The sample, with rows of a file of each of some directories whose names are columns: in one
    of them such a column has one value."""
    if not records.directories(sample.path, source.root):
        return sample
    firsts = {storage.parent(entry.path): entry.path for entry in reversed(source.files)}
    _, *paths = list(reversed(firsts.values()))[:_MOST_PARTITIONS]
    others = (peek.sample(path, source.kind, options, source.root) for path in paths)
    samples = [sample, *others]
    rows = [row for one in samples for row in one.rows]
    return replace(sample, path=source.root or sample.path, rows=rows, whole=False)


def _begins_with_a_row(sample: Sample) -> bool:
    """True if the first line is a row: a label stands there and below.

    A whole line of the names is a second header, of files that were joined.
    """
    names = sample.names
    same = [sum(row.get(name) == name for name in names) for row in sample.rows]
    return any(count and (count < len(names) or len(names) == 1) for count in same)


def _without_rows(path: str, sample: Sample) -> DataError:
    remedy = "write the configuration by hand: howdah config init run.yaml"
    if not sample.malformed:
        return DataError(
            f"only the columns of {sample.form.upper()} files can be read here"
            if sample.form in ("orc", "avro")
            else "the source has no rows to look at",
            where=path,
            expected="CSV, JSON lines or Parquet with rows",
            got=f"columns {', '.join(sample.names) or 'none'}",
            remedy=remedy,
        )
    line, problem = sample.malformed[0]
    if sample.form == "csv":
        remedy = (
            "remove lines above the header; else set data.csv.delimiter, quote or escape in a"
            " configuration that is written by hand: howdah config init run.yaml"
        )
    elif sample.form == "jsonl":
        remedy = "write one object a line: jq -c . FILE > rows.jsonl"
    return DataError(
        "no row can be read",
        where=f"{path}, line {line}",
        expected=f"fields {', '.join(sample.names)}" if sample.names else "an object a line",
        got=problem,
        remedy=remedy,
    )


# ------------------------------------------------------------------------------------- YAML
def _lines(
    path: str, sample: Sample, options: CsvOptions, columns: dict[str, str]
) -> Iterator[str]:
    name = _PLAIN.sub("-", storage.name(path).split(".")[0]).strip("-._") or "run"
    which = "all" if sample.whole else "the first"
    yield f"# Howdah run configuration, based on {which} {len(sample.rows):,} rows of"
    yield f"# {as_cell(sample.path)}."
    yield "# `howdah config explain KEY` explains a key, `howdah config explain` lists all of them."
    yield "run:"
    yield "  # Name of the run."
    yield f"  {flow({'name': name})}"
    yield "  # Directory of its checkpoints, logs, report and model."
    yield f"  {flow({'directory': f'runs/{name}'})}"
    yield ""
    yield "data:"
    yield "  # The rows."
    yield f"  {flow({'source': path})}"
    yield from _csv(options)
    yield "  columns:"
    guess = ": the longest one" if "text" in columns else ", which no column looks like"
    yield f"    # Column of the text{guess}."
    yield f"    {flow({'text': columns.get('text', 'text')})}"
    counts = _counts(sample, columns)
    shown = ", ".join(flow({name: rows}) for name, rows in counts.most_common(5))
    yield f"    # Column of the label{': ' + shown if shown else ', which no column looks like'}."
    yield f"    {flow({'label': columns.get('label', 'label')})}"
    if "id" in columns:
        yield "    # Column of the row's key, which predictions carry too."
        yield f"    {flow({'id': columns['id']})}"
    yield from _labels(counts)
    yield "  # Dataset directory: `howdah etl` writes it, `howdah train` reads it."
    yield f"  {flow({'dataset': f'datasets/{name}'})}"
    yield ""
    yield "model:"
    base = offline_base()
    if base is None:
        yield "  # Base model: a name of the Hugging Face hub, or a directory on this machine."
    else:
        yield f"  # Base model that set-up has fetched; {_HUB} is one of the Hugging Face hub."
    yield f"  {flow({'base': base or _HUB})}"
    yield ""
    framework = "tensorflow"
    if importlib.util.find_spec(framework) is None:
        framework = "torch"
    yield "training:"
    yield "  # Framework that trains: torch or tensorflow."
    yield f"  framework: {framework}"
    yield "  # Passes over the training rows."
    yield "  num_train_epochs: 3"
    yield ""
    yield "gate:"
    yield "  # `howdah publish` needs a model that beats TF-IDF with logistic regression."
    yield "  min_over_baseline: 0"


def _csv(options: CsvOptions) -> Iterator[str]:
    changed = options.model_dump(exclude_defaults=True)
    if not changed:
        return
    sentences = {
        "delimiter": "Separator of the fields.",
        "encoding": "Character set of the file.",
        "header": "The file's first line is a row, not the names of columns.",
        "names": "Names of its columns.",
    }
    yield "  csv:"
    for key, value in changed.items():
        yield f"    # {sentences[key]}"
        yield f"    {flow({key: value})}"


def _counts(sample: Sample, columns: dict[str, str]) -> Counter[str]:
    if "label" not in columns:
        return Counter()
    return Counter(label_name(one) for one in sample.column(columns["label"]) if one)


def _labels(counts: Counter[str]) -> Iterator[str]:
    """The mapping of labels that differ in case alone or read like missing values."""
    changed = etl_peek.tidied(counts)
    if not changed:
        return
    if "quality" in changed:
        yield "  # Rows with other labels are dropped: here those that read like a missing value."
        yield f"  {flow({'quality': changed['quality']})}"
    yield "  # Labels in the source, and the name that each gets: these looked alike."
    yield "  labels:"
    for name, same in changed["labels"].items():
        yield f"    {flow({name: same})}"


def offline_base() -> str | None:
    """Directory of the base model that set-up has put into the cache; None: it has not."""
    for path in sorted(glob.glob(os.path.join(glob.escape(cache_root()), "models", _OFFLINE))):
        if os.path.isfile(os.path.join(path, "model.safetensors")):
            return path
    return None
