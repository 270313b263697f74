"""Rows that are too long for shared memory: kernels over all SMs, and the scratch between them."""

import bisect
import concurrent.futures
import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxkernels as jk
from jaxkernels._core import registry
from jaxkernels._rows import plan as row_plans

each_dtype = pytest.mark.parametrize("dtype", oracle.DTYPES)
# Leaves that end within a pack, a lane, a warp and a block; several blocks.
COLS = (1, 7, 129, 1001, 4096, 32768, 100001, 1000003)


# What a custom call of rows is told besides its operation and tier, of rows that are no scores.
ATTRIBUTES = {
    **dict.fromkeys(("from_end", "has_mask", "all_sums"), False),
    **{"scale": np.float64(1), "left": np.int64(-(2**30)), "right": np.int64(2**30)},
}


def bits(x):
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def raw_call(operation, x, scratch_bytes, aliases):
    """The custom call itself, whose result takes the place of an operand where `aliases` says so."""
    results = [
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct((scratch_bytes,), "uint8"),
    ]
    call = jax.ffi.ffi_call("jaxkernels_rows", results, input_output_aliases=aliases)
    run = functools.partial(call, operation=operation, tier="spread", **ATTRIBUTES)
    return jax.jit(lambda *operands: run(*operands)[0], donate_argnums=tuple(aliases))


def operations(tier):
    """From x and a cotangent to the results of all public operations and their gradients."""

    def run(x, t):
        results = []
        for function in (jk.softmax, jk.log_softmax):
            y, pull = jax.vjp(functools.partial(function, tier=tier), x)
            results += [y, pull(t)[0]]
        y, pull = jax.vjp(lambda x: jk.logsumexp(x, axis=-1, tier=tier), x)
        masked = jk.scaled_masked_softmax(x, t > 0, scale=0.5, tier=tier)
        return [*results, y[:, None], pull(t[:, 0])[0], masked]

    return jax.jit(run)


@each_dtype
@pytest.mark.parametrize("cols", COLS)
def test_a_row_has_the_same_bits_wherever_it_lies(gpu, dtype, cols):
    """Alone, among others, at every place of a pack (odd lengths) and in a slice."""
    with cases.x64(dtype):
        x = jnp.tile(jnp.asarray(cases.logits("wide", 1, cols, dtype)), (9, 1))
        t = jnp.tile(jnp.asarray(cases.cotangents(1, cols, dtype)), (9, 1))
        run = operations("spread")
        sliced = jax.jit(lambda x, t: run(x[3:6], t[3:6]))(x, t)
        for among, alone, part in zip(run(x, t), run(x[:1], t[:1]), sliced, strict=True):
            want = bits(among)[:1]
            assert (bits(among) == want).all()
            assert (bits(alone) == want).all()
            assert (bits(part) == want).all()


def fewest_of_one_launch(cols, dtype, operation):
    """The fewest rows that take one launch. Each block then has the fewest branches."""

    def have_one(rows):
        shape = (rows, cols)
        return jk.plan_softmax(shape, dtype, operation=operation, tier="spread").one_launch

    rows = bisect.bisect_left(range(1 << 20), True, key=have_one)
    assert have_one(rows)
    assert not have_one(rows - 1)
    return rows


