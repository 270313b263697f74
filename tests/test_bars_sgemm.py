"""The bars of matrix products notice what they should."""

import pytest
from bars.sgemm import judge

from jaxkernels.bench.sgemm import cases


def _measured(n=4096, **changes):
    """A square that passes every bar, or one of whose fields does not."""
    fields = {
        "seconds": {"xla": 1.0, "pipelined": 0.9},
        "relative_errors": {"xla": 1e-6, "pipelined": 1e-6},
        "bound_ratios": {"xla": 0.1, "pipelined": 0.1},
        "refused": {},
        "group": "square",
        **changes,
    }
    return cases.Measurement(
        batch=1,
        m=n,
        n=n,
        k=n,
        transposes="NN",
        plan="",
        products_per_call=1,
        samples={},
        **fields,
    )


def _ladder_of(*seconds):
    times = dict(zip(cases.RUNGS, seconds, strict=True))
    return _measured(group="ladder", seconds={**times, "xla": seconds[-1]})


NAN = float("nan")


@pytest.mark.parametrize(
    ("what", "failing"),
    [
        ("contenders", {"seconds": {"xla": 1.0}, "refused": {"pipelined": "no memory"}}),
        ("contenders", {"seconds": {"pipelined": 1.0}, "refused": {"xla": "no memory"}}),
        ("geometric mean", {"seconds": {"xla": 1.0, "pipelined": 1.3}}),
        ("least", {"seconds": {"xla": 1.0, "pipelined": 1.04}}),
        ("largest error", {"bound_ratios": {"xla": 0.1, "pipelined": NAN}}),
        ("largest error", {"bound_ratios": {"xla": 0.1, "pipelined": 1.1}}),
        ("relF", {"relative_errors": {"xla": 1e-6, "pipelined": NAN}}),
        ("relF", {"relative_errors": {"xla": 1e-6, "pipelined": 2e-6}}),
        ("relF", {"relative_errors": {"xla": 0.0, "pipelined": 2e-6}}),
    ],
)
def test_bars_notice(what, failing):
    """One product that does not reach a bar, after one that does."""
    good = _measured(n=2048)
    assert all(v.passed for v in judge([good], "gpu"))
    failed = [v.what for v in judge([good, _measured(**failing)], "gpu") if not v.passed]
    assert any(what in name for name in failed), failed


def test_ladder_has_to_rise():
    def failed(*seconds):
        return [v.what for v in judge([_ladder_of(*seconds)], "gpu") if not v.passed]

    assert failed(6, 5, 4, 1.2, 1.1, 1) == []
    assert failed(6, 5, 4, 1.2, 1.2, 1) == ["ladder, TFLOP/s"]
    assert failed(6, 5, 1.1, 1.2, 1.15, 1) == ["ladder, TFLOP/s"]
    assert failed(6, 5, 4, 1.3, 1.1, 1) == ["warp_tile, of cuBLAS"]


def test_a_cpu_is_held_to_completeness_alone():
    """Both products are XLA's there."""
    slow = _measured(seconds={"xla": 1.0, "pipelined": 9.0})
    assert [v.passed for v in judge([slow], "cpu")] == [True]
    missing = _measured(refused={"pipelined": "no memory"})
    assert [v.passed for v in judge([slow, missing], "cpu")] == [False]
