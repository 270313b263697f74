"""Values of sgemm on every rung of the ladder, against float64, element by element."""

import functools
import itertools

import gemm_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import skip_or_fail

import jaxkernels as jk
from jaxkernels._core import devices, registry
from jaxkernels._sgemm import calls
from jaxkernels._sgemm.options import Options

algorithms = pytest.mark.parametrize("algorithm", cases.ALGORITHMS)
transposes = pytest.mark.parametrize(
    ("trans_a", "trans_b"), cases.TRANSPOSES, ids=("NN", "NT", "TN", "TT")
)
# Nothing, one, less than a quad, the edges of the rungs' tiles of 32 and 128 (8 and 32 along k),
# several tiles and a rest. The plan gives all of these the smallest tiles of the pipelined rung; the
# larger ones have a test of their own.
SIZES = (0, 1, 3, 31, 32, 33, 127, 128, 129, 389) if cases.ON_GPU else (0, 1, 3, 129)
DEPTHS = (0, 1, 3, 7, 8, 9, 31, 32, 33, 389) if cases.ON_GPU else (0, 1, 65)
SMALL = (0, 1, 2, 3, 4, 5, 15, 16, 17, 33) if cases.ON_GPU else (0, 1, 3, 17)
THIN = "thin" if cases.ON_GPU else None
# A product for each form and each layout of the operands, with lines that are whole packs and that are not.
FORMS = (
    (4, 260, 1028),
    (259, 3, 1027),
    (1, 1001, 4099),
    (516, 1, 200),
    (130, 132, 32),
    (67, 129, 45),
)
# (batch, m, n, k) of few k: one stage of k and several, whole tiles and not, many columns and few. Stored rows
# lie multiples of 8 bytes apart, or of 16.
SLICED = (
    *((3, 66, 62, 62), (1, 514, 142, 34), (2, 258, 30, 6), (1, 1026, 14, 98)),
    *((1, 2050, 2, 2), (9, 34, 6, 38), (1, 2, 1030, 50)),
    *((3, 68, 64, 60), (1, 516, 144, 36), (1, 2052, 4, 4), (1, 4, 1032, 52)),
)

OF_THIN = tuple((THIN, shape) for shape in FORMS)


def of_shapes(shapes, more=OF_THIN):
    """Parametrises algorithm and shape: every rung with `shapes`, and further pairs."""
    pairs = [*itertools.product(cases.ALGORITHMS, shapes), *more]
    return pytest.mark.parametrize(("algorithm", "shape"), pairs, ids=str)


@transposes
@pytest.mark.parametrize(
    ("algorithm", "sizes", "depths"),
    [*((rung, SIZES, DEPTHS) for rung in cases.ALGORITHMS), (THIN, SMALL, SMALL)],
)
def test_every_size(algorithm, sizes, depths, trans_a, trans_b):
    """Every M, N and K; those of `thin` lie around 4 and 16."""
    problems = []
    for index, (m, n, k) in enumerate(itertools.product(sizes, sizes, depths)):
        a = cases.operand("normal", (m, k), seed=index)
        b = cases.operand("normal", (k, n), seed=index + 1)
        problems.append((a, b, None, {"trans_a": trans_a, "trans_b": trans_b}))
    for first in range(0, len(problems), 216):
        cases.check_all(problems[first : first + 216], algorithm)


# A CPU's products are XLA's own, without edges of ours.
EVERY = 1 if cases.ON_GPU else 4
EDGES = {kind: (THIN, shapes[::EVERY]) for kind, shapes in cases.EDGES_OF_THIN.items()}
if cases.ON_GPU:
    EDGES["padding"] = "pipelined", cases.PADDED
    of_tiles = zip(cases.EDGE_IDS, cases.EDGES_OF_TILES.values(), strict=True)
    EDGES |= {name: ("pipelined", shapes) for name, shapes in of_tiles}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    """Results that end within the tiles of a block, a warp and a thread, in all transposes, with C and without.

    Both engines copy the operands of `pipelined`; test_sgemm_plan.py shows that operands are padded.
    """
    algorithm, shapes = EDGES[name]
    problems = cases.edge_products(shapes)
    if name == "padding":  # members that share b
        _, _, n, k = shapes[0]
        shared = cases.operand("normal", (64, 33, k)), cases.operand("normal", (1, k, n), seed=1)
        problems.append((*shared, None, {}))
    cases.check_all(problems, algorithm)


