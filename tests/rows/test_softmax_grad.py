"""Values of the derivatives against the truth, and all operations over every row length that matters."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxkernels as jk
from jaxkernels._rows import softmax


def pairs_of(shapes, dtype, kind="normal"):
    return [
        (cases.logits(kind, rows, cols, dtype), cases.cotangents(rows, cols, dtype))
        for rows, cols in shapes
    ]


@cases.tiers
@cases.dtypes
def test_every_short_row_length(dtype, tier):
    """All kernels; nine rows, so that a misaligned row begins at every offset within a pack of four or more.

    A CPU's kernels know every length by 150: the last that has a row in a lane, and each rest of a vector beyond.
    """
    shapes = [(9, cols) for cols in range(1, 301 if cases.ON_GPU else 151)]
    assert all(cases.serves(tier, s, dtype) for s in shapes)
    cases.check_all(pairs_of(shapes, dtype), dtype, tier, oracle.OPERATIONS)


# A program of all lengths takes a GPU's compiler minutes. Parts compile in parallel.
PARTS = 4 if cases.ON_GPU else 1


@cases.dtypes
@pytest.mark.parametrize("part", range(PARTS))
def test_every_boundary_of_every_plan(dtype, part):
    """Row lengths at which any operation's plan changes, one less and one more; the plans tell them.

    The plans are those of a GPU. A CPU's kernels do not know them; what they do changes at tiles and kept terms
    (rows/cpu/row_drivers.h), so there the neighbours of these are tried, and in float32 the others as well.
    """
    boundaries = cases.plan_boundaries(dtype)
    assert len(boundaries) >= 10, boundaries
    own = boundaries if cases.ON_GPU else (128, 256, 512, 1024, 1536, 4096, 8192)
    if not cases.ON_GPU:
        boundaries = [c for c in boundaries if dtype == "float32" and c < 1 << 17]
    cols = sorted({*boundaries, *(c + step for c in own for step in (-1, 0, 1))})
    shapes = [(2, c) for c in cols[part::PARTS]]
    cases.check_all(pairs_of(shapes, dtype), dtype, operations=oracle.OPERATIONS)


@pytest.mark.smoke
@cases.tiers
@cases.dtypes
def test_kinds_of_input(dtype, tier):
    """All kinds run one program."""
    shapes = [(33, 5), (12, 6), (17, 128), (7, 129), (9, 1001), (3, 4099), (2, 20011)]
    longest = [(2, 50257)]
    for kind in cases.KINDS:
        for some in (shapes, longest if cases.ON_GPU or kind == "normal" else []):
            served = [s for s in some if cases.serves(tier, s, dtype)]
            cases.check_all(pairs_of(served, dtype, kind), dtype, tier)


@cases.dtypes
def test_rows_that_clusters_take_by_turns(gpu, dtype):
    """Six rows a cluster, or seven: the places where its blocks meet, and the signs of arrival, are used again."""
    if not cases.serves("cluster", (1, 37), dtype):
        pytest.skip("this GPU has no clusters")
    workers = [
        jk.plan_softmax((1 << 20, 37), dtype, operation=o, device=gpu, tier="cluster").workers
        for o in oracle.OPERATIONS
    ]
    cases.check_all(pairs_of([(6 * max(workers) + 1, 37)], dtype), dtype, "cluster")


@cases.dtypes
def test_rows_by_turns_are_the_same_bits_as_in_batches(gpu, dtype):
    """Many rounds of rows go by turns, fewer in batches, and a few have a layout of their own."""
    if not cases.serves("cluster", (1, 37), dtype):
        pytest.skip("this GPU has no clusters")
    plans = [
        jk.plan_softmax((rows, 37), dtype, device=gpu, tier="cluster")
        for rows in (6, 2000, 1 << 17)
    ]
    if dtype != "float64":
        assert [plan.few_rows for plan in plans] == [True, False, False]
        assert [plan.halves for plan in plans[1:]] == [True, False]
    with cases.x64(dtype):
        x = jnp.asarray(cases.logits("normal", 1 << 17, 37, dtype))
        softmax = jax.jit(functools.partial(jk.softmax, tier="cluster"))
        for rows in (2000, 6):
            assert jnp.array_equal(softmax(x)[:rows], softmax(x[:rows]))


@pytest.mark.xdist_group("large arrays")
@pytest.mark.parametrize(
    ("kind", "dtype", "cols", "tier"),
    [
        # In batches. Rows are whole cache lines: one that began elsewhere in its line would be summed otherwise.
        ("batches", "float32", 262_144, None),  # gradient: one row fills a cluster
        ("batches", "float32", 400_000, None),  # the same; forward, an SM holds two shares
        ("batches", "bfloat16", 131_136, None),
        ("batches", "bfloat16", 393_280, None),
        ("batches", "float32", 28_864, "block_smem"),  # as GPUs without clusters do
        # Few rows have a kernel of their own, with twice the threads per block.
        ("few", "float32", 17_001, None),
        ("few", "float32", 36_921, None),
        ("few", "float32", 65_536, None),
        ("few", "bfloat16", 26_003, None),
        ("few", "bfloat16", 50_257, None),
        ("few", "float16", 128_256, None),
    ],
)
def test_few_rows_are_the_same_bits_as_those_of_many(gpu, kind, dtype, cols, tier):
    """The parts of some rows have maxima far apart, or are -inf, infinite or NaN."""
    rows, few = {"batches": 300, "few": 700}[kind], 6
    if kind == "batches":
        plan = jk.plan_softmax((rows, cols), dtype, device=gpu, tier=tier)
        if not plan.halves:
            pytest.skip("this GPU takes these rows otherwise")
        assert cols * jnp.dtype(dtype).itemsize % 128 == 0
        assert few < plan.workers < rows / 2
    else:
        if not cases.serves("cluster", (few, cols), dtype):
            pytest.skip("this GPU has no clusters")
        for operation in ("softmax_fwd", "log_softmax_fwd", "softmax_grad", "log_softmax_grad"):
            plans = [
                jk.plan_softmax((n, cols), dtype, operation=operation, device=gpu)
                for n in (few, rows)
            ]
            assert [plan.few_rows for plan in plans] == [True, False], operation
    x = np.array(3 * jax.random.normal(jax.random.key(0), (rows, cols), dtype))
    x[1, : cols // 2] += 1000
    x[2, : cols // 2], x[3, cols // 3 :] = -30000, -np.inf
    x[4, cols // 2], x[5, cols - 7] = np.inf, np.nan
    t = jax.random.normal(jax.random.key(1), x.shape, dtype)
    x, t = (jax.device_put(a, gpu) for a in (x, t))

    @jax.jit
    def all_of(x, t):
        y, vjp = jax.vjp(functools.partial(jk.softmax, tier=tier), x)
        log_y, log_vjp = jax.vjp(functools.partial(jk.log_softmax, tier=tier), x)
        lse, lse_vjp = jax.vjp(functools.partial(jk.logsumexp, axis=-1, tier=tier), x)
        masked = jk.scaled_masked_softmax(x, t > 0, tier=tier)
        return y, *vjp(t), log_y, *log_vjp(t), *lse_vjp(jnp.ones_like(lse)), masked

    whole = all_of(x, t)
    # Those that begin a line: others lie elsewhere in it than in an array of their own.
    starts = range(0, rows - few, few) if kind == "batches" else [0]
    for i in starts:
        for many, alone in zip(whole, all_of(x[i : i + few], t[i : i + few]), strict=True):
            assert jnp.array_equal(many[i : i + few], alone, equal_nan=True)


@pytest.mark.smoke
@cases.tiers
def test_numbers_of_rows(tier):
    """None, fewer than one warp's, an odd number, and one more than a 16-bit grid dimension holds."""
    for dtype in ("float32", "bfloat16"):
        many = 65537 if cases.ON_GPU else 4099
        shapes = [(rows, cols) for rows in (0, 1, 2, 3, many) for cols in (1, 3, 32, 36, 37)]
        cases.check_all(pairs_of(shapes, dtype), dtype, tier, oracle.OPERATIONS)
        if tier is None:  # the tangents too
            cases.check_all(pairs_of([(0, 3), (1, 37)], dtype), dtype)


