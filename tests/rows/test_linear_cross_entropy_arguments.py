"""The arguments and plans of the cross entropy of a linear layer."""

import functools
import re

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk
from jaxkernels._linear_loss import chunks, plan

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5, 6)).astype(np.float32)
W = RNG.standard_normal((6, 7)).astype(np.float32)
LABEL = RNG.integers(0, 7, (3, 5))


def plain(x, w, label, **options):
    return jk.cross_entropy(np.matmul(x, w), label, **options)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_shapes_that_broadcast():
    """Labels, weights and temperatures against rows; x may be one row, or have any dimensions."""
    close(jk.linear_cross_entropy(X, W, 3), plain(X, W, 3))
    close(jk.linear_cross_entropy(X, W, LABEL[:1]), plain(X, W, LABEL[:1]))
    close(jk.linear_cross_entropy(X[0, 0], W, 2), plain(X[0, 0], W, 2))
    close(jk.linear_cross_entropy(X[None], W, LABEL[None]), plain(X, W, LABEL)[None])
    column = np.array([[1.0], [2], [3]], np.float32)
    for name in ("weights", "temperature"):
        got = jk.linear_cross_entropy(X, W, LABEL, **{name: column})
        close(got, plain(X, W, LABEL, **{name: column}))
    close(jk.linear_cross_entropy(X[0, 0], W.T[:1], np.zeros(1, int), trans_w=True), np.zeros(1))
    one, lse = jk.linear_cross_entropy(X[0, 0], W, 2, return_lse=True)
    assert one.shape == lse.shape == ()
    close(jk.linear_token_log_probs(X[0, 0], W, 2), -one)


def test_dtypes_of_tokens():
    x = jnp.asarray(X, "bfloat16")
    logits = jnp.matmul(x, W.astype("bfloat16"), preferred_element_type="float32")
    wide = jk.token_log_probs(logits, LABEL)
    options = {"dtype": "bfloat16", "logits_dtype": "float32"}
    close(jk.linear_token_log_probs(x, W, LABEL, **options), wide)
    assert np.max(np.abs(jk.linear_token_log_probs(x, W, LABEL, dtype="bfloat16") - wide)) > 1e-3


@pytest.mark.parametrize(
    ("dtypes", "dtype", "computed"),
    [
        (("bfloat16", "float32"), None, "float32"),
        (("bfloat16", "float32"), "bfloat16", "bfloat16"),
        (("bfloat16", "float16"), None, "float32"),
        (("float32", "bfloat16"), jnp.bfloat16, "bfloat16"),
    ],
)
def test_dtypes_are_promoted_as_in_flax(dtypes, dtype, computed, exact_products):
    x, w = jnp.asarray(X, dtypes[0]), jnp.asarray(W, dtypes[1])
    assert flax.linen.dtypes.promote_dtype(x, w, dtype=dtype)[1].dtype == computed

    def both(x, w, **options):
        mean = functools.partial(jk.linear_cross_entropy, reduction="mean", **options)
        return jax.value_and_grad(lambda x, w: mean(x, w, LABEL), (0, 1))(x, w)

    loss, gradients = both(x, w, dtype=dtype)
    want, of = both(x.astype(computed), w.astype(computed))
    assert [g.dtype for g in gradients] == list(dtypes)
    for got, y in zip((loss, *gradients), (want, *of), strict=True):
        error = 1e-5 if {got.dtype.name, computed} == {"float32"} else 1e-2
        got, y = (np.asarray(a, np.float32) for a in (got, y))
        np.testing.assert_allclose(got, y, rtol=error, atol=error * np.max(np.abs(y)))


