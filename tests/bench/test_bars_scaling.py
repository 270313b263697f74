"""The bars of many devices notice what they should, and whatever is not there."""

import pytest
from bars import judge
from bench_cases import measured, text_of

from jaxkernels.bench.scaling import CONTENDERS, SUITE

NAN = float("nan")
KNOWN = {"collectives": {}}


def _weak(
    group="softmax",
    two=1.0,
    four=1.0,
    seconds=None,
    known=("1", "2", "4"),
    refused=None,
    direction="fwd",
    dtype="bfloat16",
):
    """A case that passes its bar unless two or four devices take too long."""
    seconds = {"1": 1.0, "2": two, "4": four} if seconds is None else seconds
    case = {"group": group, "dtype": dtype, "direction": direction, "shape": [4, 8]}
    return measured(case, seconds, dict.fromkeys(known, KNOWN), refused)


def _vocabulary(devices=4, seconds=None, refused=None, direction="both"):
    """A case that passes its bar: three times faster on 4 devices, where 2 are asked for."""
    seconds = {"gathered": 3.0, "xla": 2.0, "ours": 1.0} if seconds is None else seconds
    case = {"group": "vocabulary", "dtype": "bfloat16", "direction": direction, "shape": [8, 64]}
    case |= {"devices": devices}
    return measured(case, seconds, {} if refused else dict.fromkeys(CONTENDERS, KNOWN), refused)


# On one device nothing is held against gathered: there is nothing to gather.
ONE = _vocabulary(1, {"gathered": 0.1, "xla": 0.1, "ours": 1.0})
GOOD = [_weak(), _weak("attention"), ONE, _vocabulary(2), _vocabulary(4)]

ROWS = "softmax of rows, efficiency, least"
BATCH = "attention over a batch, efficiency, least"
OVER_2, OVER_4 = (
    f"log_softmax of a vocabulary over {count} devices, over gathered and devices, least"
    for count in (2, 4)
)
ALL = "contenders measured"


def _failed(*cases, platform="gpu"):
    """The bars that fail with some cases between good ones."""
    return {v.what for v in judge("scaling", [*GOOD, *cases, *GOOD], platform) if not v.passed}


def test_bars_can_be_passed():
    assert _failed() == set()
    assert {v.what for v in judge("scaling", GOOD, "gpu")} == {ALL, ROWS, BATCH, OVER_2, OVER_4}
    text = text_of(SUITE, GOOD)
    assert "3.00" in text


def test_one_device_is_judged_by_completeness_alone():
    one = _weak(seconds={"1": 1.0}, known=["1"])
    assert [v.what for v in judge("scaling", [one, ONE], "gpu")] == [ALL]


def test_reasons_are_said():
    refused = _vocabulary(2, {}, dict.fromkeys(CONTENDERS, "no NCCL"))
    assert "no NCCL" in text_of(SUITE, [refused])


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
        ({"seconds": {"2": 1.0, "4": 1.0}}, {"bar", ALL}),
        ({"seconds": {"1": 1.0, "2": 1.0}, "refused": {"4": "memory"}}, {"bar", ALL}),
        ({"seconds": {}}, {"bar", ALL}),
        ({"known": ("1", "2")}, {ALL}),
    ],
)
def test_bars_of_weak_scaling_notice(group, bar, changes, failing):
    found = _failed(_weak(group, **changes))
    assert found == {bar if name == "bar" else name for name in failing}


@pytest.mark.parametrize(
    ("devices", "seconds", "failing"),
    [
        (4, {"gathered": 2.0, "xla": 1.0, "ours": 1.0}, set()),
        (4, {"gathered": 1.99, "xla": 1.0, "ours": 1.0}, {OVER_4}),
        (2, {"gathered": 1.0, "xla": 1.0, "ours": 1.0}, set()),
        (2, {"gathered": 0.99, "xla": 1.0, "ours": 1.0}, {OVER_2}),
        # XLA is shown, not a bar; but it has to be there.
        (4, {"gathered": 2.0, "xla": 0.1, "ours": 1.0}, set()),
        (4, {"gathered": 2.0, "ours": 1.0}, {ALL}),
        (4, {"gathered": 2.0, "xla": NAN, "ours": 1.0}, {ALL}),
        (4, {"gathered": 2.0, "xla": 1.0, "ours": NAN}, {OVER_4, ALL}),
        (4, {"gathered": NAN, "xla": 1.0, "ours": 1.0}, {OVER_4, ALL}),
        (4, {"gathered": float("inf"), "xla": 1.0, "ours": 1.0}, {OVER_4, ALL}),
        (4, {"xla": 1.0, "ours": 1.0}, {OVER_4, ALL}),
        (4, {"gathered": 2.0, "xla": 1.0}, {OVER_4, ALL}),
    ],
)
@pytest.mark.parametrize("direction", ["fwd", "both"])
def test_bars_of_a_vocabulary_notice(devices, seconds, failing, direction):
    assert _failed(_vocabulary(devices, seconds, direction=direction)) == failing


def test_simulated_devices_are_not_held_to_times():
    slow = _vocabulary(4, {"gathered": 1.0, "xla": 1.0, "ours": 9.0})
    assert _failed(_weak(four=9.0), slow, platform="cpu") == set()
    assert _failed(_weak(four=NAN), platform="cpu") == {ALL}
    assert _failed(_vocabulary(seconds={"xla": 1.0}), platform="cpu") == {ALL}
    assert "simulated" in text_of(SUITE, GOOD, "cpu")
    assert "simulated" not in text_of(SUITE, GOOD, "gpu")
