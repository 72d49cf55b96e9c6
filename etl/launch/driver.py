"""The ETL's driver where it runs elsewhere: in a container, or under a cluster's own PySpark.

It and its launcher (`etl/launch/submit.py`) talk through a directory on storage: `config.yaml` and
`tokenizer/` go in; `state.json` (the application, the lines of progress) and `answer.json` (the
result, or the error as itself) come out.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence

from howdah import storage
from howdah.config import loader as config_module
from howdah.data.inputs import ENCODERS
from howdah.errors import HowdahError, StorageError
from howdah.spark.shipping import RUN

CONFIG, TOKENIZER, STATE, ANSWER = "config.yaml", "tokenizer", "state.json", "answer.json"
MAIN = """\
import sys

from howdah.etl.launch.driver import main

sys.exit(main(sys.argv[1:]))
"""
"""The file that spark-submit starts; all else comes from the wheel."""


class _State:
    """state.json, written whole at each change; that it cannot be written stops nothing."""

    def __init__(self, directory: str) -> None:
        self._path = storage.join(directory, STATE)
        self._value: dict = {"application": None, "ui": None, "lines": []}
        self._lock = threading.Lock()

    def application(self, application) -> None:
        self._write(application=application.id, ui=application.ui)

    def progress(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        self._write(line=line)

    def _write(self, *, line: str | None = None, **changed) -> None:
        with self._lock, contextlib.suppress(StorageError):
            self._value |= changed
            self._value["lines"] += [] if line is None else [line]
            storage.write_whole(self._path, json.dumps(self._value).encode())


def main(argv: Sequence[str]) -> int:
    """Run the ETL that a launcher described in the directory `argv[0]`; its exit code."""
    directory = argv[0]
    state = _State(directory)
    try:
        config = config_module.load(storage.join(directory, CONFIG))
        # In a container the application is that user's already.
        user = None if os.environ.get(RUN) else config.run.user
        storage.configure(
            retry_seconds=config.run.storage_retry_seconds, user=user, mode=config.most_open
        )
        if os.environ.get(RUN):
            storage.be_patient()
        files = {
            entry.name: storage.read_bytes(entry.path)
            for entry in storage.list_dir(storage.join(directory, TOKENIZER))
        }
        from howdah.etl.pipeline import run

        result = run(
            config,
            progress=state.progress,
            encoder=ENCODERS[config.data.kind](files, config.model.base),
            ready=state.application,
        )
        answer, code = {"path": result.path, "unchanged": result.unchanged}, 0
    except HowdahError as error:
        answer, code = {"error": error.as_dict()}, error.exit_code
    storage.write_whole(storage.join(directory, ANSWER), json.dumps(answer).encode())
    return code


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1:]))
