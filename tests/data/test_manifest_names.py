"""Files whose names are not UTF-8, as archives of other systems leave them."""

import json
import os

from howdah import storage
from howdah.data import manifest
from howdah.data.files import listing

LATIN = b"caf\xe9.csv"


def test_their_names_are_hashed(tmp_path):
    (tmp_path / os.fsdecode(LATIN)).write_text("text\na\n")
    _, (entry,) = listing.files_of(str(tmp_path))
    assert manifest.content_hash([entry.path]) != manifest.content_hash([f"{tmp_path}/cafe.csv"])
    assert manifest.content_hash(["café"]) == manifest.bytes_hash('["café"]'.encode())


def test_their_names_are_in_a_manifest_as_they_are(tmp_path):
    name = os.fsdecode(LATIN)
    entry = manifest.DatasetManifest(
        dataset_hash="a", created=manifest.created_now(str(tmp_path)), etl_version="1",
        labels=["a", "b"], max_length=8, splits={}, seed=1, split_rule={}, cleaning={},
        tokenizer=manifest.TokenizerEntry(hash="t", vocab_size=9, pad_id=0, source="m"),
        record=manifest.RecordEntry(ids_dtype="uint16", columns={"label": "label"}),
        source={"files": [[name, 1, 2.0]], "name": "café"},
    )  # fmt: skip
    manifest.commit(str(tmp_path), entry)
    raw = storage.read_bytes(str(tmp_path / "manifest.json"))
    assert "café".encode() in raw and b'"caf\\udce9.csv"' in raw
    assert json.loads(raw)["source"]["files"][0][0] == name
    assert manifest.load_dataset(str(tmp_path)).manifest.source["files"][0][0] == name