@pytest.mark.parametrize("shapes", cases.EDGES_OF_TILES.values(), ids=cases.EDGE_IDS)
@transposes
def test_nan_does_not_cross_the_edges_of_the_tiles(gpu, shapes, trans_a, trans_b):
    """A spoilt member, and in another one a spoilt last row and last column."""
    batch, m, n, k = shapes[0]
    a, b = cases.operand("normal", (batch, m, k)), cases.operand("normal", (batch, k, n))
    a[1], b[1] = np.nan, np.nan
    a[3, m - 1, k - 1], b[3, 0, n - 1] = np.nan, np.nan
    flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": "pipelined"}
    got = np.asarray(jk.sgemm(cases.stored(a, trans_a), cases.stored(b, trans_b), **flags))
    assert np.isnan(got).sum() == m * n + m + n - 1
    cases.check(got, a, b)


@algorithms
@transposes
def test_kinds_of_input(algorithm, trans_a, trans_b):
    """Large ranges and outliers."""
    shapes = ((61, 67, 300), (130, 200, 72), (4, 260, 1030), *(FORMS if algorithm == THIN else ()))
    problems = []
    for kind, (m, n, k) in itertools.product(cases.KINDS, shapes):
        a, b = cases.operand(kind, (m, k)), cases.operand(kind, (k, n), seed=1)
        problems.append((a, b, None, {"trans_a": trans_a, "trans_b": trans_b}))
    cases.check_all(problems, algorithm)


@pytest.mark.half_on_a_cpu
@of_shapes([(70, 66, 500), (64, 64, 8192), (33, 65, 5003), (40, 128, 65536)])
@transposes
def test_whole_numbers_are_exact(algorithm, shape, trans_a, trans_b):
    """The bound of a deep sum is wider than one of its terms, or C; sums of whole numbers are exact."""
    m, n, k = shape
    members = 3 if shape in FORMS else 1
    a = cases.operand("integers", (members, m, k))
    b = cases.operand("integers", (members, k, n), seed=1)
    c = cases.operand("integers", (members, m, n), seed=2)
    options = {"alpha": -0.5, "beta": 3.0}
    flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": algorithm}
    got = jk.sgemm(cases.stored(a, trans_a), cases.stored(b, trans_b), c, **options, **flags)
    assert np.array_equal(got, cases.bounded(a, b, c, **options).value)


@transposes
@pytest.mark.parametrize("algorithm", [THIN, "tensor"] if cases.ON_GPU else [None])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_slices(offset, algorithm, trans_a, trans_b):
    """Operands that XLA hands over in place, between NaN, and that begin at any offset from 16-byte alignment."""
    for batch, m, n, k in SLICED:
        a, b = cases.operand("integers", (batch, m, k)), cases.operand("integers", (batch, k, n))
        stored_a, stored_b = cases.stored(a, trans_a), cases.stored(b, trans_b)
        first_a = 4 + offset
        first_b = first_a + a.size + 4 + -a.size % 4  # as far from a multiple of 16 bytes
        flat = np.full(first_b + b.size + 4, np.nan, np.float32)
        flat[first_a:][: a.size], flat[first_b:][: b.size] = stored_a.ravel(), stored_b.ravel()

        @jax.jit
        def product(x, firsts=(first_a, first_b), shapes=(stored_a.shape, stored_b.shape)):
            operands = (
                jax.lax.dynamic_slice(x, (first,), (np.prod(shape),)).reshape(shape)
                for first, shape in zip(firsts, shapes, strict=True)
            )
            return jk.sgemm(*operands, trans_a=trans_a, trans_b=trans_b, algorithm=algorithm)

        assert np.array_equal(product(flat), cases.bounded(a, b).value), (batch, m, n, k)


@algorithms
@pytest.mark.parametrize("k", [0, 5, 300, 4096])
def test_alpha_and_beta(algorithm, k):
    """Both take each of 0, 1 and -0.5, with rows of C aligned and not; k = 0 leaves beta * C. A beta of 0 hides NaN in C."""
    problems = []
    for m, n in ((64, 64), (70, 67)):
        a, b = cases.operand("normal", (m, k)), cases.operand("normal", (k, n))
        c = cases.operand("outliers", (m, n))
        for alpha, beta in itertools.product((0.0, 1.0, -0.5), repeat=2):
            given = c if beta else np.full_like(c, np.nan)
            problems.append((a, b, given, {"alpha": alpha, "beta": beta}))
    cases.check_all(problems, algorithm)


