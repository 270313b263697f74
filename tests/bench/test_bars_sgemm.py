"""The bars of matrix products notice what they should."""

import pytest
from bars import judge
from bench_cases import measured

from jaxkernels.bench.sgemm import RUNGS, product

NAN = float("nan")


def _errors(relative=1e-6, of_bound=0.1):
    return {"errors": {"relF": relative, "of_bound": of_bound}}


def _measured(seconds=None, ours=None, xla=None, group="square", n=4096, refused=None, **names):
    """A product that passes every bar, or in which something does not."""
    seconds = {"xla": 1.0, "auto": 0.9} if seconds is None else seconds
    extra = {name: _errors() for name in seconds}
    extra |= {"auto": ours or _errors(), "xla": xla or _errors()}
    return measured(product(group, 1, n, n, n, **names), seconds, extra, refused)


def _ladder_of(*seconds):
    times = dict(zip(RUNGS, seconds, strict=True))
    return _measured({**times, "xla": times["pipelined"]}, group="ladder")


def _failed(*cases, platform="gpu"):
    return [v.what for v in judge("sgemm", cases, platform) if not v.passed]


@pytest.mark.parametrize(
    ("what", "failing"),
    [
        ("contenders", {"seconds": {"xla": 1.0}, "refused": {"auto": "no memory"}}),
        ("least", {"seconds": {"xla": 1.0}, "refused": {"auto": "no memory"}}),
        ("contenders", {"seconds": {"auto": 1.0}, "refused": {"xla": "no memory"}}),
        ("geometric mean", {"seconds": {"xla": 1.0, "auto": 1.3}}),
        ("least", {"seconds": {"xla": 1.0, "auto": 1.04}}),
        ("largest error", {"ours": _errors(of_bound=NAN)}),
        ("largest error", {"ours": _errors(of_bound=1.1)}),
        ("largest error", {"ours": {"plan": "no errors"}}),
        ("relF", {"ours": _errors(NAN)}),
        ("relF", {"ours": _errors(2e-6)}),
        ("relF", {"ours": _errors(2e-6), "xla": _errors(0.0)}),
    ],
)
def test_bars_notice(what, failing):
    """One product that does not reach a bar, beside one that does."""
    good = _measured(n=2048)
    assert _failed(good) == []
    for cases in ((good, _measured(**failing)), (_measured(**failing), good)):
        assert any(what in name for name in _failed(*cases))


@pytest.mark.parametrize(("n", "name"), [(1023, "below"), (1024, "from"), (4096, "from")])
def test_squares_are_of_two_kinds(n, name):
    """0.98 of cuBLAS: short squares have to reach it each, large ones in the mean."""
    found = _failed(_measured({"xla": 0.98, "auto": 1.0}, n=n))
    what = f"squares {name} 1024, of cuBLAS"
    least = [f"{what}, least"] if name == "below" else []
    assert found == [f"{what}, geometric mean", *least]


def test_ladder_has_to_rise():
    def failed(*seconds):
        return _failed(_ladder_of(*seconds))

    assert failed(6, 5, 4, 1.2, 1.1, 1, 0.3) == []
    assert failed(6, 5, 4, 1.2, 1.2, 1, 0.3) == ["ladder, least step"]
    assert failed(6, 5, 1.1, 1.2, 1.15, 1, 0.3) == ["ladder, least step"]
    assert failed(6, 5, 4, 1.3, 1.1, 1, 0.3) == ["warp_tile, of cuBLAS"]


def test_transposed_products_are_held_to_the_plain_one_of_their_size():
    def case(seconds, n=1024, transposes="NN"):
        times = {"xla": 2.0, "auto": seconds}
        return _measured(times, group="transposed", n=n, transposes=transposes)

    plain, slow = case(1.0), case(1.06, transposes="NT")
    assert _failed(plain, case(1.05, transposes="TN")) == []
    assert _failed(plain, slow) == ["1024^3 NT over NN"]
    assert _failed(case(1.0, 512), slow) == []  # of another size


def test_rungs_that_were_asked_for_are_not_held_to_the_fastest_ones_bars():
    rung = measured(
        product("square", 1, 64, 64, 64), {"xla": 1.0, "naive": 9.0}, {"naive": _errors()}
    )
    assert _failed(rung) == []


def test_a_cpu_is_held_to_completeness_alone():
    """Both products are XLA's there."""
    slow = _measured({"xla": 1.0, "auto": 9.0})
    assert [v.passed for v in judge("sgemm", [slow], "cpu")] == [True]
    missing = _measured({"xla": 1.0}, refused={"auto": "no memory"})
    assert _failed(slow, missing, platform="cpu") == ["contenders measured"]