def test_large_cotangents_of_half_types_do_not_overflow():
    """sum(dy) in float32: jax.nn's log_softmax gives inf here for float16."""
    t = np.full((1, 64), 6e4, np.float16)
    t[0, ::2] = -6e4
    t[0, 0] = 6e4
    x = cases.logits("normal", 1, 64, "float16")
    cases.check_all([(x, t)], "float16")


@cases.tiers
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_log_softmax_is_rounded_once(dtype, tier):
    """From x to dx, of a vocabulary: exp(y) of a rounded y would err by |y| eps, 3.5 % in an element here."""
    rows, cols = 3, 50257
    if not cases.serves(tier, (rows, cols), dtype):
        return
    t = cases.cotangents(rows, cols, dtype)
    label = np.zeros_like(t)
    label[:, 7] = 1  # all other elements of dx are products
    xs = [np.zeros_like(t), cases.logits("normal", rows, cols, dtype)]
    pairs = [(x, of) for x in xs for of in (t, label)]
    cases.check_all(pairs, dtype, tier, ("log_softmax_grad", "log_softmax_jvp"))


@pytest.mark.parametrize("function", [softmax.log_softmax_grad, softmax.log_softmax_jvp])
def test_16_bit_log_softmax_takes_y_too(function):
    """Programs exported by an earlier version pass y: softmax(y) equals softmax(x) up to the rounding of y."""
    x, t = cases.logits("normal", 4, 300, "bfloat16"), cases.cotangents(4, 300, "bfloat16")
    options = {"tier": "auto", "require_kernel": False}
    of_x, of_y = (
        oracle.widen(np.asarray(function(k, t, **options))) for k in (x, jk.log_softmax(x))
    )
    np.testing.assert_allclose(of_y, of_x, rtol=0, atol=0.05 * np.abs(of_x).max())


