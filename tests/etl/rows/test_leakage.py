"""Near copies across splits: those planted are counted, and a bound is kept."""

import pytest
from pyspark.sql import functions as F

from howdah.config.data import DedupOptions, QualityOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.errors import DataError
from howdah.etl.rows import leakage, minhash
from tests.etl.rows.test_dedup import _words
from tests.etl.test_pipeline import make_config, run, write_csv

pytestmark = pytest.mark.spark
COLUMNS = "id string, text string, split string"


@pytest.fixture(autouse=True)
def sample(monkeypatch):
    """Other tests look no rows up (tests/fixtures/spark.py)."""
    monkeypatch.setattr(leakage, "SAMPLE", 1_000)


def _rows():
    """60 training rows, 20 of validation and 20 of test, of which 3 and 5 are near one of them."""
    rows = [(f"train{n:02d}", " ".join(_words(n, 30)), "train") for n in range(60)]
    for split, near in (("validation", 3), ("test", 5)):
        for n in range(20):
            words = _words(n, 30) if n < near else _words(5_000 + 100 * len(split) + n, 30)
            rows.append((f"{split}{n:02d}", " ".join([*words[:-1], "other"]), split))
    return rows


def test_planted_near_copies_are_counted_whatever_the_partitions(spark, monkeypatch):
    frame = spark.createDataFrame(_rows(), COLUMNS)
    estimate = leakage.estimate(frame.repartition(3))
    assert estimate["splits"] == {
        "test": {"sampled": 20, "found": 5}, "validation": {"sampled": 20, "found": 3},
    }  # fmt: skip
    assert leakage.share(estimate) == pytest.approx(8 / 40)
    assert len(estimate["examples"]) == 5
    for pair in estimate["examples"]:
        assert pair["near"] == f"train{pair['id'][-2:]}" and 0.85 < pair["similarity"] < 1
    assert leakage.estimate(frame.coalesce(1)) == estimate
    # a smaller sample is one of the same rows
    monkeypatch.setattr(leakage, "SAMPLE", 7)
    few = leakage.estimate(frame)
    assert [counts["sampled"] for counts in few["splits"].values()] == [7, 7]


def test_old_rows_are_looked_up_by_their_signatures_in_what_is_new(spark):
    """A part was appended and frozen splits get no row of it: the new rows are for training."""
    rows = _rows()
    held = [row for row in rows if row[2] != "train"]
    options = DedupOptions()
    signed = minhash.signatures([text for _, text, _ in held], options.ngram, NUM_PERMUTATIONS)
    old = [(row[0], row[2], bytes(signature)) for row, signature in zip(held, signed, strict=True)]
    old = spark.createDataFrame(old, "id string, split string, signature binary")
    frame = spark.createDataFrame([row for row in rows if row not in held[1:]], COLUMNS)
    history = leakage.Old(rows=old.where(F.col("id") != held[0][0]), dedup=options)
    estimate = leakage.estimate(frame, history)
    assert estimate["splits"] == {
        "test": {"sampled": 20, "found": 5}, "validation": {"sampled": 20, "found": 3},
    }  # fmt: skip
    for pair in estimate["examples"]:
        assert pair["near"] == f"train{pair['id'][-2:]}"
    lines = []
    with pytest.raises(DataError, match="near duplicates") as caught:
        leakage.judged(frame, QualityOptions(max_leakage=0.1), lines.append, history)
    assert caught.value.got.startswith("20.00%") and "of this part" in lines[0]


def test_no_evaluation_rows_no_estimate(spark):
    frame = spark.createDataFrame([row for row in _rows() if row[2] == "train"], COLUMNS)
    estimate = leakage.estimate(frame)
    assert estimate["splits"] == {} and leakage.share(estimate) == 0


def test_a_bound_on_leakage_fails_the_run(spark, tmp_path, tiny_model_dir):
    # 40 families of 5 that are 0.66 alike: below the threshold, so they cross the splits
    rows = []
    for family in range(40):
        base = _words(family, 30)
        for n in range(5):
            words = [*base[: 27 - n], *_words(900 + 10 * family + n, 3 + n)]
            rows.append((" ".join(words), "ab"[family % 2]))
    a, b = minhash.sets([rows[0][0], rows[4][0]])
    assert 0.5 < minhash.jaccard(a, b) < 0.85
    source = write_csv(tmp_path / "rows.csv", rows)
    settings = {"source": source}
    with pytest.raises(DataError, match="near duplicates among the training rows") as caught:
        run(make_config(tmp_path, tiny_model_dir, **settings | {"quality": {"max_leakage": 0.05}}))
    assert caught.value.where == "data.quality.max_leakage"
    assert not list(tmp_path.glob("dataset/v=*/*.tfrecord"))
    result, lines = run(make_config(tmp_path, tiny_model_dir, **settings))
    estimate = result.manifest.quality["leakage"]
    assert estimate["splits"]["test"]["found"] > 0
    assert any("rows have a training row with similarity >= " in line for line in lines)
