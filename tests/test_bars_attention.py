"""The bars of attention notice what they should, and whatever is not there."""

import dataclasses

import pytest
from bars.attention import judge

from jaxkernels.bench.attention import cases

NAN = float("nan")


def _scores(**changes):
    """A case that passes every bar, or one of whose fields does not; 4 MiB at 1 GB/s."""
    fields = {
        "dtype": "float32",
        "variant": "mask",
        "direction": "both",
        "seconds": {"copy": 8.0, "xla": 40.0, "ours": 20.0},
        "temp_bytes": {"xla": 2**30, "ours": 0},
        **changes,
    }
    return cases.Scores(batch=1, heads=16, length=256, **fields)


def _forward(**changes):
    """A forward pass that takes what its model bytes take: the copy's bytes and no mask."""
    fields = {"variant": "plain", "direction": "fwd", "temp_bytes": {}, **changes}
    return _scores(**{"seconds": {"copy": 8.0, "xla": 16.0, "ours": 8.0}, **fields})


def _layer(**changes):
    fields = {"dtype": "float32", "seconds": {"xla": 2.0, "ours": 1.0}, **changes}
    return cases.Layer(causal=False, direction="fwd", batch=1, heads=2, length=8, depth=4, **fields)


GOOD = [_scores(), _scores(variant="causal"), _scores(variant="plain"), _forward()]


def _failed(scores, layers=(), platform="gpu"):
    found = judge([*GOOD, *scores], [_layer(), *layers], platform)
    return {v.what for v in found if not v.passed}


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
def test_bars_can_be_passed(platform):
    assert _failed([], [], platform) == set()
    assert len(judge(GOOD, [_layer()], platform)) == (6 if platform == "gpu" else 4)


FORWARD = "forward, time over that of the model bytes, most"
FUSED = "forward and backward under masks, over XLA, geometric mean"
SLOWER = "forward and backward, over XLA, least"
MEMORY = "temporary bytes of forward and backward over q k, most"
LAYERS = "float32 layers, over XLA, least"
ANY = "scores, over XLA, least"
ALL = "contenders measured"


@pytest.mark.parametrize(
    ("case", "failing"),
    [
        (_forward(seconds={"copy": 8.0, "xla": 16.0, "ours": 8.7}), {FORWARD}),
        (_forward(seconds={"copy": 8.0, "xla": 16.0, "ours": 8.6}), set()),
        (_forward(seconds={"copy": 8.0, "xla": 16.0, "ours": NAN}), {FORWARD, ALL}),
        (_forward(seconds={"copy": NAN, "xla": 16.0, "ours": 8.0}), {FORWARD, ALL}),
        (_forward(seconds={"xla": 16.0, "ours": 8.0}), {FORWARD, ALL}),
        (_forward(seconds={"copy": 8.0, "xla": 16.0}), {FORWARD, ALL}),
        (_forward(seconds={"copy": 8.0, "ours": 8.0}), {ALL}),
        # 2.0, 2.0 and 1.2: a mean of 1.69.
        (_scores(seconds={"copy": 8.0, "xla": 24.0, "ours": 20.0}), {FUSED}),
        (_scores(seconds={"copy": 8.0, "xla": 25.0, "ours": 20.0}), set()),
        (_scores(variant="plain", seconds={"copy": 8.0, "xla": 20.0, "ours": 20.0}), set()),
        (_scores(variant="plain", seconds={"copy": 8.0, "xla": 19.9, "ours": 20.0}), {SLOWER}),
        (_scores(seconds={"copy": 8.0, "xla": NAN, "ours": 20.0}), {FUSED, SLOWER, ALL}),
        (_scores(seconds={"copy": 8.0, "xla": 40.0}), {FUSED, SLOWER, ALL}),
        (_scores(temp_bytes={"ours": 256 * 256 - 1}), set()),
        (_scores(temp_bytes={"ours": 256 * 256}), {MEMORY}),
        (_scores(temp_bytes={"xla": 0}), {MEMORY, ALL}),
    ],
)
def test_bars_of_scores_notice(case, failing):
    """One case that does not reach a bar, after some that do, and before one."""
    assert _failed([case, _forward()]) == failing


@pytest.mark.parametrize(
    ("seconds", "failing"),
    [
        ({"xla": 1.0, "ours": 0.99}, set()),
        ({"xla": 1.0, "ours": 1.0}, {LAYERS}),
        ({"xla": 1.0, "ours": NAN}, {LAYERS, ALL}),
        ({"xla": 1.0}, {LAYERS, ALL}),
        ({"ours": 1.0}, {LAYERS, ALL}),
    ],
)
def test_bars_of_layers_notice(seconds, failing):
    assert _failed([], [_layer(seconds=seconds), _layer()]) == failing
    # bfloat16 has no bar, but ours has to be there.
    assert _failed([], [_layer(dtype="bfloat16", seconds=seconds)]) == failing - {LAYERS}


@pytest.mark.parametrize("make", [_forward, _scores])
def test_bars_of_a_cpu_notice(make):
    slow = dataclasses.replace(make(), seconds={"copy": 1.0, "xla": 1.0, "ours": 1.01})
    assert _failed([slow], platform="cpu") == {ANY}
    missing = dataclasses.replace(make(), seconds={"copy": 1.0, "xla": 1.0})
    assert _failed([missing], platform="cpu") == {ANY, ALL}
    assert _failed([], [_layer(seconds={"xla": 1.0, "ours": 1.01})], "cpu") == {LAYERS}
    assert _failed([], [_layer(seconds={"xla": 1.0, "ours": 1.0})], "cpu") == set()