@algorithms
@pytest.mark.parametrize("shape", [(70, 67, 33), (72, 64, 36), (64, 64, 8192), (40, 30, 0)])
def test_factors_round_alike_on_every_rung(gpu, algorithm, shape):
    """fma(alpha, sum, beta * c), bit for bit, with and without a split of k. The sums are exact."""
    m, n, k = shape
    plan = jk.plan_sgemm(m, n, k, algorithm=algorithm, device=gpu)
    assert (plan.split_k > 1) == (k == 8192 and algorithm in (None, "pipelined", "thin", "tensor"))
    a, b = cases.operand("integers", (m, k)), cases.operand("integers", (k, n), seed=1)
    c = cases.operand("integers", (m, n), seed=2)
    alpha, beta = np.float32(1 / 3), np.float32(0.7)
    got = np.asarray(jk.sgemm(a, b, c, alpha=alpha, beta=beta, algorithm=algorithm))
    # float64 holds the products by alpha and these sums exactly: multiples of 2^-25 below 2^20.
    scaled = np.float64(alpha) * cases.bounded(a, b).value
    assert np.array_equal(got, (scaled + np.float64(beta * c)).astype(np.float32))
    other = (np.float64(scaled.astype(np.float32)) + np.float64(beta) * c).astype(np.float32)
    assert k == 0 or not np.array_equal(got, other)  # alpha * sum, rounded


