"""The command that holds a benchmark's file against the bars, and what each bar notices."""

import itertools
import re

import pytest
from bars import __main__ as command
from bars.suites import judge, region
from bench_cases import QUICK, measured
from programs import ROOT, run_python

from jaxkernels.bench import linear_loss, rows
from jaxkernels.bench.__main__ import main as bench
from jaxkernels.bench.attention import heads_case
from jaxkernels.bench.products import product
from jaxkernels.bench.rows import row_case
from jaxkernels.bench.sgemm import LADDER

NAN = float("nan")
ALL = "contenders measured"


def failed(suite, *cases, platform="gpu"):
    return {v.what for v in judge(suite, cases, platform) if not v.passed}


def test_a_run_is_judged_from_its_file(tmp_path, capsys):
    """The benchmark itself judges nothing."""
    path = tmp_path / "b.json"
    run = ["logsumexp", "--cols", "64", "--elements", "2^10", "--dtypes", "float32"]
    assert bench([*run, *QUICK, "--json", str(path)]) == 0
    assert not re.search("bars|verdict|FAIL|pass", capsys.readouterr().out)
    code = command.main([str(path)])
    out = capsys.readouterr().out
    complete = next(line for line in out.splitlines() if ALL in line)
    assert complete.split()[-1] == "pass"
    assert code == (1 if "FAIL" in out else 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"suite": "regress", "schema": 2, "environment": {"platform": ""}, "settings": {}}',
    ],
)
def test_other_files_are_refused(text, tmp_path, capsys):
    path = tmp_path / "b.json"
    path.write_text(text)
    assert command.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert command.main([str(tmp_path / "none.json")]) == 2


def test_command_as_it_is_written():
    program = "import runpy, sys; sys.path.insert(0, {!r}); sys.argv = ['bars', '--help']; {}"
    start = "runpy.run_module('tests.bars', run_name='__main__', alter_sys=True)"
    stdout, _ = run_python("-c", program.format(str(ROOT), start))
    assert "python -m tests.bars" in stdout


@pytest.mark.parametrize(
    ("cols", "tier", "direction", "expected"),
    [
        (4096, "block", "fwd", "short"),
        (4097, "block", "fwd", "shared"),
        (50257, "cluster", "fwd", "shared"),  # as block_smem would hold it
        (65536, "cluster", "fwd", "cluster"),
        (24576, "cluster", "grad", "shared"),
        (32768, "cluster", "grad", "cluster"),
        (524288, "cluster", "fwd", "filling"),
        (262144, "cluster", "grad", "filling"),
        (1 << 20, "block_uncached", "fwd", "uncached"),
        (4096, "", "fwd", "all"),
    ],
)
def test_regions(cols, tier, direction, expected):
    """A row that one SM could hold counts as shared, whatever tier it takes."""
    case = row_case("softmax", direction, "float32", 8, cols) | {"tier": tier}
    assert region(measured(case, {})) == expected


def softmax(of_copy=1.0, dtype="float32", direction="fwd", cols=1024, tier="warp", over_xla=2.0):
    """A case whose copy takes a second."""
    ours = (1 if direction == "fwd" else 1.5) / of_copy
    seconds = {"copy": 1.0, "auto": ours, "xla": ours * over_xla}
    return measured(row_case("softmax", direction, dtype, 8, cols) | {"tier": tier}, seconds)


def row(operation, direction, of_ceiling, group="rows", **times):
    """A case whose ceiling takes a second, or two of a copy."""
    moved = rows.TRAFFIC[operation][direction]
    ceiling = {"copy": 2.0} if moved.ceiling == "copy" else {"row_max": 1.0, "sum": 2.0}
    seconds = ceiling | {"xla": 9.0, "log_softmax": 9.0}
    ours = (moved.reads + moved.writes) / of_ceiling
    case = row_case(operation, direction, "float32", 8, 2**18, group)
    return measured(case, seconds | {"auto": ours, "ours": ours} | times)


def linear(ours, case=1, memory=3_000_000_000):
    extra = {"ours": {"temp_bytes": memory}}
    return measured(linear_loss.GPU_CASES[case], {"xla": 0.05, "ours": ours}, extra)


def scores(variant="mask", direction="both", temp_bytes=0, **seconds):
    """A pass over 4 MiB that takes as long as its model bytes, or twice as fast as XLA's."""
    seconds = {"copy": 8.0, "xla": 40.0, "ours": 20.0 if direction == "both" else 8.0} | seconds
    extra = {} if temp_bytes is None else {"ours": {"temp_bytes": temp_bytes}}
    case = heads_case("scores", "float32", variant, direction, (1, 16, 256))
    return measured(case, seconds, extra)


