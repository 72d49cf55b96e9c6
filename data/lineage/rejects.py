"""Which dataset versions have rejected a row, and why: by the files of rejected rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from howdah import storage
from howdah.data.manifest import Dataset
from howdah.errors import NotFound

_READ = ("id", "reason", "detail")


def find(row_id: str, datasets: Sequence[Dataset]) -> dict[str, list[dict[str, Any]]]:
    """{path of a version: [{id, reason, detail}]} of those that have rejected the row.

    A row whose key another row has is named `<key>#<number>`: it is found by its key.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    named = re.compile(re.escape(row_id) + r"(#\d+)?")
    by_version: dict[str, list[dict[str, Any]]] = {}
    for dataset in datasets:
        for name in dataset.manifest.quality.get("reject_files", []):
            try:
                with storage.open_read(storage.join(dataset.path, name)) as file:
                    table = pq.read_table(file, columns=list(_READ), pre_buffer=False)
            except NotFound:
                continue
            rows = table.filter(pc.starts_with(table["id"], row_id)).to_pylist()
            rejected = [row for row in rows if named.fullmatch(row["id"])]
            if rejected:
                by_version.setdefault(dataset.path, []).extend(rejected)
    return by_version