def test_what_a_plan_counts():
    """One chunk needs no sums; several need float32 sums and, but for float32 on a GPU, a product."""
    plan_of = jk.plan_linear_cross_entropy
    one = plan_of(4096, 4096, 128256, "bfloat16")
    assert (one.chunks, one.logits_bytes, one.sums_bytes) == (1, 2 * 4096 * 128256, 0)
    bound = 5_400_000_000
    of_several = functools.partial(plan_of, 32768, 4096, 128256, "bfloat16", max_bytes=bound)
    several = of_several()
    assert several.chunks > 1
    assert several.sums_bytes == 4 * (2 * 4096 + 2) * 128256
    assert bound * 0.8 < several.total_bytes <= bound
    assert of_several(w_is_constant=True).sums_bytes == 0
    for spelled in ("float32", jnp.float32, np.float32, np.dtype("f4")):
        wide = plan_of(4096, 4096, 128256, "bfloat16", logits_dtype=spelled)
        assert wide.logits_bytes == 6 * wide.chunk_rows * 128256
    scaled = plan_of(64, 8, 100, "float32", is_scaled=True)
    assert scaled.logits_bytes == 3 * 4 * 64 * 100
    on_a_cpu = plan_of(500, 8, 100, "float32", platform="cpu", max_bytes=200_000)
    assert on_a_cpu.chunks > 1
    assert on_a_cpu.sums_bytes == 4 * (8 + 2) * 100
    in_place = plan_of(500, 8, 100, "float32", max_bytes=200_000)
    assert in_place.chunks > 1
    assert in_place.sums_bytes == 4 * 2 * 100


@pytest.mark.parametrize(
    ("max_bytes", "algorithm"), [(None, "auto"), (10**9, "auto"), (500_000_000, "pipelined")]
)
def test_float32_products_use_tensor_cores_if_their_scratch_fits(max_bytes, algorithm):
    sizes = (8192, 2048, 50304)
    options = {"max_bytes": max_bytes, "device": "h100"}
    found = jk.plan_linear_cross_entropy(*sizes, "float32", **options)
    assert found.algorithm == algorithm
    rows, (_, features, classes) = found.chunk_rows, sizes
    products = ((rows, classes, features), (rows, features, classes), (features, classes, rows))
    transposed = ({}, {"trans_b": True}, {"trans_a": True})
    with jk.default_algorithm(None if algorithm == "auto" else algorithm):
        of = [
            jk.plan_sgemm(*mnk, **flags, device="h100")
            for mnk, flags in zip(products, transposed, strict=True)
        ]
    assert {p.algorithm for p in of} == {"tensor" if algorithm == "auto" else algorithm}
    assert found.scratch_bytes == 4 * max(p.partial_elements for p in of)
    assert max_bytes is None or found.total_bytes <= max_bytes
    # "tensor" would run no chunk of all 65536 rows, whose scratch takes more than 4 GiB.
    many = jk.plan_linear_cross_entropy(65536, 2048, 50304, "float32", max_bytes=10**11)
    assert many.chunk_rows * 50304 * 4 <= 2**31
    with jk.default_algorithm("pipelined"):
        ffma = jk.plan_linear_cross_entropy(*sizes, "float32", **options)
    assert ffma.algorithm == "pipelined"


def test_products_run_the_algorithm_of_the_plan():
    shapes = ((8192, 2048), (2048, 50304), (8192, 1), (8192, 4))
    dtypes = ("float32", "float32", "int32", "float32")
    given = tuple(map(jax.ShapeDtypeStruct, shapes, dtypes))
    for max_bytes, algorithm in ((None, "auto"), (500_000_000, "pipelined")):
        options = chunks.Options(max_bytes=max_bytes)
        call = chunks.Call(
            "fwd_grad", ("x", "w", "label", "numbers"), ("kept", "dx", "dw"), options
        )
        layout = plan.layout(call, given, "cuda")
        run = lambda *operands: chunks.run(call, operands, chunks.RowCalls("plain"), layout)  # noqa: B023, E731
        program = str(jax.make_jaxpr(run)(*given))
        assert set(re.findall(r"algorithm='(\w+)'", program)) == {algorithm}


@pytest.mark.parametrize("rows", [1, 127, 1000, 4096, 100_003])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("max_bytes", [None, 200_000_000, 1_000_000_000])
def test_plans_cover_all_rows_within_the_bound(rows, dtype, max_bytes):
    plan = jk.plan_linear_cross_entropy(
        rows, 512, 32000, dtype, max_bytes=max_bytes, platform="cuda"
    )
    assert (plan.chunks - 1) * plan.chunk_rows < rows <= plan.chunks * plan.chunk_rows
    assert max_bytes is None or plan.total_bytes <= max_bytes
    assert plan.chunks == 1 or plan.chunk_rows < 128 or plan.chunk_rows % 128 == 0