def layer(ours, dtype="float32"):
    case = heads_case("layers", dtype, "plain", "fwd", (1, 2, 8, 4))
    return measured(case, {"xla": 1.0, "ours": ours})


KNOWN = {"collectives": {}}


def weak(group="softmax", known=("1", "2"), **seconds):
    case = {"group": group, "dtype": "bfloat16", "direction": "fwd", "shape": [4, 8]}
    return measured(case, {"1": 1.0, "2": 1.0} | seconds, dict.fromkeys(known, KNOWN))


def vocabulary(devices, gathered, ours=1.0):
    case = {"group": "vocabulary", "dtype": "bfloat16", "direction": "fwd", "shape": [8, 64]}
    times = {"gathered": gathered, "xla": 1.0, "ours": ours}
    return measured(case | {"devices": devices}, times, dict.fromkeys(times, KNOWN))


def error(relative=1e-6, of_bound=0.1):
    return {"errors": {"relF": relative, "of_bound": of_bound}}


def square(auto=0.4, ours=None, xla=None, group="square", n=4096, transposes="NN", **seconds):
    extra = {"auto": ours or error(), "xla": xla or error()}
    case = product(group, 1, n, n, n, transposes)
    return measured(
        case, {"xla": 1.0, "auto": auto} | seconds, extra | {n: error() for n in seconds}
    )


def ladder(*seconds):
    times = dict(zip(LADDER, seconds, strict=True))
    extra = {name: error() for name in times}
    case = product("ladder", 1, 64, 64, 64)
    return measured(case, times | {"xla": times["pipelined"]}, extra)


MASKS = "forward and backward under masks, over XLA, geometric mean"
SLOWER = "forward and backward, over XLA, least"
MODEL = "forward, time over that of the model bytes, most"
MEMORY = "temporary bytes of forward and backward over q k, most"
LAYERS = "float32 layers, over XLA, least"
ROWS, BATCH = "softmax of rows, efficiency, least", "attention over a batch, efficiency, least"
OVER_4 = "a vocabulary over 4 devices, over gathered and devices, least"
SHORT, MEAN = (f"float32 fwd short, of copy, {of}" for of in ("least", "geometric mean"))
LISTED, DRAWN = (f"{name} products, of cuBLAS" for name in ("listed", "drawn"))
BOUND, RELF = "largest error / (k eps |A| |B|)", "relF over cuBLAS's, most"
ODD = "float32 fwd, {} over {} columns"
FEW = "few rows, times faster than optax, least"
# By suite: cases that pass, a case that does not, and the bars that notice.
NOTICED = [
    ("softmax", [softmax(1.05, cols=512), softmax(0.94)], softmax(0.92), {SHORT}),
    ("softmax", [softmax()], softmax(0.80), {SHORT, MEAN}),
    ("softmax", [softmax(0.97)], softmax(0.94, "bfloat16"), {MEAN.replace("float32", "bfloat16")}),
    ("softmax", [softmax(cols=65536, tier="cluster")], softmax(0.8, cols=65535, tier="cluster"),
     {"float32 fwd cluster, of copy, least", ODD.format(65535, 65536)}),
    ("softmax", [softmax(1.05, cols=1000)], softmax(0.94, cols=1001), {ODD.format(1001, 1000)}),
    ("softmax", [softmax(direction="grad", cols=512)], softmax(NAN), {SHORT, MEAN, ALL}),
    ("logsumexp", [row("logsumexp", "fwd", 0.93), row("logsumexp", "grad", 0.1)],
     row("logsumexp", "fwd", 0.91), {"float32 fwd, of read, least"}),
    ("logsumexp", [], row("logsumexp", "grad", 1.0, copy=NAN), {ALL}),
    ("losses", [row("losses", "loss", 0.93)], row("losses", "loss", 0.91),
     {"float32 loss, of read, least"}),
    ("losses", [row("losses", "mean", 0.95)], row("losses", "mean", 0.93),
     {"float32 mean, of copy, least"}),
    ("losses", [row("losses", "none", 0.94)], row("losses", "none", 0.92),
     {"float32 none, of copy, least"}),
    ("losses", [row("losses", "mean", 1.0, "few_rows", ours=8.0)],
     row("losses", "mean", 1.0, "few_rows", ours=9.1), {FEW}),
    ("linear_loss", [linear(0.022, 0)], linear(0.024, 0), {"(4096, 4096, 128256) bfloat16, ms"}),
    ("linear_loss", [linear(0.049)], linear(0.051), {"times faster than optax, least"}),
    ("linear_loss", [linear(0.049)], linear(0.04, memory=3.3e9), {"temporary bytes, most"}),
    ("attention", [scores("plain", "fwd", ours=8.6)], scores("plain", "fwd", ours=8.7), {MODEL}),
    ("attention", [scores("plain", "fwd")], scores("plain", "fwd", copy=NAN), {MODEL, ALL}),
    ("attention", [scores(), scores("causal")], scores(xla=24.0), {MASKS}),
    ("attention", [scores("plain", xla=20.0)], scores("plain", xla=19.9), {SLOWER}),
    ("attention", [scores(temp_bytes=256**2 - 1)], scores(temp_bytes=256**2), {MEMORY}),
    ("attention", [scores()], scores(temp_bytes=None), {MEMORY, ALL}),
    ("attention", [layer(0.99), layer(1.5, "bfloat16")], layer(1.0), {LAYERS}),
    ("scaling", [weak(), weak("attention")], weak("attention", **{"2": 1.06}), {BATCH}),
    ("scaling", [weak()], weak(**{"1": NAN}), {ROWS, ALL}),
    ("scaling", [weak()], weak(known=("1",)), {ALL}),
    ("scaling", [vocabulary(1, 0.1), vocabulary(2, 1.0)], vocabulary(4, 1.99), {OVER_4}),
    ("sgemm", [square(n=512), square(n=2048)], square(0.6), {f"{LISTED}, geometric mean"}),
    ("sgemm", [square(0.1, n=512)], square(1.01, n=256), {f"{LISTED}, least"}),
    ("sgemm", [square(0.1, group="drawn"), square(1.04, group="drawn", n=9)],
     square(1.06, group="drawn", n=8), {f"{DRAWN}, least"}),
    ("sgemm", [square()], square(n=8, ours=error(of_bound=1.1)), {BOUND}),
    ("sgemm", [square()], square(n=8, ours=error(NAN, NAN)), {BOUND, RELF}),
    ("sgemm", [square(), square(group="drawn", ours=error(2e-6))],
     square(n=8, ours=error(2e-6)), {RELF}),
    ("sgemm", [square()], square(n=8, xla=error(0.0)), {RELF}),
    ("sgemm", [square(0.3, group="transposed"), square(0.31, group="transposed", transposes="TN")],
     square(0.32, group="transposed", transposes="NT"), {"4096^3 NT over NN"}),
    ("sgemm", [ladder(6, 5, 4, 1.2, 1.1, 1, 0.3)], ladder(6, 5, 4, 1.2, 1.2, 1, 0.3),
     {"ladder, least step"}),
    ("sgemm", [], ladder(6, 5, 4, 1.3, 1.1, 1, 0.3), {"warp_tile, of cuBLAS"}),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "good", "bad", "bars"), NOTICED)
