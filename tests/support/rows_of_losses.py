"""Losses and gradients of rows with labels, held against the truth."""

import numpy as np

from jaxkernels.verify.truth import compare
from jaxkernels.verify.truth.losses import Rows


def assert_within(got, want, limit, what):
    """Every element lies within its bound."""
    ratio, text = compare.largest_ratio(np.asarray(got), want, limit)
    assert ratio <= 1, f"{what} {text}"


def checked_loss(got, x, label, accumulators=4):
    """The plain loss of each row; 0 of those without a label."""
    rows = Rows(x, label, accumulators)
    counted = label >= 0
    want, limit = (np.where(counted, a[:, 0], 0) for a in (rows.measures(), rows.measure_bounds()))
    assert_within(got, want, limit, "loss")


def checked_gradient(got, x, label, accumulators=4):
    """The gradient of their sum."""
    rows = Rows(x, label, accumulators)
    cotangent = np.zeros((len(x), 4))
    cotangent[:, 0] = label >= 0
    assert_within(got, rows.gradient(cotangent), rows.gradient_bound(cotangent), "gradient")