@pytest.mark.half_on_a_cpu
@of_shapes([(130, 131, 37), (33, 64, 260), (5, 3, 2)])
@transposes
def test_nan_and_infinity_stay_in_their_rows_and_columns(algorithm, shape, trans_a, trans_b):
    """A NaN or infinity in row i of A reaches only row i of C, and one in column j of B only column j.

    Beyond the edge of a tile lie other rows and columns of the same member, and behind these other members.
    """
    m, n, k = shape
    flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": algorithm}
    for row, column in ((0, n - 1), (m - 1, 0), (m // 2, n // 2)):
        a, b = cases.operand("normal", (3, m, k)), cases.operand("normal", (3, k, n), seed=1)
        a[0], b[0] = np.nan, np.inf
        a[2], b[2] = np.nan, np.nan
        a[1, row, k - 1], b[1, 0, column] = np.inf, np.nan
        stored = cases.stored(a, trans_a), cases.stored(b, trans_b)
        got = np.asarray(jk.sgemm(*stored, **flags))
        cases.check(got[1:2], a[1:2], b[1:2])
        assert np.isnan(got[::2]).all()
        assert np.isfinite(got[1]).sum() == (m - 1) * (n - 1)


BATCHES = (
    ((7,), (7,)),
    ((7,), (1,)),
    ((1,), (7,)),
    ((2, 3), (2, 3)),
    ((2, 1), (1, 3)),
    ((2, 1, 3), (2, 2, 1)),
    ((1, 2, 1, 3), (2, 1, 3, 1)),
    ((2, 1, 2, 1, 2), (1, 2, 1, 2, 1)),
    ((0,), (0,)),
    ((), (4,)),
)


@algorithms
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_batches_that_broadcast(algorithm, batches):
    for m, n, k, (trans_a, trans_b) in (
        (33, 70, 20, (False, False)),
        (130, 31, 65, (True, True)),
        (1, 64, 300, (False, True)),
    ):
        a = cases.operand("normal", (*batches[0], m, k))
        b = cases.operand("normal", (*batches[1], k, n), seed=3)
        flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": algorithm}
        cases.check(jk.sgemm(cases.stored(a, trans_a), cases.stored(b, trans_b), **flags), a, b)


MEMBERS = [(128, 128, 128), (64, 64, 4096), (33, 65, 1000), (200, 300, 256), (512, 512, 64)]
MORE_MEMBERS = [
    *itertools.product((None, "thin"), FORMS),
    *itertools.product((None, "pipelined"), (shape[1:] for shape in cases.PADDED)),
]


@pytest.mark.half_on_a_cpu
@of_shapes(MEMBERS, MORE_MEMBERS if cases.ON_GPU else ())
@transposes
def test_a_member_gets_the_bits_that_it_has_alone(algorithm, shape, trans_a, trans_b):
    m, n, k = shape
    members = 40 if shape in FORMS else 9
    a, b = cases.operand("normal", (members, m, k)), cases.operand("normal", (members, k, n))
    stored = cases.stored(a, trans_a), cases.stored(b, trans_b)
    product = functools.partial(jk.sgemm, trans_a=trans_a, trans_b=trans_b, algorithm=algorithm)
    together = np.asarray(product(*stored))
    for member in (0, members - 1):
        alone = np.asarray(product(*(x[member] for x in stored)))
        if cases.ON_GPU:  # XLA's own product makes no such promise
            assert alone.tobytes() == together[member].tobytes()
        cases.check(alone, a[member], b[member])


@pytest.mark.parametrize(
    "shape", [(130, 132, 32), (67, 129, 45), (513, 16, 64), (1, 300, 7), (700, 3, 50), (1, 515, 33)]
)
def test_few_k_have_the_bits_of_pipelined(gpu, shape):
    """Both sum in the order of k, one term after the other, so a batch may choose the rung."""
    m, n, k = shape
    a, b = cases.operand("normal", (m, k)), cases.operand("normal", (k, n), seed=1)
    c = cases.operand("normal", (m, n), seed=2)
    thin, pipelined = (
        np.asarray(jk.sgemm(a, b, c, alpha=0.3, beta=0.7, algorithm=rung))
        for rung in ("thin", "pipelined")
    )
    assert thin.tobytes() == pipelined.tobytes()


@pytest.mark.half_on_a_cpu
@of_shapes(
    [(257, 130, 519), (64, 64, 8192), (1000, 40, 40)],
    [("thin", shape) for shape in ((1024, 1, 65536), (16, 16, 65536), (4, 1000, 4096))]
    if cases.ON_GPU
    else (),
)
@transposes
def test_repeats_bit_for_bit(algorithm, shape, trans_a, trans_b):
    """Blocks that share k add up in one order."""
    m, n, k = shape
    a = jnp.asarray(cases.stored(cases.operand("wide", (m, k)), trans_a))
    b = jnp.asarray(cases.stored(cases.operand("wide", (k, n)), trans_b))
    flags = {"trans_a": trans_a, "trans_b": trans_b, "algorithm": algorithm}
    function = jax.jit(functools.partial(jk.sgemm, **flags))
    first = np.asarray(function(a, b)).tobytes()
    for _ in range(5):
        assert np.asarray(function(a, b)).tobytes() == first


@algorithms
@pytest.mark.parametrize("k", [40, 4096])
def test_c_is_overwritten_in_place_when_donated(algorithm, k):
    """The result takes the buffer of c, with and without a split of k; the values are right."""
    a, b = cases.operand("normal", (96, k)), cases.operand("normal", (k, 64))
    c = cases.operand("normal", (96, 64))
    function = functools.partial(jk.sgemm, alpha=-0.5, beta=2.0, algorithm=algorithm)
    donating = jax.jit(function, donate_argnums=2)
    given = jnp.array(c)
    address = given.unsafe_buffer_pointer()
    result = donating(a, b, given)
    cases.check(result, a, b, c, alpha=-0.5, beta=2.0)
    assert given.is_deleted()
    if cases.ON_GPU:
        assert result.unsafe_buffer_pointer() == address
    kept = jnp.array(c)
    cases.check(jax.jit(function)(a, b, kept), a, b, c, alpha=-0.5, beta=2.0)
    assert np.array_equal(kept, c)


@pytest.mark.parametrize("k", [8000, 5003])
def test_deep_products_are_summed_in_parts(gpu, k):
    """Several launches, aligned and not, add to C in turn: alpha, beta and C count once."""
    n = 2048
    plan = jk.plan_sgemm(n, n, k, algorithm="pipelined", device=gpu)
    assert plan.launches > 1
    a, b = cases.operand("normal", (n, k)), cases.operand("normal", (k, n), seed=1)
    c = cases.operand("outliers", (n, n))
    options = {"alpha": -0.5, "beta": 3.0}
    got = np.asarray(jk.sgemm(a, b, c, algorithm="pipelined", **options))
    some = np.r_[0:3, 126:130, n - 3 : n]
    cases.check(got[some], a[some], b, c[some], **options)
    spoilt = np.full_like(c, np.nan)
    got = np.asarray(jk.sgemm(a, b, spoilt, alpha=2.0, algorithm="pipelined"))
    cases.check(got[some], a[some], b, alpha=2.0)


@pytest.mark.parametrize("algorithm", ["pipelined", "tensor"] if cases.ON_GPU else [None])
@pytest.mark.parametrize("n", [256, 1000, 2048])
def test_error_is_no_worse_than_xlas(n, algorithm):
    """relF against float64, ours and XLA's at the highest precision, on the same data."""
    a, b = cases.operand("normal", (n, n)), cases.operand("normal", (n, n), seed=1)
    want = cases.bounded(a, b).value

    def error(got):
        return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)

    ours = error(jk.matmul(a, b, algorithm=algorithm))
    # Two orders of summation differ by luck.
    assert ours <= 1.1 * error(jnp.matmul(a, b, precision="highest"))
    assert ours < 2e-6  # where TF32 has 3e-4


def call_with_padding(a, b, pads, **changes):
    """The kernels' target itself, which may have been lowered for another GPU; `changes` of its attributes."""
    attributes = {
        **{"trans_a": False, "trans_b": False, "alpha": np.float32(1), "beta": np.float32(0)},
        **{"algorithm": "pipelined", "for_batch": False, "split_k": 1},
        **{"pad_a": pads[0], "pad_b": pads[1], **changes},
    }
    flags = attributes["trans_a"], attributes["trans_b"]
    stored = [
        np.pad(cases.stored(x, trans), [(0, 0), (0, pad)], constant_values=np.nan)
        for x, trans, pad in zip((a, b), flags, pads, strict=True)
    ]
    results = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((a.shape[0], b.shape[1]), (0,))]
    call = jax.ffi.ffi_call(registry.SGEMM_TARGET, results)
    return np.asarray(jax.jit(lambda *x: call(*x, **attributes))(*stored)[0])


