"""The quality gate's reasons, the labels, MinHash and the split rule: no Spark."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howdah.config.data import CleanOptions, DataSection, QualityOptions, SplitOptions
from howdah.data.targets import label_mapping
from howdah.errors import DataError
from howdah.etl.rows import gate, labels, minhash, near
from howdah.etl.rows.components import roots
from howdah.etl.rows.gate import RowRules, judge, wrong_encoding
from howdah.etl.rows.split import split_of

LABELS = {"1": "World", "2": "Sports"}


@pytest.mark.parametrize(
    ("text", "label", "reason"),
    [
        ("A good text", "1", None),
        (None, "1", "empty"),
        (" \u200b\t", "1", "empty"),
        ("ab", "1", "too_short"),
        ("x" * 51, "1", "too_long"),
        ("Caf\u00c3\u00a9 au lait", "1", "wrong_encoding"),
        ("It\u00e2\u20ac\u2122s late", "1", "wrong_encoding"),
        ("lost \ufffd letter", "1", "wrong_encoding"),
        ("A good text", None, "bad_label"),
        ("A good text", " ", "bad_label"),
        ("A good text", "3", "bad_label"),
    ],
)
def test_each_reason(text, label, reason):
    quality = QualityOptions(min_characters=3, max_characters=50)
    verdict = judge(text, label, CleanOptions(), quality, RowRules(names=LABELS))
    assert verdict.reason == reason
    if reason is None:
        assert verdict.label == "World"


def test_the_encoding_check_can_be_switched_off():
    quality = QualityOptions(reject_wrong_encoding=False)
    assert judge("lost \ufffd letter", "1", CleanOptions(), quality, RowRules()).reason is None


@settings(deadline=None, derandomize=True)
@given(
    st.text(
        alphabet="aS\u00e9\u00e0\u00df\u00c9\u00d1\u4e2d\u0416\u00bb\u00ab\u2019\u201d\u2026\u20ac\u00a0"
    )
)
def test_right_texts_are_no_mojibake(text):
    assert wrong_encoding(text) is None
    assert wrong_encoding("S\u00c3O PAULO, AMANH\u00c3\u00bb, \u00c2ngela: " + text) is None


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="\u00e9\u00fc\u0416\u4e2d\u2019\u20ac\U0001f600", min_size=1))
def test_doubly_decoded_text_is_found(text):
    assert wrong_encoding(text) is None
    assert wrong_encoding(text.encode("utf-8").decode("latin-1")) is not None


# -------------------------------------------------------------------------------------- labels
def test_label_order():
    assert labels.names(DataSection(), {"10": 1, "2": 1}) == ["2", "10"]
    assert labels.names(DataSection(), {"b": 1, "a": 1}) == ["a", "b"]
    assert labels.names(DataSection(labels=["b", "a"]), {"a": 1, "b": 2}) == ["b", "a"]
    # the heads of models that were trained before know a label by its number
    counts = {"b": 1, "aa": 1, "c": 1}
    assert labels.names(DataSection(), counts, before=["b", "a"]) == ["b", "a", "aa", "c"]
    mapped = DataSection(labels={"1": "x", "2": "y", "3": "x"})
    assert labels.names(mapped, {"x": 1, "y": 1}) == ["x", "y"]


def test_names_of_one_number_have_one_order_and_similar_ones_are_named():
    names = ["1", "01", "10", "2"]
    assert labels.names(DataSection(), dict.fromkeys(names, 1)) == ["01", "1", "2", "10"]
    assert labels.names(DataSection(), dict.fromkeys(names[::-1], 1)) == ["01", "1", "2", "10"]
    alike = labels.similar(["Sports", "World", "sports", "caf\u00e9", "cafe\u0301"])
    assert alike == [["Sports", "sports"], ["caf\u00e9", "cafe\u0301"]]


def test_labels_of_the_configuration_are_texts_without_blanks_at_their_ends():
    assert label_mapping(DataSection(labels=[0, 1.0, "a "])) == {"0": "0", "1": "1", "a": "a"}
    assert label_mapping(DataSection(labels={1: "x", " b": 2})) == {"1": "x", "b": "2"}
    for names, words in (([True, False], "in quotes"), (["a", " a"], "twice"), ([None], "string")):
        with pytest.raises(ValueError, match=words):
            DataSection(labels=names)


def test_labels_that_make_no_classifier():
    with pytest.raises(DataError, match="at least two labels"):
        labels.names(DataSection(), {"only": 5})
    with pytest.raises(DataError, match="too many values"):
        labels.names(DataSection(), {f"text {n}": 1 for n in range(labels.MOST_LABELS + 1)})


def test_strings_that_are_not_utf_8_are_rejected_and_others_of_their_batch_are_not():
    """Tables of Hive hold any bytes as strings."""
    rows = {
        "key": [b"k1", b"k2", b"k\xe9", b"k4", None],
        gate.GROUP: [b"k1", b"k2", b"k\xe9", b"k4", b"h"],
        "text": [b"a text", b"the caf\xe9", b"a text", "the caf\u00e9".encode(), None],
        "label": [b"a", b"a", b"a", b"\xe9t\xe9", b"b"],
    }
    arrays = [pa.array(values, pa.binary()).view(pa.string()) for values in rows.values()]
    nothing = pa.nulls(5, pa.string())
    batch = pa.RecordBatch.from_arrays(
        [*arrays, nothing, nothing], names=[*rows, "reason", "detail"]
    )
    made = gate.clean_batches([batch], CleanOptions(), QualityOptions(), RowRules())
    by_id = {row["id"]: row for one in made for row in one.to_pylist()}
    fates = {key: (row["reason"], row["detail"]) for key, row in by_id.items() if key[0] == "k"}
    assert fates == {
        "k1": (None, None),
        "k2": ("wrong_encoding", "replacement character at 7"),
        "k\\xe9": ("wrong_encoding", "key: k\\xe9"),
        "k4": ("wrong_encoding", "label: \\xe9t\\xe9"),
    }
    assert by_id["k4"]["text"] == "the caf\u00e9" and len(by_id) == 5


def test_a_small_bound_on_rejects_is_shown_as_it_is():
    data = DataSection(quality={"max_reject_fraction": 0.004})
    with pytest.raises(DataError) as caught:
        gate.refuse_rejects(1_000, {"empty": 5}, data)
    assert caught.value.expected == "at most 0.4 % of 1,000 rows"


def test_targets_that_are_no_numbers_are_told_of_the_decimal_comma():
    data = DataSection(task="regression")
    with pytest.raises(DataError) as caught:
        gate.refuse_rejects(10, {"bad_target": 9, "empty": 1}, data)
    assert "with a decimal point (136.1), not a comma (136,1)" in caught.value.remedy


def test_unknown_labels_name_the_nearest():
    data = DataSection(labels=["sports", "world"])
    with pytest.raises(DataError) as caught:
        labels.refuse_unknown(data, {"sport": 3})
    assert "'sport' (3 rows)" in str(caught.value) and "did you mean 'sports'" in str(caught.value)
    labels.refuse_unknown(data, {})
    tolerant = DataSection(labels=["sports"], quality=QualityOptions(unknown_label="reject"))
    labels.refuse_unknown(tolerant, {"sport": 3})


# ------------------------------------------------------------------------------------- minhash
def _shingle_set(text, n):
    words = text.lower().split()
    return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))}


def test_signatures_estimate_jaccard():
    random = np.random.default_rng(3)
    base = [f"w{n}" for n in random.integers(0, 5_000, 300)]
    errors = []
    for changes in (0, 2, 5, 12, 30, 60):
        other = list(base)
        for place in random.choice(300, changes, replace=False):
            other[place] = f"new{place}"
        a, b = " ".join(base), " ".join(other)
        left, right = _shingle_set(a, 3), _shingle_set(b, 3)
        exact = len(left & right) / len(left | right)
        first, second = minhash.signatures([a, b], 3, 512)
        errors.append(abs(float((first == second).mean()) - exact))
    assert errors[0] == 0
    assert max(errors) < 0.09  # four standard deviations of 512 draws


def test_signature_of_a_text_does_not_depend_on_its_batch():
    texts = ["one two three four five six", "", "!!!", "short", "one two three four five seven"]
    together = minhash.signatures(texts, 5, 32)
    for row, text in zip(together, texts, strict=True):
        assert (minhash.signatures([text], 5, 32)[0] == row).all()
    assert minhash.signatures([], 5, 32).shape == (0, 32)
    hashes, starts = minhash.shingles(texts, 5)
    assert starts.tolist() == [0, 2, 3, 4, 5] and len(hashes) == 7


def test_band_keys_meet_where_a_whole_band_is_equal():
    signature = np.arange(32, dtype=np.uint32).reshape(1, 32).repeat(2, axis=0)
    signature[1, 8:] += 1
    keys = minhash.band_keys(signature, 4, 8)
    assert (keys[0] == keys[1]).tolist() == [True, False, False, False]
    assert len(set(keys[0].tolist())) == 4


def test_link_bucket_joins_groups_that_a_later_row_connects():
    def row(*parts):
        return np.repeat(np.array(parts, dtype=np.uint32), 8)

    a, b = row(1, 1, 1, 1), row(2, 2, 2, 2)
    bridge = row(1, 1, 2, 2)
    assert minhash.link_bucket(np.stack([a, b, bridge]), 0.5).tolist() == [[0, 2], [1, 2]]
    assert minhash.link_bucket(np.stack([a, b, bridge]), 0.6).tolist() == []
    assert minhash.link_bucket(np.stack([a, a, a]), 1.0).tolist() == [[0, 1], [0, 2]]
    # the first two are compared with each other elsewhere
    assert minhash.link_bucket(np.stack([a, a, b]), 1.0, 2).tolist() == []
    assert minhash.link_bucket(np.stack([a, a, a]), 1.0, 2).tolist() == [[0, 2], [1, 2]]


def test_links_do_not_depend_on_where_batches_end():
    random = np.random.default_rng(2)
    sizes = [2, 2, 5, 1, 2, 9, 2, 3]
    rows = [(bucket, 0, False) for bucket, size in enumerate(sizes) for _ in range(size)]
    rows += [(99, piece, n >= 2) for piece in (1, 2) for n in range(4)]
    signature = random.integers(0, 3, (len(rows), 16)).astype(np.uint32)
    bucket, piece, beyond = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(bucket, pa.int64()),
            pa.array(piece, pa.int32()),
            pa.array(beyond),
            pa.array(range(len(rows)), pa.int64()),
            pa.array([row.tobytes() for row in signature]),
        ],
        names=["bucket", "piece", "beyond", "node", "signature"],
    )

    def links(cuts):
        ends = [0, *cuts, len(rows)]
        parts = [batch.slice(a, b - a) for a, b in itertools.pairwise(ends)]
        links = [b.to_pylist() for b in near._link_batches(parts, 0.4)]
        return sorted((e["a"], e["b"]) for part in links for e in part)

    def components(edges):
        if not edges:
            return {}
        nodes, root = roots(*np.array(edges).T)
        return dict(zip(nodes.tolist(), root.tolist(), strict=True))

    whole = links([])
    pairs = [
        (a, b)
        for a in range(len(rows))
        for b in range(a + 1, len(rows))
        if rows[a][:2] == rows[b][:2] and (signature[a] == signature[b]).sum() >= 7
        if rows[a][1] < 2 or rows[b][2]  # first members are compared in the first piece alone
    ]
    assert len(pairs) > 5 and components(whole) == components(pairs)
    assert {rows[b][:2] for _, b in whole} == {rows[b][:2] for _, b in pairs}
    for cuts in ([7], [0, 7, 7, 8], list(range(1, len(rows)))):
        assert links(cuts) == whole


# --------------------------------------------------------------------------------------- split
def test_split_fractions_and_stability():
    options = SplitOptions(validation=0.2, test=0.1, seed=5)
    drawn = [split_of(f"cluster-{n}", options) for n in range(20_000)]
    shares = {name: drawn.count(name) / len(drawn) for name in set(drawn)}
    assert abs(shares["validation"] - 0.2) < 0.012 and abs(shares["test"] - 0.1) < 0.009
    assert drawn[:4] == [split_of(f"cluster-{n}", options) for n in range(4)]
    assert drawn != [split_of(f"cluster-{n}", SplitOptions(seed=6)) for n in range(20_000)]
