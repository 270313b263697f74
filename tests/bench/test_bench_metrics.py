"""The values of tables, by hand: rates, fractions of ceilings, directions of ratios, summaries."""

import itertools

import pytest
from bench_cases import measured, text_of

from jaxkernels.bench import attention, maps, rows, sgemm
from jaxkernels.bench import tables as t
from jaxkernels.bench.attention import heads_case, model_bytes
from jaxkernels.bench.rows import row_case
from jaxkernels.bench.sgemm import product


def of_rows(operation, direction, cols=1024, dtype="float32", rows=1024, **seconds):
    return measured(row_case(operation, direction, dtype, rows, cols), seconds)


@pytest.mark.parametrize(
    ("operation", "direction", "copies"),
    [
        ("softmax", "fwd", 1.0),
        ("softmax", "grad", 1.5),
        ("logsumexp", "grad", 1.0),
        ("logsumexp", "both", 1.5),
        ("losses", "mean", 1.0),
        ("losses", "none", 1.5),
    ],
)
def test_time_at_the_rate_of_a_copy(operation, direction, copies):
    """Three streams of x at the rate of a copy, which has two, take 1.5 times as long."""
    m = of_rows(operation, direction, 2**20, copy=1e-3, auto=copies * 1e-3)
    assert rows.of_ceiling(m) == pytest.approx(1, rel=1e-5)
    slower = of_rows(operation, direction, 2**20, copy=1e-3, auto=2 * copies * 1e-3)
    assert rows.of_ceiling(slower) == pytest.approx(0.5, rel=1e-5)


def test_reads_by_hand():
    """4 MiB and 4 KiB in 1 microsecond are 4.198 TB/s. The sum moves the 4 MiB alone: 4.194."""
    m = of_rows("logsumexp", "fwd", row_max=2e-6, sum=1e-6, piece_max=3e-6, auto=1e-6)
    assert rows.rate(m) == 4 * (1024 * 1024 + 1024) / 1e-6
    assert rows.rate(m, "read") == 4 * 1024 * 1024 / 1e-6
    half = of_rows("logsumexp", "fwd", 8, "bfloat16", auto=10e-6)
    assert rows.rate(half) == pytest.approx(2 * 9 * 1024 / 10e-6)
    assert rows.of_ceiling(half) is None
    moved = rows.TRAFFIC["logsumexp"]
    assert moved["both"].size(m) == moved["fwd"].size(m) + moved["grad"].size(m)


@pytest.mark.parametrize("fastest", ["row_max", "sum", "piece_max"])
def test_the_fastest_read_of_a_case_counts(fastest):
    times = {"row_max": 2.0, "sum": 3.0, "piece_max": 4.0} | {fastest: 1.0}
    m = of_rows("losses", "loss", 2**20, rows=1, **times)
    assert rows.rate(m, "read") == pytest.approx(2**22, rel=1e-5)


def test_model_bytes_of_attention():
    """By hand: 2 sequences, 3 heads, 4 x 4 scores; causal attention sees 10 of 16."""
    counts = {"plain": (2 * 96, 5 * 96), "causal": (60 + 96, 3 * 60 + 2 * 96)}
    counts["mask"] = counts["plain"]
    for (dtype, size), variant, both in itertools.product(
        {"float32": 4, "bfloat16": 2}.items(), counts, (False, True)
    ):
        case = heads_case("scores", dtype, variant, "both" if both else "fwd", (2, 3, 4))
        assert model_bytes(case) == size * counts[variant][both] + 32 * (variant == "mask")
    case = heads_case("scores", "float32", "plain", "both", (2, 3, 4))
    m = measured(case, {"copy": 2.0, "ours": 10.0})
    assert attention.of_model(m) == 2.0  # five streams at the rate of two in 2 s are 5 s


