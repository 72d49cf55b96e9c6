"""The newest version of a dataset, and how much of the others is read to know it."""

import json
from datetime import UTC, datetime

import pytest

from howdah import storage
from howdah.data import manifest
from howdah.data.manifest import MANIFEST, load_dataset, newest, version_before
from howdah.errors import DataError
from howdah.packed_counts import PackedCounts
from tests.support.rows.appended import build_appended


def year(root, model_dir, count):
    """`count` more versions, each older than the two real ones."""
    last = build_appended(root, model_dir=model_dir)
    value = json.loads(storage.read_bytes(storage.join(last.path, MANIFEST)))
    for n in range(count):
        value |= {"created": f"2020-01-01T00:00:{n:02d}", "dataset_hash": f"old{n}"}
        path = storage.join(root, f"v=old{n:013d}")
        storage.make_dirs(path)
        storage.write_whole(storage.join(path, MANIFEST), json.dumps(value, indent=1).encode())
    return last


def test_of_many_versions_only_the_newest_is_parsed(tmp_path, tiny_model_dir, monkeypatch):
    root = str(tmp_path / "data")
    last = year(root, tiny_model_dir, 20)
    storage.make_dirs(storage.join(root, "v=unfinished"))
    parsed, whole = [], manifest._load_version
    monkeypatch.setattr(manifest, "_load_version", lambda path: parsed.append(path) or whole(path))
    assert newest(root).path == last.path == load_dataset(root).path
    assert parsed == [last.path] * 2
    older = version_before(root, last.manifest)
    assert older.manifest.dataset_hash == last.manifest.parent
    oldest = load_dataset(storage.join(root, f"v=old{0:013d}")).manifest
    assert version_before(root, oldest) is None


def another(root, base, name, created, parent):
    """A version like `base`."""
    update = {"dataset_hash": name, "created": created, "parent": parent}
    manifest.commit(storage.join(root, f"v={name}"), base.manifest.model_copy(update=update))
    return storage.join(root, f"v={name}")


def test_a_version_whose_clock_was_behind_its_parents_is_the_newest(tmp_path, tiny_model_dir):
    root = str(tmp_path / "data")
    base = build_appended(root, model_dir=tiny_model_dir)
    another(root, base, "a", "2999-01-01", base.manifest.dataset_hash)
    another(root, base, "b", "2026-06-01", "a")
    last = another(root, base, "c", "2026-05-01", "b")
    another(root, base, "other", "2998-01-01", base.manifest.dataset_hash)  # outrun by a
    assert newest(root).path == load_dataset(root).path == last
    value = json.loads(storage.read_bytes(storage.join(last, MANIFEST)))
    value["parent"] = value.pop("parent")  # where older versions of Howdah wrote it
    storage.write_whole(storage.join(last, MANIFEST), json.dumps(value, indent=1).encode())
    assert load_dataset(last).manifest.parent == "b"


def test_a_version_is_made_after_all_that_are_there(tmp_path, tiny_model_dir):
    root = str(tmp_path / "data")
    before = datetime.now(UTC).isoformat(timespec="microseconds")
    assert manifest.created_now(root) > before  # no dataset yet
    base = build_appended(root, model_dir=tiny_model_dir)
    assert before < manifest.created_now(root) < "2900"
    for ahead in ("2999-01-01", "2999-01-01T00:00:05+00:00", "2999-12-31T23:59:59.999999+00:00"):
        another(root, base, f"of-{ahead[:19]}", ahead, base.manifest.dataset_hash)
        made = manifest.created_now(root)
        assert made > ahead and made == manifest.created_now(root)
    assert made == "3000-01-01T00:00:00.000000+00:00"


def test_a_manifest_in_another_order_is_read_whole(tmp_path, tiny_model_dir):
    root = str(tmp_path / "data")
    last = build_appended(root, model_dir=tiny_model_dir)
    path = storage.join(last.path, MANIFEST)
    value = json.loads(storage.read_bytes(path))
    storage.write_whole(path, json.dumps(dict(reversed(value.items()))).encode())
    assert newest(root).manifest == last.manifest


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"schema_version": 99}'])
def test_a_broken_manifest_is_refused_by_name(text, tmp_path, tiny_model_dir):
    root = str(tmp_path / "data")
    last = build_appended(root, model_dir=tiny_model_dir)
    path = storage.join(last.path, MANIFEST)
    storage.write_whole(path, text)
    with pytest.raises(DataError) as caught:
        newest(root)
    assert path in caught.value.where


def test_counts_of_thousands_of_labels_are_packed(tmp_path, tiny_model_dir):
    """They are so in the manifest and in memory; readers meet a mapping as of few labels."""
    last = build_appended(str(tmp_path / "data"), model_dir=tiny_model_dir)
    counts = {str(label): label % 7 + 1 for label in range(0, 10_000, 3)}
    (shard, *others) = last.manifest.splits["train"]
    fields = shard.model_dump() | {"class_counts": counts}
    splits = {"train": [type(shard)(**fields), *others]}
    path = str(tmp_path / "other" / "v=1")
    storage.make_dirs(path)
    manifest.commit(path, last.manifest.model_copy(update={"splits": splits}))
    assert storage.size(storage.join(path, MANIFEST)) < 20_000  # 57 kB as an object
    unpacked = load_dataset(path).manifest
    (read, *small) = unpacked.splits["train"]
    assert unpacked.schema_version == 3
    assert read.class_counts == counts and isinstance(read.class_counts, PackedCounts)
    assert read.class_counts.get("1") is None and read.class_counts["9999"] == counts["9999"]
    assert small == others  # of few labels: an object, as before
    assert load_dataset(last.path).manifest.schema_version == 2


@pytest.mark.parametrize("text", ["!", "AAAA", "eJwzNDI2AQAB+ADL"])
def test_what_is_no_packed_counts_is_refused(text):
    with pytest.raises(ValueError, match="counts of labels"):
        PackedCounts.parse(text)