# Less than a branch, whole ones, and rows that reach over the end of their last, because they begin within a line or a pack. The
# fewest rows of one launch of that operation, or ten times as many.
@each_dtype
@pytest.mark.parametrize(
    ("branches", "less", "operation", "times"),
    [
        *((0.1, 0, "softmax_fwd", 1), (1, 0, "softmax_grad", 1), (1, 1, "softmax_fwd", 10)),
        *((2.3, 1, "softmax_grad", 1), (2.3, 1, "softmax_fwd", 10), (3, 24, "softmax_fwd", 10)),
        *((13, 4, "softmax_fwd", 10), (13, 0, "softmax_fwd", 1), (13, 0, "softmax_grad", 1)),
    ],
)
def test_many_rows_in_one_launch_have_the_bits_of_few(gpu, dtype, branches, less, operation, times):
    """Alone, among others of which some have no number, and in a slice that begins with the second row."""
    with cases.x64(dtype):
        branch = 2048 * 16 // jnp.dtype(dtype).itemsize
        cols = int(branches * branch) - less
        rows = times * fewest_of_one_launch(cols, dtype, operation) + 1  # the slice has one less
        x = jnp.asarray(cases.logits("wide", 1, cols, dtype))
        t = jnp.asarray(cases.cotangents(1, cols, dtype))
        run = operations("spread")
        alone = [bits(y) for y in run(x, t)]
        xs, ts = jnp.tile(x, (rows, 1)), jnp.tile(t, (rows, 1))
        broken = np.arange(3, rows - 1, 101)
        xs = xs.at[broken].set(jnp.nan).at[broken + 1, cols // 2].set(jnp.inf)
        whole = np.setdiff1d(np.arange(rows), [*broken, *(broken + 1)])
        for among, want in zip(run(xs, ts), alone, strict=True):
            assert (bits(among)[whole] == want).all()
        part = jax.jit(lambda x, t: run(x[1:], t[1:]))(xs, ts)
        for among, want in zip(part, alone, strict=True):
            assert (bits(among)[whole[whole > 0] - 1] == want).all()


@pytest.mark.parametrize("cols", [8191, 16384, 100_001])
def test_many_spread_rows_in_place(gpu, cols):
    """The result is the first operand's own memory, of which other blocks have stored parts."""
    x = jax.random.normal(jax.random.key(0), (9 * 132 * 3 * 8192 // cols + 1, cols))
    dy = jax.random.normal(jax.random.key(1), x.shape)
    y = jk.softmax(x, tier="spread")
    for operation, operands in (("softmax_fwd", (x,)), ("softmax_grad", (y, dy))):
        plan = jk.plan_softmax(x.shape, x.dtype, operation=operation, tier="spread")
        assert plan.one_launch
        apart, in_place = (
            raw_call(operation, x, plan.scratch_bytes, aliases) for aliases in ({}, {0: 0})
        )
        want = bits(apart(*operands))
        assert (bits(in_place(*(each + 0 for each in operands))) == want).all()


def test_many_spread_rows_from_many_threads(gpu):
    """All calls end, and have the bits of calls one by one."""
    xs = [jax.random.normal(jax.random.key(i), (48, 700_001)) for i in range(8)]
    run = jax.jit(functools.partial(jk.softmax, tier="spread"))
    assert jk.plan_softmax(xs[0].shape, "float32", tier="spread").one_launch
    want = [bits(run(x)) for x in xs]
    with concurrent.futures.ThreadPoolExecutor(len(xs)) as pool:
        last = pool.map(lambda x: [run(x) for _ in range(10)][-1], xs)
        for y, each in zip(last, want, strict=True):
            assert (bits(y) == each).all()


@pytest.mark.parametrize("cols", [5, 70_001, 700_001])
def test_calls_one_after_another(gpu, cols):
    """The second kernel of a call reads what its first one has found, in memory that other calls have used."""
    noise = jax.random.normal(jax.random.key(0), (12, 2, cols))

    def run(operation, noise):
        results = [operation(noise[0])]
        for x in noise[1:]:
            results.append(operation(x + results[-1][:, ::-1]))
        return jnp.stack(results)

    one = functools.partial(jk.softmax, tier="spread")
    plan = jk.plan_softmax((2, cols), "float32", tier="spread")
    assert (plan.tier, plan.one_launch) == ("spread", False)
    want = bits(run(lambda x: one(x).block_until_ready(), noise))
    program = jax.jit(functools.partial(run, one))
    for _ in range(5):
        assert (bits(program(noise)) == want).all()


@pytest.mark.parametrize(("dtype", "cols"), [("float32", 1_000_003), ("bfloat16", 2_000_005)])
def test_long_rows_are_spread(gpu, dtype, cols):
    """Without being asked; NaN, infinities and rows that see nothing are as in jax.nn."""
    assert jk.plan_softmax((5, cols), dtype).tier == "spread"
    x = jnp.asarray(cases.logits("normal", 5, cols, dtype))
    x = x.at[1, 7].set(jnp.nan).at[2, cols // 2].set(jnp.inf).at[3].set(-jnp.inf)
    x = x.at[4, : cols // 2].set(-jnp.inf)
    for ours, peer in ((jk.softmax, jax.nn.softmax), (jk.log_softmax, jax.nn.log_softmax)):
        want = jax.jit(peer)(x.astype(jnp.float32))  # in bfloat16 jax.nn rounds what it sums
        y, want = (np.asarray(each, np.float64) for each in (jax.jit(ours)(x), want))
        tolerance = 1e-5 if dtype == "float32" else 2.0**-8
        np.testing.assert_allclose(y, want, rtol=tolerance, atol=1e-30)
    y = jax.jit(functools.partial(jk.logsumexp, axis=-1))(x)
    np.testing.assert_allclose(
        np.asarray(y, np.float64),
        np.asarray(jax.nn.logsumexp(x.astype(jnp.float32), axis=-1)),
        rtol=1e-6 if dtype == "float32" else 2.0**-8,
    )


def test_a_call_without_scratch_takes_another_tier(gpu):
    """As a program that was lowered for a GPU on which such rows need none."""
    x = jnp.asarray(cases.logits("normal", 2, 1_000_003, "float32"))
    call = jax.ffi.ffi_call("jaxkernels_rows", jax.ShapeDtypeStruct(x.shape, x.dtype))
    for tier in ("auto", "spread"):
        run = functools.partial(call, operation="softmax_fwd", tier=tier, **ATTRIBUTES)
        np.testing.assert_allclose(jax.jit(run)(x), jk.softmax(x), rtol=1e-5)


def test_scratch():
    """A program gets it for rows that the plan spreads; not where jax.export leaves a dimension open."""
    long = jax.ShapeDtypeStruct((3, 1 << 21), jnp.float32)
    scratch = row_plans.scratch_of_rows("softmax_fwd", long, "auto")
    planned = jk.plan_softmax(long.shape, long.dtype)
    of_branch = 16  # bytes: a maximum, a sum and what it lost to rounding, in words of eight
    assert scratch.shape == (planned.scratch_bytes,) == (3 * planned.branches * of_branch,)
    assert row_plans.scratch_of_rows("softmax_fwd", long, "block_uncached") is None
    assert (
        row_plans.scratch_of_rows("softmax_fwd", jax.ShapeDtypeStruct((3, 64), "float32"), "auto")
        is None
    )
    (rows,) = jax.export.symbolic_shape("rows")
    open_rows = jax.ShapeDtypeStruct((rows, 1 << 21), jnp.float32)
    assert row_plans.scratch_of_rows("softmax_fwd", open_rows, "auto") is None


@pytest.mark.skipif(not registry.has_cuda_module(), reason="lowers for CUDA")
def test_scratch_is_a_second_result():
    def text(cols):
        program = jax.jit(jk.softmax).trace(jnp.zeros((2, cols)))
        return program.lower(lowering_platforms=("cuda",)).as_text()

    assert "ui8>" in text(1 << 21)
    assert "ui8>" not in text(64)
    # Whoever calls an exported program may split its rows.
    checks = [jax.export.DisabledSafetyCheck.custom_call("jaxkernels_rows")]
    export = jax.export.export(jax.jit(jk.softmax), platforms=("cuda",), disabled_checks=checks)
    exported = export(jax.ShapeDtypeStruct((2, 1 << 21), jnp.float32)).mlir_module()
    assert "ui8>" not in exported
    assert "num_batch_dims" in exported
