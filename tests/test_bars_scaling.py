"""The bars of many devices notice what they should, and whatever is not there."""

import pytest
from bars.scaling import judge

from jaxkernels.bench.scaling import cases, report

NAN = float("nan")


def _weak(group="softmax", two=1.0, four=1.0, **changes):
    """A case that passes its bar unless two or four devices take too long."""
    fields = {"seconds": {"1": 1.0, "2": two, "4": four}, "dtype": "bfloat16", **changes}
    named = {name: {} for name in ("1", "2", "4")}
    fields = {"collectives": named, "direction": "fwd", **fields}
    return cases.Weak(group=group, shape=(4, 8), devices=(1, 2, 4), **fields)


def _vocabulary(devices=4, **changes):
    """A case that passes its bar: three times faster on 4 devices, where 2 are asked for."""
    fields = {"seconds": {"gathered": 3.0, "xla": 2.0, "ours": 1.0}, "direction": "both", **changes}
    fields = {"collectives": {name: {} for name in cases.CONTENDERS}, **fields}
    return cases.Vocabulary(dtype="bfloat16", rows=8, cols=64, devices=devices, **fields)


# On one device nothing is held against gathered: there is nothing to gather.
ONE = _vocabulary(1, seconds={"gathered": 0.1, "xla": 0.1, "ours": 1.0})
GOOD = [_weak(), _weak("attention")], [ONE, _vocabulary(2), _vocabulary(4)]

ROWS = "softmax of rows, efficiency, least"
BATCH = "attention over a batch, efficiency, least"
OVER_2, OVER_4 = (
    f"log_softmax of a vocabulary over {count} devices, over gathered, least" for count in (2, 4)
)
ALL = "contenders measured"


def _failed(weak=(), vocabulary=(), platform="gpu"):
    """The bars that fail with some cases between good ones."""
    good_weak, good_vocabulary = GOOD
    weak = [*good_weak, *weak, *good_weak]
    vocabulary = [*good_vocabulary, *vocabulary, *good_vocabulary]
    return {v.what for v in judge(weak, vocabulary, platform) if not v.passed}


def test_bars_can_be_passed():
    assert _failed() == set()
    assert {v.what for v in judge(*GOOD, "gpu")} == {ALL, ROWS, BATCH, OVER_2, OVER_4}
    text = str(report.tables(*GOOD, "gpu"))
    assert "nothing to compare" not in text
    assert "3.00" in text


def test_one_device_is_judged_by_completeness_alone():
    seconds = {"1": 1.0}
    one = cases.Weak("softmax", "float32", "fwd", (4, 8), [1], seconds, collectives={"1": {}})
    assert [v.what for v in judge([one], [ONE], "gpu")] == [ALL]
    assert "nothing to compare" in str(report.tables([one], [ONE], "gpu"))
    # What was asked of more than one device and failed is no "nothing".
    refused = _vocabulary(2, seconds={}, refused=dict.fromkeys(cases.CONTENDERS, "no NCCL"))
    text = str(report.tables([], [refused], "gpu"))
    assert "nothing to compare" not in text
    assert "no NCCL" in text


@pytest.mark.parametrize(("group", "bar"), [("softmax", ROWS), ("attention", BATCH)])
@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"two": 1 / 0.95}, set()),
        ({"two": 1.06}, {"bar"}),
        ({"four": 1.06}, {"bar"}),
        ({"direction": "both", "four": 1.06}, {"bar"}),
        ({"dtype": "float32", "four": 1.06}, {"bar"}),
        ({"four": NAN}, {"bar", ALL}),
        ({"four": float("inf")}, {"bar", ALL}),
        ({"four": 0.0}, {"bar", ALL}),
        ({"seconds": {"1": NAN, "2": 1.0, "4": 1.0}}, {"bar", ALL}),
        ({"seconds": {"1": float("inf"), "2": 1.0, "4": 1.0}}, {"bar", ALL}),
        ({"seconds": {"2": 1.0, "4": 1.0}}, {"bar", ALL}),
        ({"seconds": {"1": 1.0, "2": 1.0}, "refused": {"4": "memory"}}, {"bar", ALL}),
        ({"seconds": {}}, {"bar", ALL}),
        ({"collectives": {"1": {}, "2": {}}}, {ALL}),
    ],
)
def test_bars_of_weak_scaling_notice(group, bar, changes, failing):
    found = _failed([_weak(group, **changes)])
    assert found == {bar if name == "bar" else name for name in failing}


@pytest.mark.parametrize(
    ("devices", "changes", "failing"),
    [
        (4, {"seconds": {"gathered": 2.0, "xla": 1.0, "ours": 1.0}}, set()),
        (4, {"seconds": {"gathered": 1.99, "xla": 1.0, "ours": 1.0}}, {OVER_4}),
        (2, {"seconds": {"gathered": 1.0, "xla": 1.0, "ours": 1.0}}, set()),
        (2, {"seconds": {"gathered": 0.99, "xla": 1.0, "ours": 1.0}}, {OVER_2}),
        (4, {"seconds": {"gathered": 1.0, "xla": 1.0, "ours": 1.0}, "direction": "fwd"}, {OVER_4}),
        # XLA is shown, not a bar; but it has to be there.
        (4, {"seconds": {"gathered": 2.0, "xla": 0.1, "ours": 1.0}}, set()),
        (4, {"seconds": {"gathered": 2.0, "ours": 1.0}}, {ALL}),
        (4, {"seconds": {"gathered": 2.0, "xla": NAN, "ours": 1.0}}, {ALL}),
        (4, {"seconds": {"gathered": 2.0, "xla": 1.0, "ours": NAN}}, {OVER_4, ALL}),
        (4, {"seconds": {"gathered": NAN, "xla": 1.0, "ours": 1.0}}, {OVER_4, ALL}),
        (4, {"seconds": {"gathered": float("inf"), "xla": 1.0, "ours": 1.0}}, {OVER_4, ALL}),
        (4, {"seconds": {"xla": 1.0, "ours": 1.0}}, {OVER_4, ALL}),
        (4, {"seconds": {"gathered": 2.0, "xla": 1.0}, "refused": {"ours": "no"}}, {OVER_4, ALL}),
        (2, {"seconds": {}, "refused": dict.fromkeys(cases.CONTENDERS, "no")}, {OVER_2, ALL}),
        (4, {"collectives": {"xla": {}, "gathered": {}}}, {ALL}),
        (1, {"seconds": {"gathered": 2.0, "xla": 1.0}}, {ALL}),
    ],
)
def test_bars_of_a_vocabulary_notice(devices, changes, failing):
    assert _failed(vocabulary=[_vocabulary(devices, **changes)]) == failing


def test_simulated_devices_are_not_held_to_times():
    slow = _vocabulary(4, seconds={"gathered": 1.0, "xla": 1.0, "ours": 9.0})
    assert _failed([_weak(four=9.0)], [slow], "cpu") == set()
    assert _failed([_weak(four=NAN)], platform="cpu") == {ALL}
    assert _failed(vocabulary=[_vocabulary(seconds={"xla": 1.0})], platform="cpu") == {ALL}
    assert "simulated" in str(report.tables(*GOOD, "cpu"))
    assert "simulated" not in str(report.tables(*GOOD, "gpu"))
