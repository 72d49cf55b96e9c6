"""Reads the run files of Weights & Biases, as `wandb sync` does."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

_BLOCK = 32 * 1024
_WHOLE, _LAST = 1, 4


def runs(directory) -> list[SimpleNamespace]:
    """The runs below a directory `wandb`, in the order of their beginning: id, project, config,
    history (rows), summary, exit_code, and kinds (of all records)."""
    return [_run(path) for path in sorted(Path(directory).glob("*run-*/*.wandb"))]


def _run(path: Path) -> SimpleNamespace:
    run = SimpleNamespace(
        path=path, config={}, history=[], summary={}, kinds=set(), exit_code=None
    )  # fmt: skip
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        run.kinds.add(kind)
        value = getattr(record, kind)
        if kind == "run":
            run.id, run.project, run.entity = value.run_id, value.project, value.entity
        elif kind == "config":
            run.config |= {item.key: json.loads(item.value_json) for item in value.update}
        elif kind == "history":
            run.history.append(_values(value.item))
        elif kind == "summary":
            run.summary |= _values(value.update)
        elif kind == "exit":
            run.exit_code = value.exit_code
    return run


def _values(items) -> dict:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _records(data: bytes):
    """The records of a log in LevelDB's format, behind W&B's header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    assert data.startswith(b":W&B")
    at, parts = 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:  # too little room for a header
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_WHOLE, _LAST):
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""
