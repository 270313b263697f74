"""The bars of matrix products notice what they should."""

import pytest
from bars import judge
from bench_cases import measured

from jaxkernels.bench.products import product
from jaxkernels.bench.sgemm_programs import LADDER

NAN = float("nan")


def _errors(relative=1e-6, of_bound=0.1):
    return {"errors": {"relF": relative, "of_bound": of_bound}}


def _measured(seconds=None, ours=None, xla=None, group="square", n=4096, refused=None, **names):
    """A product that passes every bar, or in which something does not."""
    seconds = {"xla": 1.0, "auto": 0.4} if seconds is None else seconds
    extra = {name: _errors() for name in seconds}
    extra |= {"auto": ours or _errors(), "xla": xla or _errors()}
    return measured(product(group, 1, n, n, n, **names), seconds, extra, refused)


def _ladder_of(*seconds):
    times = dict(zip(LADDER, seconds, strict=True))
    return _measured({**times, "xla": times["pipelined"]}, group="ladder")


def _failed(*cases, platform="gpu"):
    return [v.what for v in judge("sgemm", cases, platform) if not v.passed]


@pytest.mark.parametrize(
    ("what", "failing"),
    [
        ("contenders", {"seconds": {"xla": 1.0}, "refused": {"auto": "no memory"}}),
        ("least", {"seconds": {"xla": 1.0}, "refused": {"auto": "no memory"}}),
        ("contenders", {"seconds": {"auto": 1.0}, "refused": {"xla": "no memory"}}),
        ("geometric mean", {"seconds": {"xla": 1.0, "auto": 0.6}}),
        ("least", {"seconds": {"xla": 1.0, "auto": 1.01}}),
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


@pytest.mark.parametrize(("group", "name"), [("other", "listed"), ("drawn", "drawn")])
def test_products_of_two_kinds(group, name):
    """Drawn ones have bars of their own: 1.6 times cuBLAS is enough of them, and so is 0.96 of one."""
    what = f"{name} products, of cuBLAS"
    found = _failed(_measured({"xla": 1.6, "auto": 1.0}, group=group))
    assert found == ([] if name == "drawn" else [f"{what}, geometric mean"])
    fast = _measured({"xla": 9.0, "auto": 1.0}, group=group, n=512)
    found = _failed(fast, _measured({"xla": 0.96, "auto": 1.0}, group=group))
    assert found == ([] if name == "drawn" else [f"{what}, least"])
    found = _failed(fast, _measured({"xla": 0.94, "auto": 1.0}, group=group))
    assert found == [f"{what}, least"]


def test_errors_of_drawn_products_are_held_to_the_bound_alone():
    """A product of few numbers is more exact than another by luck."""
    assert _failed(_measured(ours=_errors(2e-6), group="drawn")) == []
    what = "largest error / (k eps |A| |B|)"
    assert _failed(_measured(ours=_errors(of_bound=1.1), group="drawn")) == [what]


def test_peers_may_be_refused_and_err():
    times, refused = {"xla": 1.0, "auto": 0.4, "tf32": 0.1}, {"bf16_x6": "not here"}
    case = product("peers", 1, 64, 64, 64)
    extra = {"xla": _errors(), "auto": _errors(), "tf32": _errors(3e-4, 9.0)}
    assert _failed(measured(case, times, extra, refused)) == []
    assert _failed(measured(case, times, extra, {**refused, "auto": "errors not measured"})) == [
        "contenders measured"
    ]


def test_ladder_has_to_rise():
    def failed(*seconds):
        return _failed(_ladder_of(*seconds))

    assert failed(6, 5, 4, 1.2, 1.1, 1, 0.3) == []
    assert failed(6, 5, 4, 1.2, 1.2, 1, 0.3) == ["ladder, least step"]
    assert failed(6, 5, 1.1, 1.2, 1.15, 1, 0.3) == ["ladder, least step"]
    assert failed(6, 5, 4, 1.3, 1.1, 1, 0.3) == ["warp_tile, of cuBLAS"]


def test_transposed_products_are_held_to_the_plain_one_of_their_size():
    def case(seconds, n=1024, transposes="NN"):
        times = {"xla": 3.0, "auto": seconds}
        return _measured(times, group="transposed", n=n, transposes=transposes)

    plain, slow = case(1.0), case(1.06, transposes="NT")
    assert _failed(plain, case(1.05, transposes="TN")) == []
    assert _failed(plain, slow) == ["1024^3 NT over NN"]
    assert _failed(case(1.0, 512), slow) == []  # of another size
    of_other_n = measured(
        {**plain.case, "n": 512},
        {"xla": 3.0, "auto": 1.0},
        dict.fromkeys(("xla", "auto"), _errors()),
    )
    assert _failed(of_other_n, slow) == []


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
