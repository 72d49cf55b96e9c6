"""PSI, Jensen-Shannon and chi-squared beside SciPy and beside formulas written down again."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from howdah.models.profile import statistics

counts = st.lists(st.integers(1, 100_000), min_size=2, max_size=60)


@settings(max_examples=60, deadline=None)
@given(counts, st.data())
def test_distances_are_those_of_other_implementations(first, data):
    second = data.draw(st.lists(st.integers(1, 9_999), min_size=len(first), max_size=len(first)))
    p, q = np.array(first) / sum(first), np.array(second) / sum(second)
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert statistics.psi(np.array(first), np.array(second)) == pytest.approx(expected, abs=1e-9)
    computed = statistics.js_distance(np.array(first), np.array(second))
    assert computed == pytest.approx(distance.jensenshannon(p, q, base=2), abs=1e-9)


def test_cells_without_rows_are_no_distance_by_themselves():
    assert statistics.js_distance(np.array([1, 0, 3]), np.array([1, 0, 3])) == 0
    assert statistics.js_distance(np.array([1, 0]), np.array([0, 1])) == pytest.approx(1)
    assert statistics.psi(np.array([5, 0, 5]), np.array([7, 0, 7])) == 0
    # A bin that only one side has counts as half a row there.
    expected = (0.5 - 0.005) * math.log(0.5 / 0.005) + (0.5 - 1) * math.log(0.5)
    assert statistics.psi(np.array([100, 0]), np.array([50, 50])) == pytest.approx(expected)


@pytest.mark.parametrize("freedom", [1, 2, 5, 9, 30, 99, 1000])
@pytest.mark.parametrize("quantile", [0.9, 0.99, 0.999, 0.99999])
def test_quantiles_are_scipys(freedom, quantile):
    expected = stats.chi2.ppf(quantile, freedom)
    assert statistics.chi2_quantile(quantile, freedom) == pytest.approx(expected, rel=1e-9)
    assert statistics.normal_quantile(quantile) == pytest.approx(stats.norm.ppf(quantile), rel=1e-9)


def test_rare_bins_are_pooled():
    reference, current = np.array([900, 50, 30, 20]), np.array([90, 10, 0, 0])
    old, new = statistics.pool(reference, current)  # expected of 100 rows: 90, 5.5, 2.7, 1.8
    assert (old.tolist(), new.tolist()) == ([900, 100], [90, 10])
    assert statistics.pool(reference, reference * 100)[0].tolist() == reference.tolist()
    old, new = statistics.pool(np.array([996, 4]), np.array([100, 0]))  # one alone has no partner
    assert old.tolist() == [996, 4]
    # The smaller side decides, whichever it is.
    swapped = statistics.pool(current, reference)
    assert [side.tolist() for side in swapped] == [[90, 10], [900, 100]]
    # Rare ones that are enough for several bins are several bins: a shift among them is seen.
    many = statistics.pool(np.full(100, 10), np.full(100, 10))[0]
    assert many.sum() == 1000 and len(many) == 50


def shares(labels: int, kind: str) -> np.ndarray:
    weights = np.ones(labels) if kind == "equal" else 1 / np.arange(1, labels + 1)
    return weights / weights.sum()


def alarms(reference_P, current_P, rows: tuple[int, int], draws: int) -> int:
    """False or right alarms of `draws` partitions, each with a validation split of its own."""
    random = np.random.default_rng(len(reference_P))
    alarm_count = 0
    for old_C, new_C in zip(
        random.multinomial(rows[0], reference_P, draws),
        random.multinomial(rows[1], current_P, draws),
        strict=True,
    ):
        old_B, new_B = statistics.pool(old_C, new_C)
        bins = int(np.count_nonzero((old_B > 0) | (new_B > 0)))
        limit = max(0.2, statistics.psi_noise(bins, rows[0], rows[1], 0.999))
        alarm_count += statistics.psi(old_B, new_B) > limit
    return alarm_count


@pytest.mark.parametrize("kind", ["equal", "zipf"])
@pytest.mark.parametrize("labels", [2, 77, 150, 1000])
def test_labels_that_have_not_moved_alarm_in_at_most_5_of_1000_partitions(labels, kind):
    """At the sizes where chance moves them most: a small validation split beside a large partition,
    and both small. A share of labels that does move is found at the same sizes."""
    same_P = shares(labels, kind)
    for rows in ((100, 100_000), (500, 100_000), (200, 300)):
        assert alarms(same_P, same_P, rows, 1000) <= 5, rows
    moved_P = 0.7 * same_P
    moved_P[labels // 2] += 0.3  # one label gets 30 points of the rows
    if labels > 2:
        assert alarms(same_P, moved_P, (200, 300), 200) >= 190
        # Half of the labels become a fifth as frequent, of labels that are rare each.
        halves_P = np.where(np.arange(labels) < labels // 2, 0.2, 1.8) * same_P
        assert alarms(same_P, halves_P / halves_P.sum(), (2000, 5000), 200) >= 190


def test_noise_is_interpolated_by_the_logarithm_of_the_size():
    points = [(100.0, 0.4, 0.04), (10_000.0, 0.2, 0.01)]
    assert statistics.interpolated(points, 1000) == pytest.approx((0.3, 0.025))
    assert statistics.interpolated(points, 25) == pytest.approx((0.8, 0.08))
    assert statistics.interpolated(points, 10**9) == (0.2, 0.01)
