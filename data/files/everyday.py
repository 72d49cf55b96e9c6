"""Formats of everyday that are not read: each is refused with the line that makes it readable."""

from __future__ import annotations

import glob
import json
import re
import shlex
from collections.abc import Mapping, Sequence

from howdah import storage
from howdah.config.yaml_text import flow
from howdah.data.files.listing import ending
from howdah.data.files.opening import compression_of, head
from howdah.errors import DataError, NotFound
from howdah.storage import Entry

_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
_SENTENCES = {
    (".db", ".sqlite", ".sqlite3"): "databases are read with data.format: jdbc",
    (".zip", ".tar", ".rar", ".7z"): "archives are not read: unpack them",
    (".pkl", ".pickle", ".npy", ".npz", ".h5"): "Python's own formats are not read: write CSV or"
    " Parquet with pandas",
}
_SIGNATURES = {
    b"PK\x03\x04": "an Excel workbook or another zip archive",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"PAR1": "a Parquet file",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "compressed by gzip",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
}
"""{first bytes of a file: what it is}, of files that are named as if they were text."""
_NAMED_BY_LETTERS = ("a Parquet file", "an ORC file", "an Arrow file")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_NAMED_SO = {
    "a Parquet file": "parquet",
    "an Avro file": "avro",
    "an ORC file": "orc",
}
_TEXTS = (
    'import json, pathlib; [print(json.dumps(dict(id=f.name, text=f.read_text(encoding="utf-8"),'
    ' label=f.parent.name))) for f in sorted(pathlib.Path({folder}).glob("**/*.txt"))]'
)
_ARROW = (
    "import glob, pyarrow as pa, pyarrow.parquet as pq; pq.write_table(pa.concat_tables("
    "pa.ipc.open_stream(f).read_all() for f in sorted(glob.glob({files}))), {output})"
)
_FEATHER = (
    "import pyarrow.feather as f, pyarrow.parquet as pq; pq.write_table(f.read_table({file}),"
    " {output})"
)
_SHEET = "import pandas; pandas.read_excel({file}).to_csv({output}, index=False)"


def refusal(source: str, entries: Sequence[Entry]) -> DataError | None:
    """The error for a source of files of such a format; None: it has none of them."""
    by_ending: dict[str, list[Entry]] = {}
    for entry in entries:
        by_ending.setdefault(ending(entry.name), []).append(entry)
    sheets = [entry for end in _SHEETS for entry in by_ending.get(end, ())]
    if sheets:
        return _refused("spreadsheets are not read", sheets[0].path, _of_sheet(sheets[0].path))
    if ".arrow" in by_ending:
        return _of_arrow(source, by_ending[".arrow"])
    if ".feather" in by_ending:
        return _of_feather(by_ending[".feather"][0].path)
    if len(by_ending.get(".txt", ())) > 0.9 * len(entries):  # beside tables they are notes
        return _of_texts(source, by_ending[".txt"])
    for ends, sentence in _SENTENCES.items():
        for end in ends:
            if end in by_ending:
                return _refused(f"{end} files are not read", by_ending[end][0].path, sentence)
    return None


def refuse_content(path: str) -> None:
    """Raise DataError where a file that is named as text begins as a file of another format."""
    begin = head(path, 256)
    kind = next((words for first, words in _SIGNATURES.items() if begin.startswith(first)), None)
    if kind is None or (kind == "compressed by gzip" and compression_of(path)):
        return
    if kind in _NAMED_BY_LETTERS and not _CONTROL.search(begin):  # "ORCID,text" begins so, too
        return
    if "Excel" in kind:
        remedy = _of_sheet(path)
    elif kind in _NAMED_SO:
        form = _NAMED_SO[kind]
        remedy = f"rename it to end in .{form}, or paste: {flow({'data': {'format': form}})}"
    elif "gzip" in kind:
        remedy = f"rename it to {storage.name(path)}.gz"
    else:
        remedy = "convert it to CSV, JSON lines or Parquet"
    raise DataError(
        f"the file is {kind}, not text",
        where=path,
        expected=f"rows of text, because its name ends in {ending(path)}",
        got=f"it begins with {begin[:4]!r}",
        remedy=remedy,
    )