@transposes
@pytest.mark.parametrize("shape", [(130, 70, 333), (1000, 1100, 90)])
@pytest.mark.parametrize("aligned", [True, False])
def test_padding_is_never_read(gpu, shape, aligned, trans_a, trans_b):
    """Neither engine reads it: lines begin at multiples of 16 bytes, or do not."""
    m, n, k = shape
    a, b = cases.operand("normal", (m, k)), cases.operand("normal", (k, n), seed=1)
    rows = (m if trans_a else k), (k if trans_b else n)
    pads = [4 + -row % 4 + (0 if aligned else 1) for row in rows]
    cases.check(call_with_padding(a, b, pads, trans_a=trans_a, trans_b=trans_b), a, b)


@pytest.mark.parametrize(
    ("pads", "changes", "text"),
    [
        ((0, 0), {"pad_a": -1}, "padding of -1 and 0 elements"),
        ((0, 3), {"pad_b": 24}, "padding of 0 and 24 elements"),
        ((3, 0), {"algorithm": "warp_tile"}, "warp_tile reads rows without padding only"),
    ],
)
def test_padding_that_cannot_be_is_refused(gpu, pads, changes, text):
    a, b = cases.operand("normal", (40, 33)), cases.operand("normal", (33, 20))
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        call_with_padding(a, b, pads, **changes)


def test_a_program_that_names_no_rung_stays_on_ffma(gpu):
    """Programs of earlier versions pass no scratch memory, at any size."""
    a, b = cases.operand("normal", (1500, 1500)), cases.operand("normal", (1500, 1504), seed=1)
    got = call_with_padding(a, b, (0, 0), algorithm="auto")
    assert np.array_equal(got, jk.sgemm(a, b, algorithm="pipelined"))


def test_padding_is_part_of_the_program(monkeypatch):
    """Operands of the call are padded, the result is not."""
    monkeypatch.setattr(devices, "default_device", lambda: "h200")
    _, m, n, k = cases.PADDED[0]
    a, b = jax.ShapeDtypeStruct((m, k), jnp.float32), jax.ShapeDtypeStruct((k, n), jnp.float32)
    multiply = functools.partial(calls.ffi_multiply, options=Options(algorithm="pipelined"))
    call = next(e for e in jax.make_jaxpr(multiply)(a, b).eqns if e.primitive.name == "ffi_call")
    assert [x.aval.shape for x in call.invars] == [(m, k + 1), (k, n + 2)]
    assert call.outvars[0].aval.shape == (m, n)
    assert {"pad_a": 1, "pad_b": 2}.items() <= dict(call.params["attributes"]).items()


@pytest.mark.xdist_group("large arrays")
@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [
        ((2**16 + 1, 2**15 + 40, 3), None),
        ((3, 2**16, 2**15 + 8), None),
        ((2**16 + 1, 2**15 + 40, 32), "tensor"),
    ],
)
@transposes
def test_more_than_two_to_the_31_elements(gpu, shape, algorithm, trans_a, trans_b):
    """Offsets are 64-bit, in C and in the operands."""
    if (gpu.memory_stats() or {}).get("bytes_limit", 2**34) < 60e9:
        skip_or_fail("this GPU has less than 60 GB")
    m, n, k = shape
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (k, m) if trans_a else (m, k))
    b = jax.random.normal(keys[1], (n, k) if trans_b else (k, n))
    c = jk.sgemm(a, b, trans_a=trans_a, trans_b=trans_b, algorithm=algorithm)
    rows = np.unique(np.r_[0, m // 2, m - 2 : m])
    columns = np.unique(np.r_[0:3, n // 2, n - 3 : n])
    some_a = np.asarray(a.T[rows] if trans_a else a[rows])
    some_b = np.asarray(b[columns].T if trans_b else b[:, columns])
    cases.check(np.asarray(c[np.ix_(rows, columns)]), some_a, some_b)
