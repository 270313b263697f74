"""The bars of attention notice what they should, and whatever is not there."""

import pytest
from bars import judge
from bench_cases import measured

from jaxkernels.bench.attention_programs import heads_case

NAN = float("nan")


def _scores(seconds=None, temp_bytes=0, variant="mask", direction="both"):
    """A case that passes every bar, or in which something does not; 4 MiB at 1 GB/s."""
    seconds = {"copy": 8.0, "xla": 40.0, "ours": 20.0} if seconds is None else seconds
    extra = {} if temp_bytes is None else {"ours": {"temp_bytes": temp_bytes}}
    return measured(
        heads_case("scores", "float32", variant, direction, (1, 16, 256)), seconds, extra
    )


def _forward(**seconds):
    """A forward pass that takes what its model bytes take: the copy's bytes and no mask."""
    seconds = seconds or {"copy": 8.0, "xla": 16.0, "ours": 8.0}
    return _scores(seconds, None, "plain", "fwd")


def _layer(seconds=None, dtype="float32"):
    case = heads_case("layers", dtype, "plain", "fwd", (1, 2, 8, 4))
    return measured(case, seconds or {"xla": 2.0, "ours": 1.0})


GOOD = [_scores(), _scores(variant="causal"), _scores(variant="plain"), _forward()]


def _failed(scores, layers=(), platform="gpu"):
    found = judge("attention", [*GOOD, *scores, _layer(), *layers], platform)
    return {v.what for v in found if not v.passed}


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
def test_bars_can_be_passed(platform):
    assert _failed([], [], platform) == set()
    assert len(judge("attention", [*GOOD, _layer()], platform)) == (6 if platform == "gpu" else 4)


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
        (_forward(copy=8.0, xla=16.0, ours=8.7), {FORWARD}),
        (_forward(copy=8.0, xla=16.0, ours=8.6), set()),
        (_forward(copy=8.0, xla=16.0, ours=NAN), {FORWARD, ALL}),
        (_forward(copy=NAN, xla=16.0, ours=8.0), {FORWARD, ALL}),
        (_forward(xla=16.0, ours=8.0), {FORWARD, ALL}),
        (_forward(copy=8.0, xla=16.0), {FORWARD, ALL}),
        (_forward(copy=8.0, ours=8.0), {ALL}),
        # 2.0, 2.0 and 1.2: a mean of 1.69.
        (_scores({"copy": 8.0, "xla": 24.0, "ours": 20.0}), {FUSED}),
        (_scores({"copy": 8.0, "xla": 25.0, "ours": 20.0}), set()),
        (_scores({"copy": 8.0, "xla": 20.0, "ours": 20.0}, variant="plain"), set()),
        (_scores({"copy": 8.0, "xla": 19.9, "ours": 20.0}, variant="plain"), {SLOWER}),
        (_scores({"copy": 8.0, "xla": NAN, "ours": 20.0}), {FUSED, SLOWER, ALL}),
        (_scores({"copy": 8.0, "xla": 40.0}), {FUSED, SLOWER, ALL}),
        (_scores(temp_bytes=256 * 256 - 1), set()),
        (_scores(temp_bytes=256 * 256), {MEMORY}),
        (_scores(temp_bytes=None), {MEMORY, ALL}),
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
    assert _failed([], [_layer(seconds), _layer()]) == failing
    # bfloat16 has no bar, but ours has to be there.
    assert _failed([], [_layer(seconds, "bfloat16")]) == failing - {LAYERS}


@pytest.mark.parametrize("make", [lambda s: _scores(s), lambda s: _forward(**s)])
def test_bars_of_a_cpu_notice(make):
    assert _failed([make({"copy": 1.0, "xla": 1.0, "ours": 1.01})], platform="cpu") == {ANY}
    assert _failed([make({"copy": 1.0, "xla": 1.0})], platform="cpu") == {ANY, ALL}
    assert _failed([], [_layer({"xla": 1.0, "ours": 1.01})], "cpu") == {LAYERS}
    assert _failed([], [_layer({"xla": 1.0, "ours": 1.0})], "cpu") == set()
