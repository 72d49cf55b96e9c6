"""Expectations of a new version: judged by manifests, and nothing is committed that misses one."""

import pytest

from howdah import storage
from howdah.config.data import ExpectOptions
from howdah.data.manifest import version_before
from howdah.errors import DataError, ExpectationsFailed, HowdahError
from howdah.etl import expect
from tests.etl.test_pipeline import make_config, run, sentences, write_csv
from tests.fixtures.dataset import build_dataset

DROPS = {"too_short": 10, "exact_duplicate": 20, "near_duplicate": 5}


@pytest.fixture(scope="module")
def versions(tmp_path_factory, tiny_model_dir):
    """Two versions of a dataset: the newer one has one class less and longer texts."""
    root = tmp_path_factory.mktemp("versions")
    made = []
    for number, (classes, longest, kept) in enumerate([(4, 64, 145), (3, 16, 100)]):
        one = build_dataset(
            str(root / f"v={number}"), model_dir=tiny_model_dir, classes=classes, seed=number,
            max_length=longest, rows={"train": kept - 20, "test": 20},
        )  # fmt: skip
        quality = {"read": kept + 35, "kept": kept, "drops": DROPS}
        created = f"2026-01-0{number + 1}T00:00:00Z"
        changed = {"quality": quality, "created": created, "max_length": 64}
        made.append(one.__class__(
            path=one.path, manifest=one.manifest.model_copy(update=changed), manifest_hash="x"
        ))  # fmt: skip
    return made


def judged(manifest, parent=None, **options):
    return {one.key: one for one in expect.judge(manifest, ExpectOptions(**options), parent)}


def test_rows_classes_and_duplicates_are_counted_from_the_manifest(versions):
    manifest = versions[0].manifest
    checks = judged(manifest, min_rows=145, min_rows_per_class=50, max_duplicates=0.1)
    assert checks["min_rows"].met and checks["min_rows"].found == 145
    counts = expect.label_counts(manifest)
    assert sum(counts.values()) == 145 and len(counts) == 4
    assert not checks["min_rows_per_class"].met
    assert checks["min_rows_per_class"].found == min(counts.values())
    assert not checks["max_duplicates"].met and checks["max_duplicates"].found == round(25 / 180, 6)
    with pytest.raises(ExpectationsFailed) as caught:
        expect.refuse(list(checks.values()), "data/v=0")
    assert isinstance(caught.value, DataError) and caught.value.exit_code == 3
    text = str(caught.value)
    for part in ("data/v=0", "data.expect.min_rows_per_class", "at most 0.1", "20 exact_duplicate"):
        assert part in text, part
    assert "data.expect.min_rows is" not in text  # what is met is no problem
    again = HowdahError.from_dict(caught.value.as_dict())
    assert type(again) is ExpectationsFailed and len(again.problems) == 2


def test_shifts_are_total_variations_against_the_version_before(versions):
    old, new = versions
    checks = judged(new.manifest, old, max_shift=0.01)
    before, now = expect.label_counts(old.manifest), expect.label_counts(new.manifest)
    expected = sum(abs(before[n] / 145 - now[n] / 100) for n in before) / 2
    assert checks["max_shift.labels"].found == round(expected, 6) and expected > 0.15
    assert "stars" in checks["max_shift.labels"].detail  # the class that is gone
    assert not checks["max_shift.length"].met
    assert not checks["max_shift.rejects"].met
    rejects = judged(new.manifest, old, max_shift=0.3)["max_shift.rejects"]
    assert rejects.met and rejects.found == round(145 / 180 - 100 / 135, 6)
    same = judged(old.manifest, old, max_shift=0.01)
    assert all(one.met and one.found == 0 for one in same.values())


def test_what_cannot_be_compared_is_said_and_fails_nothing(versions):
    old, new = versions
    first = judged(new.manifest, None, max_shift=0.1)["max_shift.labels"]
    assert first.met and first.found is None and "no earlier version" in first.detail
    for changed in (
        {"max_length": 128},
        {"tokenizer": old.manifest.tokenizer.model_copy(update={"hash": "other"})},
    ):
        other = new.manifest.model_copy(update=changed)
        assert judged(other, old, max_shift=0.1)["max_shift.length"].found is None


def test_the_version_before_is_the_newest_older_one(tmp_path, tiny_model_dir):
    made = [
        build_dataset(str(tmp_path / f"v={n}"), model_dir=tiny_model_dir, seed=n) for n in range(2)
    ]
    now = made[0].manifest.model_copy(update={"created": "2026-01-01T00:00:01Z"})
    assert version_before(str(tmp_path), now).manifest.created == made[1].manifest.created
    assert version_before(str(tmp_path), made[0].manifest) is None  # all are of one moment
    assert version_before(str(tmp_path / "none"), now) is None


@pytest.mark.spark
@pytest.mark.full
def test_a_version_that_misses_one_is_not_committed(spark, tmp_path, tiny_model_dir):
    texts = sentences(160)

    sources = {}
    for count in (80, 90, 120):
        rows = [(text, "a" if n < count else "b") for n, text in enumerate(texts)]
        sources[count] = write_csv(tmp_path / f"{count}.csv", rows)

    def config(count, **expected):
        return make_config(tmp_path, tiny_model_dir, source=sources[count], expect=expected)

    bounds = {"min_rows": 100, "max_shift": 0.1}
    first, lines = run(config(80, **bounds))
    assert any("max_shift.labels is not judged" in line for line in lines)
    assert first.as_dict()["expectations"]["found"][0]["found"] == 160
    page = storage.read_text(first.report_path)
    assert "min_rows" in page and "not judged" in page
    with pytest.raises(ExpectationsFailed) as caught:
        run(config(120, **bounds))
    assert "0.25" in str(caught.value) and "a 50.0% -> 75.0%" in str(caught.value)
    left = {entry.name for entry in storage.list_dir(str(tmp_path / "dataset"))}
    assert left == {storage.name(first.path)}
    second, _ = run(config(90, **bounds))
    parent = second.manifest.quality["expectations"]["parent"]
    assert parent == first.hash
    # a version that is there is held against what is asked now
    with pytest.raises(ExpectationsFailed):
        run(config(90, min_rows=161))
    assert run(config(90))[0].unchanged