def _refused(what: str, where: str, remedy: str) -> DataError:
    return DataError(
        what,
        where=where,
        expected="CSV, JSON lines, Parquet, ORC or Avro",
        got=storage.name(where),
        remedy=remedy,
    )


def _of_sheet(path: str) -> str:
    output = storage.name(path).rpartition(".")[0] + ".csv"
    return (
        "save the sheet as CSV UTF-8 (File > Save As), or write it with pandas and openpyxl:\n"
        + _python(_SHEET, file=path, output=output)
        + f"\nand set data.source: {output}"
    )


def _of_texts(source: str, entries: Sequence[Entry]) -> DataError:
    above = {storage.name(storage.parent(entry.path)) for entry in entries}
    if len(entries) == 1 or len(above) == 1:
        return _refused(
            ".txt does not say how a file's rows are written",
            entries[0].path,
            "if they are CSV or JSON lines, paste: data: {format: csv} or data: {format: jsonl}",
        )
    command = _python(_TEXTS, folder=_folder(source, entries)) + " > messages.jsonl"
    return _refused(
        "a directory of text files is not read",
        f"{source}: {len(entries):,} files in {', '.join(sorted(above)[:5])}",
        "write one JSON line for each file, with its directory's name as the label:\n"
        f"{command}\nand set data.source: messages.jsonl",
    )


def _of_feather(path: str) -> DataError:
    output = storage.name(path).rpartition(".")[0] + ".parquet"
    command = _python(_FEATHER, file=path, output=output)
    remedy = f"write it as Parquet:\n{command}\nand set data.source: {output}"
    return _refused("Feather files are not read", path, remedy)


def _of_arrow(source: str, entries: Sequence[Entry]) -> DataError:
    lines = []
    folders = sorted({storage.parent(entry.path) for entry in entries})
    sources = {}
    for folder in folders:
        name = storage.name(folder)
        output = f"{name}.parquet"
        sources[name] = output
        lines.append(_python(_ARROW, files=f"{glob.escape(folder)}/*.arrow", output=output))
    return _refused(
        "a directory of Hugging Face's save_to_disk is not read",
        source,
        "write it as Parquet:\n" + "\n".join(lines) + "\nand paste:\n" + _pasted(folders, sources),
    )


def _pasted(folders: Sequence[str], sources: Mapping[str, str]) -> str:
    """The YAML for the written files, with the names of a ClassLabel's numbers."""
    main = sources.get("train") or next(iter(sources.values()))
    data: dict[str, object] = {"source": main}
    official = {
        split: sources[name]
        for split, names in {"validation": ("validation", "dev"), "test": ("test",)}.items()
        for name in names
        if name in sources and sources[name] != main
    }
    if official:
        data["split"] = {"sources": official}
    columns: dict[str, str] = {}
    for name, feature in _features(folders[0]).items():
        if not isinstance(feature, dict):
            continue
        if feature.get("dtype") in ("string", "large_string"):
            columns.setdefault("text", name)
        if feature.get("_type") == "ClassLabel":
            columns["label"] = name
            data["labels"] = {str(n): one for n, one in enumerate(feature.get("names") or ())}
    return flow({"data": data | ({"columns": columns} if columns else {})})


def _features(folder: str) -> Mapping[str, object]:
    try:
        info = storage.read_json(storage.join(folder, "dataset_info.json"))
    except (NotFound, DataError):
        return {}
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _folder(source: str, entries: Sequence[Entry]) -> str:
    """The directory above the directories of the classes."""
    if storage.is_local(source) and storage.is_dir(source):
        return storage.local_path(source)
    return storage.parent(storage.parent(entries[0].path))


def _python(code: str, **texts: str) -> str:
    """The command that runs a line of Python, with texts as its literals."""
    literals = {name: json.dumps(text, ensure_ascii=False) for name, text in texts.items()}
    return f"python -c {shlex.quote(code.format(**literals))}"
