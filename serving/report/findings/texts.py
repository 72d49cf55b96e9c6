"""Texts of rows for the report: those of the source, or else decoded from the dataset's token ids.

The source may be gone or changed when a report is made; the dataset's version is what the run
learnt from. So a text of the source is shown only if it still has the record's token ids. A decoded
text may differ from the source's in case and blanks.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from howdah import storage
from howdah.config.data import DataSection
from howdah.data.clean import PAIR, clean_pair, clean_text
from howdah.data.encode import Encoder
from howdah.data.family import TOKENIZER_FILES
from howdah.data.manifest import Dataset, load_dataset
from howdah.data.splits.shards import ShardSet
from howdah.errors import DataError, HowdahError, NotFound

LONGEST = 700
"""Largest number of characters that are shown of a text."""
_MOST_SOURCE_BYTES = 128 * 2**20
"""Largest size of a source's files that are read for the texts of a page."""

_WAIT_SECONDS = 5.0
"""Longest wait for a source that cannot be reached."""

Place = tuple[int, int, str]
"""(shard, row in it, the row's id, which must be the record's)."""


class Texts:
    """Reads texts of a dataset version.

    Args:
        dataset: path of the version that the run was measured on.
        manifest_hash: hash of its manifest in run.json; None: unknown.
        export: the run's export, whose tokenizer decodes.
        data: the configuration of the source; None: texts are decoded.
    Raises:
        NotFound, DataError: the version is gone, or has changed.
        ModelError: the export has no tokenizer.
    """

    def __init__(
        self,
        dataset: str,
        manifest_hash: str | None,
        export: str,
        data: DataSection | None = None,
    ) -> None:
        self.dataset: Dataset = load_dataset(dataset)
        if manifest_hash not in (None, self.dataset.manifest_hash):
            raise DataError(
                "the dataset is not the one that the run was measured on", where=dataset
            )
        self._sets, self._data = {}, data
        self._read: dict[str, np.ndarray] = {}
        self._encoder = _encoder(export) if self.dataset.manifest.kind == "text" else None

    @property
    def readable(self) -> bool:
        """True if rows are texts."""
        return self._encoder is not None

    def shards(self, split: str) -> ShardSet:
        """Return a split's shards."""
        if split not in self._sets:
            self._sets[split] = ShardSet(self.dataset, split)
        return self._sets[split]

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of a row's ids."""
        return self._encoder.decode(ids, pairs=self.dataset.manifest.pairs)

    def of(self, split: str, places: Iterable[Place]) -> dict[str, str]:
        """Return {id: text} of rows; those whose record has another id are left out."""
        shards, texts = self.shards(split), {}
        for shard, row, key in sorted(set(places)):
            example = shards.example(shard, row)
            if example.id.decode("utf-8", "backslashreplace") == key:
                texts[key] = self.decode(example.input_ids)
                self._read[key] = np.array(example.input_ids)
        shards.release()
        return texts

    def originals(self) -> dict[str, str]:
        """Return {id: the source's text} of the rows that `of` has read, as far as they are there.

        A row is looked up by its id, and its text must give the record's token ids.
        """
        from howdah.serving.prediction.reading import read_rows, source_files

        data, texts = self._data, {}
        if data is None or data.columns.id is None or not self._read:
            return texts
        cleaned = clean_pair if self.dataset.manifest.pairs else clean_text
        try:
            with storage.waiting_at_most(_WAIT_SECONDS):
                files = source_files(str(data.source))
            if sum(entry.size for entry in files.entries) > _MOST_SOURCE_BYTES:
                return texts
            for row in read_rows(files, data.columns, csv_options=data.csv):
                ids = self._read.get(row.id)
                if ids is None or row.text is None or row.id in texts:
                    continue
                again = self._encoder.encode_rows(
                    [cleaned(row.text, data.clean)],
                    self.dataset.manifest.max_length,
                    pairs=row.pair,
                )[0]
                if np.array_equal(again, ids):
                    texts[row.id] = row.text
                if len(texts) == len(self._read):
                    break
        except HowdahError:  # a table, or files that are gone: the decoded texts are shown
            return texts
        return texts


def _encoder(export: str) -> Encoder:
    files: dict[str, bytes] = {}
    for name in TOKENIZER_FILES:
        try:
            files[name] = storage.read_bytes(storage.join(export, name))
        except NotFound:
            continue
    return Encoder(files, export)


# --------------------------------------------------------------------------------------- scripts
_NAMES: Mapping[str, str] = {
    "CJK": "Han", "HIRAGANA": "Japanese", "KATAKANA": "Japanese", "HANGUL": "Korean",
}  # fmt: skip


@lru_cache(maxsize=2**14)
def _script(character: str) -> str | None:
    """Return the script of a letter; None: it is not a letter."""
    if not character.isalpha():
        return None
    word = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return _NAMES.get(word, word.capitalize()) if word else None


def script_of(text: str) -> str:
    """Return the script of most of a text's letters.

    >>> script_of("mostly latin, да"), script_of("Это русский"), script_of("123 !")
    ('Latin', 'Cyrillic', 'no letters')
    """
    letters = Counter(text.replace(PAIR, " "))
    scripts: Counter[str] = Counter()
    for character, count in letters.items():
        script = _script(character)
        if script is not None:
            scripts[script] += count
    if scripts["Japanese"]:  # its texts have Han characters too
        scripts["Japanese"] += scripts.pop("Han", 0)
    return scripts.most_common(1)[0][0] if scripts else "no letters"
