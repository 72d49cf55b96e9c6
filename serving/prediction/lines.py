"""Classify lines of stdin with an exported model, as they arrive.

It imports no reader of files and no Spark, so that one text gets its answer at once.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TextIO

from howdah.data.clean import joined
from howdah.models.opened.opened import ServedModel, open_model
from howdah.serving.prediction.classify import classify, outputs_of
from howdah.serving.prediction.judged import Reasons, of_lines
from howdah.serving.prediction.rows import Prediction, Row, as_json
from howdah.storage.charsets import SURROGATES, spelled


def predict_lines(
    model: str,
    lines: TextIO,
    out: TextIO,
    *,
    framework: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> int:
    """Classify lines as they arrive, and write a JSON object per line at once.

    For a model of images, lines are paths of image files; for a model of pairs, they have a tab
    between the two texts. Lines that can be read without waiting are classified together, so that a
    pipe is fast, and a user who types gets an answer to each line.

    Args:
        lines: text stream; its bytes are read as UTF-8.
        out: stream for the answers.
        progress: called with a line about what runs the model, and at the end about texts that
            have an error.
    Returns:
        The number of lines.
    """
    served = open_model(model, framework=framework)
    progress(f"model {model}, run by {served.run_by}")
    classified = _images if served.kind == "image" else _texts
    number, outputs, reasons = 0, outputs_of(served), Reasons()
    for batch in _waiting_lines(lines):
        if number == 0:
            batch[0] = batch[0].removeprefix("\ufeff")  # a byte order mark
        for predictions in classified(served, batch, number):
            reasons.add(predictions)
            for prediction in predictions:
                out.write(as_json(prediction, outputs, served.run_id) + "\n")
            out.flush()
        number += len(batch)
    for line in of_lines(number, reasons):
        progress(line)
    return number


def _texts(served: ServedModel, lines: list[str], first: int) -> Iterator[list[Prediction]]:
    """Classify texts together; their ids are their numbers from `first`."""
    rows = []
    for number, line in enumerate(lines, first):
        error = "the text is not UTF-8" if SURROGATES.search(line) else None
        if served.pairs and error is None:
            one, tab, other = line.partition("\t")
            line = joined(one, other)
            error = None if tab else "there is no tab between two texts"
        rows.append(Row(str(number), None if error else line, error, served.pairs))
    yield classify(served, rows)


def _images(served: ServedModel, lines: list[str], _: int) -> Iterator[list[Prediction]]:
    """Classify image files, whose ids are their paths, one at a time: many do not fit memory."""
    from howdah.serving.prediction.images import classify_images, image_file

    for path in lines:
        yield classify_images(served, [image_file(path, spelled(path))])


def _waiting_lines(stream: TextIO) -> Iterator[list[str]]:
    """Yield lists of complete lines that can be read without waiting, at least one line each."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation, AttributeError):  # not a file's stream
        texts = (line.rstrip("\n") for line in stream)
        while group := list(itertools.islice(texts, 64)):
            yield group
        return
    rest = b""
    while data := os.read(descriptor, 2**16):
        *whole, rest = (rest + data).split(b"\n")
        if whole:
            yield [_decoded(line) for line in whole]
    if rest:
        yield [_decoded(rest)]


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
