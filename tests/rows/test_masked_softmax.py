"""Values of scaled_masked_softmax and of its gradients against the truth."""

import functools

import cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import oracle
import pytest
from masked_cases import case

import jaxkernels as jk
from jaxkernels._rows import masked, masked_kernels

# (q, k): one row, one column, rows shorter and longer than the columns, odd and even, every tier of a GPU.
SIZES = (
    (1, 1), (1, 2), (2, 1), (2, 2), (31, 33), (33, 31), (1, 33), (2, 1000), (31, 128), (33, 1000),
    (1000, 2), (1000, 33), (2, 2048), (3, 4096), (2, 4097), (1, 4097), (1, 20001),
)  # fmt: skip
BANDS = (
    {"causal": True},
    {"window": 0},
    {"window": 2},
    {"window": (3, 1)},
    {"window": (0, 5)},
    {"causal": True, "window": 4},
    {"causal": True, "window": (50000, 0)},
    {"window": (1, 50000)},
)


@pytest.mark.smoke
@cases.tiers
@cases.dtypes
def test_sizes(dtype, tier):
    """Every size plain, masked, with bias and in a band."""
    some = []
    for q, k in SIZES:
        shape = (2, q, k) if q * k < 5000 else (q, k)
        some += [
            case(shape, dtype, scale=0.7),
            case(shape, dtype, mask=(q, k), causal=True),
            case(shape, dtype, mask=(1, k), bias=(q, k), scale=1.5, window=(k // 2, 3)),
        ]
    assert masked_cases.check_all(some, dtype, tier) >= 30


@cases.tiers
@cases.dtypes
@pytest.mark.parametrize("k", [70001, 200_000])
def test_rows_that_many_blocks_share(dtype, tier, k):
    """Bands that begin and end within a part of a row, and parts that see nothing."""
    some = [
        case((2, k), dtype, mask=(2, k), window=(2 * k // 3, 0)),
        case((2, k), dtype, mask=(1, k), bias=(2, k), window=(k // 3, 5), scale=0.5),
        case((2, k), dtype, bias=(1, k), causal=True),
    ]
    masked_cases.check_all(some, dtype, tier)


@pytest.mark.half_on_a_cpu
@cases.tiers
@cases.dtypes
def test_broadcast_operands(dtype, tier):
    """Masks and biases of every shape, next to one another, on short and on longer rows."""
    some = []
    for full in ((2, 3, 5, 7), (2, 3, 3, 40), (3, 2, 2, 129)):
        B, H, q, k = full
        shapes = (
            (), (1, 1, 1, 1), (k,), (q, k), (q, 1), (B, 1, 1, k), (B, 1, q, k), (1, H, q, k),
            (1, H, 1, k), (B, H, 1, 1), full,
        )  # fmt: skip
        for i, mask in enumerate(shapes):
            bias = shapes[(3 * i + full[-1]) % len(shapes)] or None  # no bias is one number
            some.append(case(full, dtype, mask=mask, seed=i))
            some.append(case(full, dtype, bias=mask or None, seed=i, scale=0.25))
            some.append(case(full, dtype, mask=mask, bias=bias, seed=i, causal=i % 2 == 0))
            if dtype in ("bfloat16", "float16"):  # is not rounded; its gradient has its own dtype
                wide = {"bias": mask or None, "bias_dtype": "float32"}
                some.append(case(full, dtype, **wide, mask=(full[-1],), scale=0.5))
    masked_cases.check_all(some, dtype, tier)


def test_operands_of_many_dimensions():
    """Which alternate between full and broadcast, so that a row's place takes several divisions."""
    full = (2, 3, 2, 2, 3, 2, 5)
    shapes = (
        (2, 1, 2, 1, 3, 1, 5),
        (1, 3, 1, 2, 1, 2, 5),
        (2, 1, 1, 2, 3, 1, 5),
        (3, 1, 1, 1, 2, 5),
    )
    some = [case(full, "float32", mask=a, bias=b) for a in shapes for b in shapes[::-1]]
    # Sizes whose quotients are taken by a multiplication: 1, powers of 2, odd, next to powers of 2.
    for rows in ((1, 7, 1), (8, 1, 3), (31, 33, 2), (17, 1, 64), (3, 127, 5)):
        full = (*rows, 4)
        some.append(case(full, "float32", mask=(rows[0], 1, rows[2], 4), bias=(rows[1], 1, 4)))
    masked_cases.check_all(some, "float32")


@pytest.mark.smoke
@cases.tiers
@cases.dtypes
def test_bands(dtype, tier):
    """There are fewer or more rows than columns, or equally many: bands end anywhere, rows see nothing."""
    some = []
    # One row of 5 that sees the first column alone: its last pack is not whole, and hidden.
    for q, k in ((9, 9), (4, 13), (13, 4), (3, 130), (40, 35), (1, 5)):
        for i, band in enumerate(BANDS):
            some.append(case((2, q, k), dtype, **band))
            if i % 2:
                some.append(case((2, q, k), dtype, mask=(q, k), bias=(1, q, k), scale=0.5, **band))
    masked_cases.check_all(some, dtype, tier)


@cases.tiers
@cases.dtypes
def test_bands_from_the_first_row(dtype, tier):
    """As attention counts them: the last row does not see the last columns, nor a last pack that is not whole."""
    tolerance = 8 * float(jnp.finfo(dtype).eps)
    shapes = ((1, 5), (3, 7), (2, 5, 67), (1, 3, 701))
    xs = [np.random.default_rng(0).standard_normal(shape).astype(dtype) for shape in shapes]

    @jax.jit
    def program(xs):
        results = []
        for left, right in ((None, 0), (None, 2), (-1, 1), (0, 0), (None, -1)):
            band = masked_kernels.Band(left, right, from_end=False)
            apply = functools.partial(
                masked.apply, "test", mask=None, bias=None, scale=0.5, band=band
            )
            results += [(apply(x, tier=tier), apply(x, implementation="xla")) for x in xs]
        return results

    with cases.x64(dtype):
        results = jax.device_get(program(xs))
    for got, want in results:
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * 1e-6)
        assert np.array_equal(got == 0, want == 0)


@pytest.mark.half_on_a_cpu
@cases.dtypes
def test_scales(dtype):
    """Fused (positive numbers, NumPy's too), and multiplied in before: negative, zero, traced with its gradient."""
    with cases.x64(dtype):
        traced = [np.asarray(s, oracle.compute(dtype)) for s in (0.3, -1.2)]
    some = []
    for scale in (1, 0.125, 3.0, np.float32(0.7), 1e-3, -0.5, 0, 0.0, np.float64(-2.0), *traced):
        for full in ((2, 5, 7), (2, 3, 67)):
            some.append(case(full, dtype, mask=(full[1], full[2]), scale=scale))
            some.append(case(full, dtype, bias=(1, *full[1:]), scale=scale, causal=True))
    masked_cases.check_all(some, dtype)


@pytest.mark.half_on_a_cpu
@cases.tiers
@cases.dtypes
def test_rows_that_see_nothing(dtype, tier):
    """By the mask, by the band, by both together: 0 or the mean, and no gradient."""
    some = []
    for k in (1, 7, 40, 1003):
        rng = np.random.default_rng(k)
        mask = rng.random((2, 5, k)) < 0.5
        mask[0, 1] = mask[1, 4] = False
        for empty_rows in ("zero", "mean"):
            options = {"empty_rows": empty_rows}
            some += [
                case((2, 5, k), dtype, mask=mask, **options),
                case((2, 5, k), dtype, mask=np.zeros((), bool), **options),
                case((2, k + 3, k) if k < 100 else (2, 5, k), dtype, causal=True, **options),
                case((2, 5, k), dtype, mask=mask, bias=(1, 5, k), window=(1, 0), **options),
            ]
    masked_cases.check_all(some, dtype, tier)


def spoiled(c, value):
    """The case with `value` in all hidden scores, cotangents and, where they broadcast to hidden ones only, biases."""
    hidden = ~masked_cases.Truth(c).seen
    scores, dy = c.scores.copy(), c.dy.copy()
    scores[hidden] = value
    dy[hidden] = value
    bias = c.bias
    if bias is not None:
        bias = np.where(hidden, bias.dtype.type(value), bias)
    return masked_cases.dataclasses.replace(c, scores=scores, dy=dy, bias=bias)


@pytest.mark.half_on_a_cpu
@cases.tiers
@cases.dtypes
def test_what_is_hidden_does_not_matter(dtype, tier):
    """NaN and infinities under the mask and outside the band, in scores, bias and cotangent."""
    some = []
    for value in (np.nan, np.inf, -np.inf):
        for full in ((2, 7, 7), (2, 5, 66), (2, 4, 1003)):
            bias = full
            for options in ({"causal": True}, {"mask": full}, {"mask": full[1:], "window": (3, 2)}):
                some.append(spoiled(case(full, dtype, **options), value))
                some.append(spoiled(case(full, dtype, bias=bias, scale=0.5, **options), value))
                some.append(spoiled(case(full, dtype, scale=-0.5, **options), value))
    masked_cases.check_all(some, dtype, tier)
    # The truth itself must not have taken the NaN up.
    assert not any(np.isnan(masked_cases.Truth(c).y.value).any() for c in some)


@pytest.mark.smoke
@cases.tiers
@cases.dtypes
def test_special_values_that_are_seen(dtype, tier):
    """NaN and +inf make their row NaN and leave others alone; -inf is 0, a row of nothing else too."""
    some = []
    for k in (2, 7, 40, 1003):
        c = case((2, 8, k), dtype, mask=(1, k))
        c.mask[..., 0] = True
        c.scores[0, 1, 0] = np.nan
        c.scores[0, 3, 0] = np.inf
        c.scores[0, 5] = -np.inf
        c.scores[1, 2, 0] = -np.inf
        c.scores[1, 4, 1:] = -np.inf
        some += [c, masked_cases.dataclasses.replace(c, mask=None, options={"causal": True})]
        some.append(masked_cases.dataclasses.replace(c, scale=-1.0))
        with_bias = case((2, 8, k), dtype, bias=(8, k), scale=2.0)
        with_bias.bias[1, 0] = np.nan
        with_bias.bias[3, 0] = np.inf
        with_bias.bias[5] = -np.inf
        some.append(with_bias)
    masked_cases.check_all(some, dtype, tier)
    y = masked_cases.Truth(some[0]).y.value
    assert np.isnan(y[0, [1, 3]]).all()
    assert (y[0, 5] == 0).all()
    assert not np.isnan(y[0, [0, 2, 4, 5, 6, 7]]).any()


@cases.tiers
@cases.dtypes
def test_large_scores(dtype, tier):
    """Far from zero, far from one another, and up to the largest number, where the product must not become infinite."""
    largest = float(jnp.finfo(dtype).max)
    some = []
    for k in (5, 66, 1003):
        rng = np.random.default_rng(k)
        c = case((2, 6, k), dtype, mask=(6, k), scale=1.7)
        for size in (1e2, 1e4):
            scores = (size * rng.uniform(-1, 1, c.scores.shape)).astype(c.scores.dtype)
            some.append(masked_cases.dataclasses.replace(c, scores=scores))
        # Finite in the compute type: half of the rows are equal, the others a largest and smaller ones.
        scores = np.full(c.scores.shape, largest, c.scores.dtype)
        scores[:, ::2, ::2] = -largest
        scores[:, 3] = -largest
        for scale in (0.5, 1.0):
            some.append(masked_cases.dataclasses.replace(c, scores=scores, scale=scale))
    masked_cases.check_all(some, dtype, tier)


def test_empty_arrays():
    """No rows, no columns, no matrices; results and gradients have their shapes."""
    some = []
    for full in ((0, 3, 5, 7), (2, 0, 5, 7), (2, 3, 0, 7), (2, 3, 5, 0), (0, 0)):
        bare = full[-2:]
        several = {}, {"causal": True}, {"mask": bare}, {"bias": bare}
        for options in (*several, {"empty_rows": "mean", "mask": bare}):
            some.append(case(full, "float32", **options))
        if len(full) == 4:
            some.append(case(full, "float32", mask=(full[0], 1, 1, full[3]), bias=(1, *full[1:])))
    assert masked_cases.check_all(some, "float32") == len(some)


def test_scores_broadcast_against_mask_and_bias():
    mask = np.random.default_rng(0).random((4, 1, 5, 6)) < 0.6
    x = case((5, 6), "float32").scores
    bias = np.asarray(case((3, 1, 6), "float32").scores)
    got = jk.scaled_masked_softmax(x, mask, bias)
    full = [np.ascontiguousarray(np.broadcast_to(a, (4, 3, 5, 6))) for a in (x, mask, bias)]
    assert got.shape == (4, 3, 5, 6)
    np.testing.assert_array_equal(got, jk.scaled_masked_softmax(*full))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_broadcast_operands_have_gradients_summed_in_float32(dtype):
    """Gradients of a row sum to 0, but for their rounding. Partial sums of 8 bits would err by more."""
    rng = np.random.default_rng(3)
    dy, row = (jnp.asarray(rng.standard_normal((25, n)), dtype) for n in (300, 1))
    full = jnp.zeros((25, 300), dtype)
    for scores, bias in ((full, row), (row, full)):
        _, pull = jax.vjp(lambda x, b: jk.scaled_masked_softmax(x, bias=b), scores, bias)
        dx, db = (np.asarray(d, np.float32) for d in pull(dy))
        narrow, wide = sorted((dx, db), key=np.size)
        np.testing.assert_allclose(narrow, wide.sum(-1, keepdims=True), rtol=2e-2, atol=1e-6)


@pytest.mark.half_on_a_cpu
@cases.dtypes
def test_the_plain_jax_implementation(dtype):
    """The fallback without kernels is held to the same bounds."""
    some = [
        case((2, 3, 5, 7), dtype, mask=(2, 1, 1, 7), bias=(1, 3, 5, 7), scale=0.7, causal=True),
        case((2, 3, 33), dtype, window=(2, 1), scale=-2.0),
        case((2, 3, 33), dtype, mask=np.zeros((3, 33), bool), empty_rows="mean"),
    ]
    masked_cases.check_all(some, dtype, implementation="xla")


def test_plain_jax_shifts_rows_exactly():
    """By the maximum of scaled scores, up to the largest, and without rounding errors of a derivative of it."""
    scaled = jax.jit(lambda x: jk.scaled_masked_softmax(x, scale=0.7, implementation="xla"))
    for huge in (-3e38, 2e38, -2.38e38):
        np.testing.assert_allclose(scaled(jnp.full((2, 5), huge)), np.full((2, 5), 0.2), rtol=1e-6)
    x = np.random.default_rng(0).standard_normal((20, 300)).astype(np.float32)
    y, pull = jax.vjp(scaled, x)
    assert (np.abs(pull(jnp.ones_like(y))[0]) < 1e-6 * y).all()


@cases.tiers
def test_repeats_bit_for_bit(tier):
    some = [case((3, 300, k), "bfloat16", mask=(1, 300, k), causal=True) for k in (40, 1003)]
    some = [c for c in some if masked_cases.serves(c, tier)]
    first, second = masked_cases.run_all(some, tier), masked_cases.run_all(some, tier)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.tobytes() == b.tobytes()


def agrees_with_plain_jax(scores, mask, **options):
    def both(x, m, dy, implementation):
        given = {"mask": m, "implementation": implementation, **options}
        y, pull = jax.vjp(functools.partial(jk.scaled_masked_softmax, **given), x)
        return y, pull(dy)[0]

    program = jax.jit(both, static_argnums=3)
    x = jax.random.normal(jax.random.key(0), scores, jnp.bfloat16)
    dy = jax.random.normal(jax.random.key(1), scores, jnp.bfloat16)
    m = jax.random.bernoulli(jax.random.key(2), 0.7, mask)
    (y, dx), (xla_y, xla_dx) = program(x, m, dy, None), program(x, m, dy, "xla")
    # Both are good to a rounding or two of bfloat16 of their largest terms; gradients are differences, of
    # terms that are much larger where a row sees two columns.
    size = jnp.abs(xla_y.astype(jnp.float32))
    terms = size * (jnp.abs(dy) + jnp.sum(size * jnp.abs(dy), axis=-1, keepdims=True))
    for got, want, bound in ((y, xla_y, size), (dx, xla_dx, terms)):
        largest = jnp.max(bound, axis=-1, keepdims=True)
        error = jnp.abs(got.astype(jnp.float32) - want.astype(jnp.float32))
        assert float(jnp.max(error / jnp.where(largest == 0, 1, largest))) < 2.0**-6


@pytest.mark.parametrize("options", [{"scale": 0.1}, {"causal": True}], ids=("plain", "causal"))
@pytest.mark.parametrize(
    ("scores", "mask"),
    [
        # A row of the mask is needed again after 32 MiB: rows are reordered on a GPU.
        ((1, 2, 4096, 4096), (1, 1, 4096, 4096)),
        ((2, 3, 2048, 4096), (2, 1, 2048, 4096)),
        ((2, 3, 2048, 4096), (1, 1, 2048, 4096)),
        ((3, 2, 2049, 4097), (3, 1, 2049, 4097)),
        # With 512 columns, 16 rows share a block; a causal mask gives them different lengths.
        ((2, 3, 17000, 512), (2, 1, 17000, 512)),
        # Not reordered: the mask differs by head, or not by row.
        ((2, 3, 2048, 4096), (1, 3, 2048, 4096)),
        ((2, 3, 2048, 4096), (2, 1, 1, 4096)),
    ],
    ids=str,
)
def test_masks_shared_by_heads_far_apart(gpu, scores, mask, options):
    agrees_with_plain_jax(scores, mask, **options)