def test_bars_notice(suite, good, bad, bars):
    """A case that does not reach a bar, before and after cases that do."""
    assert failed(suite, *good) == set()
    assert failed(suite, *good, bad) == failed(suite, bad, *good) == bars


@pytest.mark.parametrize(("suite", "bad"), [(suite, bad) for suite, _, bad, _ in NOTICED[6:15]])
def test_a_cpu_is_held_to_completeness(suite, bad):
    assert failed(suite, bad, platform="cpu") <= {ALL}


def test_bars_of_a_cpu():
    for dtype, bar in (("float32", 1.2), ("bfloat16", 2.0)):
        what = f"{dtype} fwd, over XLA, geometric mean"
        for over, fails in ((bar + 0.01, set()), (bar - 0.01, {what})):
            assert (
                failed("softmax", softmax(0.1, dtype, tier="", over_xla=over), platform="cpu")
                == fails
            )
    assert failed("attention", scores(ours=41.0), platform="cpu") == {"scores, over XLA, least"}
    assert failed("attention", layer(1.0), platform="cpu") == set()
    assert failed("scaling", weak(**{"2": 9.0}), vocabulary(4, 0.1), platform="cpu") == set()
    assert failed("sgemm", square(9.0), platform="cpu") == set()


def test_refusals():
    """A contender that a bar needs; XLA may refuse its other ways to a product."""
    case = product("peers", 1, 64, 64, 64)
    for refused, expected in (("tf32", set()), ("auto", {ALL})):
        times = {name: 1.0 for name in ("xla", "auto") if name != refused}
        extra = dict.fromkeys(times, error())
        m = measured(case, times, extra, {refused: "not here"})
        assert ALL in failed("sgemm", m) or not expected
        assert failed("sgemm", m, platform="cpu") == expected
    (found, *_) = judge("softmax", [measured(softmax().case, {"xla": 1.0})], "gpu")
    assert found.reached.startswith("without copy at rows softmax fwd float32 8 1024 warp, auto at")
    assert len({suite for suite, *_ in itertools.chain(NOTICED)}) == 7