def test_summaries():
    """The worst of speeds is the least, that of times the largest; a limit itself is reached."""

    def sweep(limit, **how):
        return t.Sweep("x", lambda m: m["x"], lambda m: f"case {m['x']}", limit, **how)

    gains, times = (
        [measured({"x": x}, {}) for x in each] for each in ((1, 4, None, 0.25), (1.03, 2, 1))
    )
    assert sweep(1, shown=2).summary(gains) == (
        "x of 3 cases: geometric mean 1.000, worst 0.250 (case 0.25), 1.000 (case 1), 1 below 1"
    )
    assert sweep(1.03).summary(times) == (
        "x of 3 cases: geometric mean 1.272, worst 2.000 (case 2), 1 beyond 1.03"
    )
    assert sweep(1).summary([]) == "no case was measured"
    for limit, cases, order in (
        (1, gains, ["0.25", "1", "4", "None"]),
        (1.03, times, ["2", "1.03", "1"]),
    ):
        column = t.Column("x", lambda m: str(m["x"]))
        (table,) = sweep(limit).view("T", [column]).tables(cases)
        assert [row[0] for row in table.rows] == order


LAYER = next(iter(attention.drawn_cases(1, seed=1)))


def test_the_default_over_the_best():
    cells = [
        measured({**LAYER, "batch": 1}, {"default": 2.0, "ffi": 1.0, "xla": 4.0}),
        measured({**LAYER, "batch": 2}, {"default": 1.0, "cudnn": 1.0, "ffi": 2.0}),
        measured({**LAYER, "batch": 3}, {"ffi": 2.0}),
    ]
    assert [attention.over_best(m) for m in cells] == [2.0, 1.0, None]
    said = text_of(attention.SUITE, cells)
    assert "default over the best of 2 cases: geometric mean 1.414, worst 2.000" in said
    assert "1 beyond 1.03" in said
    # The path of the default, pinned, is the same program: both times are samples of one.
    times = {"default": 3.0, "ffi": 1.0, "xla": 1.6}
    assert attention.over_best(measured(LAYER, times, {"default": {"path": "ffi"}})) == 1.25


def test_a_map():
    """The worst cell is the first, and 1.0275 times XLA's time is not slower."""

    def cell(auto, rows, cols, tier):
        case = row_case("softmax", "fwd", "float32", rows, cols, "few_rows")
        return measured({**case, "tier": tier}, {"copy": 2e-6, "xla": 4e-6, "auto": auto})

    cells = [cell(4.11e-6, 4, 50257, "block"), cell(8e-6, 1, 50257, "cluster")]
    text = text_of(maps.SUITE, cells)
    assert (
        "[['50257', '1', 'cluster', '2.0', '4.0', '8.0', '0.25', '0.50'], "
        "['50257', '4', 'block', '2.0', '4.0', '4.1', '0.49', '0.97']]"
    ) in text
    assert "worst 0.500 (1 x 50257, cluster), 0.973 (4 x 50257, block), 1 below 0.971" in text


def test_products_on_tensor_cores_are_counted():
    cases = [
        measured(product("drawn", 1, 2, 3, k), {"xla": 2.0, "auto": 1.0}, {"auto": {"rung": rung}})
        for k, rung in enumerate(("tensor", "pipelined", "tensor"), 4)
    ]
    refused = measured(product("drawn", 1, 8, 2, 3), {"xla": 1.0}, refused={"auto": "no"})
    found = text_of(sgemm.SUITE, [*cases, refused])
    assert "auto over cuBLAS of 3 cases: geometric mean 2.000" in found
    assert "0 below 1, 2 on tensor cores" in found


@pytest.mark.parametrize(("platform", "peer"), [("cpu", "XLA"), ("gpu", "cuBLAS")])
def test_xlas_product_has_the_name_of_its_platform(platform, peer):
    text = text_of(sgemm.SUITE, [measured(product("square", 1, 8, 8, 8), {"xla": 1.0})], platform)
    assert f"'of {peer}'" in text
    assert ("cuBLAS" in text) == (peer == "cuBLAS")