@pytest.mark.parametrize("function", [jk.log_softmax, jk.logsumexp, jk.rms_norm])
def test_tangents_of_float64_are_lowered_without_x64(function):
    """As kernels are; plain JAX must not become float32 there."""
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((4, 50), "float64")
        traced = jax.jit(lambda x, dx: jax.jvp(function, (x,), (dx,))[1]).trace(x, x)
    assert "f64" in traced.lower().as_text()


@cases.tiers
@cases.dtypes
def test_repeats_bit_for_bit(dtype, tier):
    shapes = ((4099, 33), (64, 1025), (5, 40003))
    pairs = pairs_of([s for s in shapes if cases.serves(tier, s, dtype)], dtype, "wide")
    with cases.x64(dtype):
        xs, ts = zip(*pairs, strict=True)
        operands = xs, ts, tuple(map(oracle.row_scalars, ts))
        first, *more = (
            jax.device_get(cases.all_operations(*operands, tier=tier, tangents=False))
            for _ in range(4)
        )
    for again in more:
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.smoke
@cases.tiers
@cases.dtypes
def test_special_values(dtype, tier):
    """All -inf, +inf or NaN anywhere spoil their row and leave its neighbours alone; -inf alone is a zero."""
    lengths = (1, 2, 7, 48, 64, 257, 1030, 9001, cases.LONG)
    lengths = [n for n in lengths if cases.serves(tier, (10, n), dtype)]
    pairs = pairs_of([(10, cols) for cols in lengths], dtype)
    for x, t in pairs:
        x[1] = -np.inf
        x[3, 0] = x[4, -1] = np.inf
        x[5, x.shape[-1] // 2] = np.nan
        x[6, 0] = x[7, -1] = -np.inf
        t[9, -1] = np.nan
    cases.check_all(pairs, dtype, tier)
    with cases.x64(dtype):
        x = pairs[3][0]
        y = np.asarray(jk.softmax(x, tier=tier), np.float64)
        ours = functools.partial(jk.logsumexp, axis=-1, tier=tier)
        lse, pull = jax.vjp(ours, x)
        dy = jax.jvp(ours, (x,), (np.ones_like(x),))[1]
        lse, (dx,), dy = jax.device_get((lse, pull(jnp.ones_like(lse)), dy))
    assert np.isnan(y).all(axis=-1).tolist() == np.isnan(y).any(axis=-1).tolist()
    assert np.flatnonzero(np.isnan(y[:, 0])).tolist() == [1, 3, 4, 5]
    assert np.flatnonzero(np.isneginf(lse)).tolist() == [1]
    assert np.flatnonzero(np.isposinf(lse)).tolist() == [3, 4]
    assert np.flatnonzero(np.isnan(lse)).tolist() == [5]
    assert not dx[[1, 3, 4]][x[[1, 3, 4]] < np.inf].any()
    assert dy[1] == 0


# Numbers added to the first and to the second half of a row; an infinity replaces the first half.
ENDS = [(-np.inf, -300), (-np.inf, 300), (0, -300), (300, 0), (-300, -302), (-np.inf, np.inf)]


@cases.tiers
@cases.dtypes
def test_parts_of_a_row_that_are_far_apart(dtype, tier):
    """Threads reduce parts of a row independently. Here a part is -inf while the exponentials of another, relative to
    0, would vanish or overflow; or a part vanishes relative to another; or one has a NaN or +inf."""
    pairs = []
    for cols in (37, 1001, cases.LONG):
        if not cases.serves(tier, (4 * len(ENDS), cols), dtype):
            continue
        x, middle = cases.logits("normal", 4 * len(ENDS), cols, "float64"), cols // 2
        for row, (first, second) in enumerate(ENDS):
            x[row, :middle], x[row, middle:] = first, x[row, middle:] + second
        once, reverse, nan, infinite = np.split(x, 4)
        reverse[:] = once[:, ::-1]
        nan[:], infinite[:] = once, once
        nan[:, -1], infinite[:, 0] = np.nan, np.inf
        t = cases.cotangents(*x.shape, dtype)
        pairs.append((x.astype(oracle.storage(dtype)), t))
    cases.check_all(pairs, dtype, tier)
