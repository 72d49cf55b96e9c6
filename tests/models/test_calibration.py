"""The calibration of a model's profile."""

from __future__ import annotations

import warnings

import numpy as np

from howdah.models.profile.reference import fit_calibration


def test_a_sure_model_that_is_never_right_is_calibrated_without_a_warning():
    confidence = np.ones(73)
    confidence[0] = 0.999
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slope, intercept = fit_calibration(confidence, np.zeros(73, bool))
    assert slope == 0.0 and 1 / (1 + np.exp(-intercept)) < 0.05
