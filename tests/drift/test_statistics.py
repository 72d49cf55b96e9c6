"""PSI, Jensen-Shannon and chi-squared beside SciPy and beside formulas written down again."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from howdah.drift import statistics

counts = st.lists(st.integers(1, 100_000), min_size=2, max_size=60)


@settings(max_examples=60, deadline=None)
@given(counts, st.data())
def test_distances_are_those_of_other_implementations(first, data):
    second = data.draw(st.lists(st.integers(1, 9_999), min_size=len(first), max_size=len(first)))
    p, q = np.array(first) / sum(first), np.array(second) / sum(second)
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert statistics.psi(np.array(first), np.array(second)) == pytest.approx(expected, abs=1e-9)
    found = statistics.js_distance(np.array(first), np.array(second))
    assert found == pytest.approx(distance.jensenshannon(p, q, base=2), abs=1e-9)


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
    old, new = statistics.pool(reference, current)
    assert (old.tolist(), new.tolist()) == ([900, 50, 50], [90, 10, 0])
    assert statistics.pool(reference, current * 10)[0].tolist() == reference.tolist()
    old, new = statistics.pool(np.array([996, 4]), np.array([100, 0]))  # one alone has no partner
    assert old.tolist() == [996, 4]


def test_noise_is_interpolated_by_the_logarithm_of_the_size():
    points = [(100.0, 0.4, 0.04), (10_000.0, 0.2, 0.01)]
    assert statistics.interpolated(points, 1000) == pytest.approx((0.3, 0.025))
    assert statistics.interpolated(points, 25) == pytest.approx((0.8, 0.08))
    assert statistics.interpolated(points, 10**9) == (0.2, 0.01)
