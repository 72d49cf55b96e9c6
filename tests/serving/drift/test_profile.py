"""Profiles: what is counted, that parts add up exactly, what is read again, what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howdah import storage
from howdah.errors import DataError, ModelError
from howdah.models.profile.bins import KNOWN_BITS, Bins, Known
from howdah.models.profile.profile import PROFILE, Profile, Reference, reference_of
from tests.serving.drift import samples


def counted(seed: int, count: int, reference: Profile | None = None) -> Profile:
    profile = Profile.like(reference or samples.reference())
    profile.add(*samples.rows(seed, count))
    return profile


def test_each_thing_is_counted_in_its_bin():
    profile = Profile.like(samples.reference())
    scores_NC = np.array([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]], np.float32)
    # Ids 4, 5: cells 0, 1. 3: unknown. 55: never seen in training. 0 to 2: special, not counted.
    ids_N = [np.array([1, 4, 4, 2]), np.array([1, 55, 2]), np.array([1, 5, 3, 4, 4, 4, 4, 4, 2])]
    profile.add(scores_NC, ids_N)
    profile.add_failed(empty=2, errors=1)
    counts = profile.counts
    assert (counts.rows, counts.empty, counts.errors, profile.rows) == (3, 2, 1, 6)
    assert counts.labels.tolist() == [1, 1, 1]
    assert counts.confidence.tolist() == [0, 1, 1, 1]  # a value at an edge is in the bin above
    assert counts.length.tolist() == [1, 1, 1]
    assert (counts.ids, counts.tokens, counts.unseen, counts.unknown) == (16, 10, 1, 1)
    assert counts.cells[:2].tolist() == [7, 1]
    assert counts.cells.sum() == 10
    assert counts.confidence_nano == pytest.approx((0.8 + 0.6 + 1.0) * 1e9, abs=100)
    calibrated_N = profile.bins.calibrated(np.array([0.8, 0.6, 1.0], np.float32))
    assert calibrated_N[0] == pytest.approx(1 / (1 + np.exp(-(0.8 * np.log(4) + 0.1))), abs=1e-6)
    assert counts.calibrated_nano == pytest.approx(calibrated_N.sum() * 1e9, abs=3)


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    nested=st.booleans(),
)
def test_parts_add_up_to_the_profile_of_all_rows_in_any_order(parts, order, nested):
    scores_NC, ids_N = samples.rows(7, sum(parts))
    whole = Profile.like(samples.reference())
    whole.add(scores_NC, ids_N)
    whole.add_failed(empty=len(parts), errors=2 * len(parts))
    ends = np.cumsum(parts)
    made = []
    for start, end in zip(ends - parts, ends, strict=True):
        part = Profile.like(samples.reference())
        part.add(scores_NC[start:end], ids_N[start:end])
        part.add_failed(empty=1, errors=2)
        made.append(Profile.from_dict(json.loads(json.dumps(part.as_dict()))))
    order.shuffle(made)
    if nested and len(made) > 2:
        made[0].merge(made.pop())
    total = Profile.like(samples.reference())
    for part in made:
        total.merge(part)
    assert total.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_a_models_profile_is_read_again_whole(tmp_path, task):
    labels = ("score",) if task == "regression" else ("a", "b", "c")
    profile = samples.reference(task=task, labels=labels)
    profile.add(*samples.rows(1, 50, len(labels)))
    (tmp_path / PROFILE).write_bytes(profile.to_bytes())
    again = reference_of(str(tmp_path))
    assert again.to_bytes() == profile.to_bytes()
    assert again.bins.as_dict() == profile.bins.as_dict()
    part = Profile.like(again)
    part.add(*samples.rows(2, 9, len(labels)))
    part.merge(Profile.from_dict(profile.as_dict()))
    assert part.counts.rows == 59
    assert reference_of(str(tmp_path / "none")) is None


def test_several_labels_and_numbers_are_counted_as_what_they_are():
    several = Profile.like(samples.reference(task="multi_label"))
    several.add(np.array([[0.9, 0.2, 0.6], [0.1, 0.1, 0.2]]), [np.array([1, 4, 2])] * 2)
    assert several.counts.labels.tolist() == [1, 0, 1]
    assert several.counts.confidence.tolist() == [0, 1, 1, 0]  # the least certain label: 0.6, 0.8
    number = Profile.like(samples.reference(task="regression", labels=("score",)))
    number.add(np.array([[0.6], [-3.0]]), [np.array([1, 4, 2])] * 2)
    assert number.counts.labels.tolist() == []
    assert number.counts.confidence.tolist() == [1, 1, 0, 0]
    assert number.counts.calibrated_nano == 0


def test_a_model_without_tokens_has_labels_and_confidence_alone():
    bins = samples.bins(vocabulary=0, top=(), special=(), unknown=None, length=())
    images = Profile(bins, known_tokens=Known.of(np.array([]), 0))
    images.add(samples.rows(1, 5)[0])
    assert (images.counts.rows, images.counts.texts) == (5, 0)
    assert Profile.from_dict(images.as_dict()).counts.rows == 5


def test_rows_with_nan_are_errors():
    profile = Profile.like(samples.reference())
    scores_NC, ids_N = samples.rows(1, 4)
    scores_NC[2, 1] = np.nan
    profile.add(scores_NC, ids_N)
    assert (profile.counts.rows, profile.counts.errors, profile.counts.texts) == (3, 1, 3)


@pytest.mark.parametrize("rows", [10, 30_000])
def test_a_profile_is_at_most_40_kb_whatever_it_counts(rows):
    random = np.random.default_rng(0)
    vocabulary = 250_002
    tokens = Known.of(random.choice(vocabulary, vocabulary // 2, replace=False), vocabulary)
    bins = samples.bins(
        labels=tuple(f"label-{n:03d}" for n in range(100)),
        confidence=tuple(np.sort(random.random(9))),
        length=tuple(range(10, 100, 10)),
        vocabulary=vocabulary,
        top=tuple(random.choice(np.arange(4, vocabulary), 1024, replace=False).tolist()),
    )
    spread = tuple((float(n), 0.1234567890123, 0.0123456789012) for n in range(12))
    reference = Reference(known_tokens=tokens, split="validation", spread=spread)
    profile = Profile(bins, reference=reference)
    ids = (random.pareto(1.0, (rows, 20)) * 1000).astype(np.int64) % (vocabulary - 4) + 4
    profile.add(random.dirichlet(np.ones(100), rows).astype(np.float32), list(ids))
    assert len(profile.to_bytes()) <= 40_000
    part = Profile.like(profile)
    part.merge(Profile.from_dict(profile.as_dict()))
    assert len(part.to_bytes()) <= 20_000


def test_known_tokens_of_a_large_vocabulary_share_bits():
    tokens = Known.of(np.array([5]), 3 * KNOWN_BITS)
    assert tokens.has(np.array([5, 6, 5 + KNOWN_BITS])).tolist() == [True, False, True]


def test_profiles_of_different_models_are_not_added_up():
    with pytest.raises(DataError, match="different model versions"):
        counted(1, 3).merge(counted(1, 3, samples.reference(slope=0.9)))


def test_a_token_outside_the_vocabulary_is_refused():
    with pytest.raises(DataError, match="not in the vocabulary") as caught:
        Profile.like(samples.reference()).add(np.full((1, 3), 1 / 3), [np.array([1, 60, 2])])
    assert "0 to 59" in str(caught.value)


DAMAGE = {
    "format": lambda d: d.update(format_version=2),
    "counts": lambda d: d.pop("counts"),
    "negative": lambda d: d["counts"].update(rows=-1),
    "text": lambda d: d["counts"].update(rows="many"),
    "fraction": lambda d: d["counts"].update(labels=[1, 2.5, 3]),
    "shape": lambda d: d["counts"].update(labels=[1, 2]),
    "cells": lambda d: d["counts"].update(cells="!"),
    "bins": lambda d: d["bins"].update(slope=7.0),
    "nan": lambda d: d["bins"].update(confidence=[0.1, float("nan"), 0.5]),
    "task": lambda d: d["bins"].update(task="clustering"),
    "known": lambda d: d["reference"]["known"].update(size=10**9),
    "list": lambda d: d.update(reference=[1]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_profile_is_refused_with_its_path(tmp_path, kind):
    written = samples.reference().as_dict()
    DAMAGE[kind](written)
    path = storage.join(str(tmp_path), PROFILE)
    storage.write_whole(path, json.dumps(written).encode())
    with pytest.raises(ModelError, match="not a profile") as caught:
        reference_of(str(tmp_path))
    assert path in str(caught.value)


def test_a_partitions_profile_is_no_models(tmp_path):
    (tmp_path / PROFILE).write_bytes(counted(1, 3).to_bytes())
    with pytest.raises(ModelError, match="not a profile"):
        reference_of(str(tmp_path))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5000), st.data())
def test_known_tokens_are_read_again(vocabulary, data):
    tokens = data.draw(st.lists(st.integers(0, vocabulary - 1), max_size=20))
    known_tokens = Known.from_dict(Known.of(np.array(tokens, np.int64), vocabulary).as_dict())
    assert np.flatnonzero(known_tokens.bits).tolist() == sorted(set(tokens))


def test_bins_are_named_by_all_they_hold():
    assert samples.bins().id == samples.bins().id
    assert samples.bins().id == Bins.from_dict(samples.bins().as_dict()).id
    for changed in ({"unknown": None}, {"length": (4, 9)}, {"top": (4,)}, {"labels": ("b", "a")}):
        assert samples.bins(**changed).id != samples.bins().id
