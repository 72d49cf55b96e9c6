"""No two texts above the threshold in two splits: all pairs are compared, by brute force.

The ETL compares MinHash signatures, and only within LSH buckets. What follows from that with
certainty is asserted for every pair:

    similar signatures in a common bucket           one group
    so many equal entries that a band must be       one group (25 bands of 5: from 104 of 128 on)
    equal (more bands than unequal entries)

that at most 1 % of the pairs with similar signatures are torn because they have no bucket in common
(at the threshold itself, 0.7, 25 bands of 5 miss so many), and, since estimates of a similarity of
0.85 lie below 0.7 once in 500,000 times, that no pair whose true Jaccard similarity is 0.85 or more
is torn. A group goes to one split as a whole: that two texts are in one is more than that they are
in one split.
"""

from unittest import mock

import numpy as np
import pytest

from howdah.config.data import DedupOptions
from howdah.config.options.dedup import NUM_PERMUTATIONS
from howdah.etl.rows import components, dedup, minhash, near
from howdah.etl.rows.gate import text_key
from howdah.etl.workspace.scratch import Scratch

_BLOCK = 128
_CERTAIN = 0.85


def _words(random, count):
    return [f"word{n}" for n in random.integers(0, 200_000, count)]


def _texts(count):
    """Boilerplate with a number or two in it, chains of edits, stars, copies, texts alone."""
    random = np.random.default_rng(count)
    notice = _words(random, 40)
    texts = []
    for n in range(count // 5):  # "your order N of ITEM has shipped": many in one bucket
        words = list(notice)
        words[7] = f"order{n}"
        if n % 3 == 0:
            words[21] = f"item{n % 97}"
        texts.append(" ".join(words) + "!" * (n % 3))
    while len(texts) < 2 * count // 5:  # each like the next one, the ends share no word
        words, step = _words(random, 40), int(random.integers(1, 4))
        texts += [
            " ".join([f"new{len(texts)}x{k}" for k in range(n * step)] + words[n * step :])
            for n in range(40 // step)
        ]
    while len(texts) < 3 * count // 5:  # all like the first one, less like each other
        words = _words(random, int(random.integers(12, 60)))
        texts.append(" ".join(words))
        for n in range(60):
            changed = list(words)
            for at in random.integers(0, len(words), int(random.integers(1, 4))):
                changed[at] = f"leaf{len(texts)}x{n}"
            texts.append(" ".join(changed))
    while len(texts) < count:
        words = _words(random, int(random.integers(3, 50)))
        texts.append(" ".join(words))
        if random.random() < 0.2:
            words[int(random.integers(0, len(words)))] = "other"
            texts.append(" ".join(words).upper() + "?")
    texts = texts[:count]
    return [texts[n] for n in random.permutation(count)]


def _groups(spark, texts, options, tmp_path):
    """(number of the group of each text, what was found)."""
    rows = [(f"r{n:06d}", text, f"label{n % 5}", text_key(text)) for n, text in enumerate(texts)]
    frame = spark.createDataFrame(rows, "id string, text string, label string, key string")
    temporary = []
    patched, scratch = pytest.MonkeyPatch.context(), Scratch(str(tmp_path / "v=0"), "0badcafe")
    with patched as patch, scratch:
        patch.setattr(components, "DRIVER_EDGES", 2_000)
        result = dedup.deduplicate(frame, options, scratch, temporary)
        table = sorted(
            (row["id"], row["group"]) for row in result.rows.select("id", "group").collect()
        )
    for item in temporary:
        item.unpersist()
    assert len(table) == len(texts)
    return np.unique([group for _, group in table], return_inverse=True)[1], result


def _torn_signatures(texts, groups, options):
    """(pairs that are above the threshold, those of them in two groups that must not be, how many
    are in two groups because no bucket has both)."""
    signature = minhash.signatures(texts, options.ngram, NUM_PERMUTATIONS)
    bands, _ = options.banding
    keys = minhash.band_keys(signature, *options.banding)
    least = minhash.equal_entries(options.threshold, NUM_PERMUTATIONS)
    columns = np.ascontiguousarray(signature.T)  # (K, B)
    above, torn, unseen = 0, [], 0
    for begin in range(0, len(texts), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        equal = np.zeros((len(texts[block]), len(texts)), dtype=np.int16)
        for column in columns:
            equal += column[block, None] == column[None]
        a, b = np.nonzero(equal >= least)
        a += begin
        a, b, same = a[a < b], b[a < b], equal[a - begin, b][a < b]
        above += len(a)
        apart = groups[a] != groups[b]
        a, b, same = a[apart], b[apart], same[apart]
        met = (keys[a] == keys[b]).any(axis=1)
        sure = NUM_PERMUTATIONS - same < bands
        assert met[sure].all()  # the pigeonhole principle
        torn += list(zip(a[met].tolist(), b[met].tolist(), strict=True))
        unseen += int((~met).sum())
    return above, torn, unseen


def _torn_exactly(texts, groups):
    """(pairs whose Jaccard similarity is _CERTAIN or more, those of them in two groups)."""
    shingles = minhash.sets(texts)
    sizes = np.array([len(each) for each in shingles])
    owner = np.repeat(np.arange(len(texts)), sizes)
    names, number = np.unique(np.concatenate(shingles), return_inverse=True)
    order = np.argsort(number, kind="stable")
    owners = owner[order]  # of each shingle, one after the other
    starts = np.concatenate(([0], np.cumsum(np.bincount(number, minlength=len(names)))))
    ends = np.concatenate(([0], np.cumsum(sizes)))
    above, torn = 0, []
    for n in range(len(texts)):
        shingles_of_n = number[ends[n] : ends[n + 1]]
        others = np.concatenate([owners[starts[each] : starts[each + 1]] for each in shingles_of_n])
        common = np.bincount(others, minlength=len(texts))[n + 1 :]
        similarity = common / (sizes[n] + sizes[n + 1 :] - common)
        alike = n + 1 + np.flatnonzero(similarity >= _CERTAIN)
        above += len(alike)
        torn += [(n, int(other)) for other in alike[groups[alike] != groups[n]]]
    return above, torn


def _judge(spark, tmp_path, count, max_bucket_size):
    options = DedupOptions()
    texts = _texts(count)
    with mock.patch.object(near, "MAX_BUCKET_SIZE", max_bucket_size):
        groups, result = _groups(spark, texts, options, tmp_path)
    assert result.capped_buckets > 0  # of the boilerplate not all was compared
    above, torn, unseen = _torn_signatures(texts, groups, options)
    assert above > count and not torn, (above, torn[:5])
    assert unseen <= above // 100, (above, unseen)
    above, torn = _torn_exactly(texts, groups)
    assert above > count and not torn, (above, torn[:5])
    # texts alone stay alone: one group for all would satisfy all of the above
    assert groups.max() > count // 5


@pytest.mark.spark
def test_no_pair_above_the_threshold_is_torn_apart(spark, tmp_path):
    _judge(spark, tmp_path, 2_000, 50)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_no_pair_of_20_000_rows_is_torn_apart(spark, tmp_path):
    _judge(spark, tmp_path, 20_000, 200)
