"""The arguments, errors and plans of the cross entropy of a linear layer."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk

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
    one, lse = jk.linear_cross_entropy(X[0, 0], W, 2, return_lse=True)
    assert one.shape == lse.shape == ()


def test_a_table_of_embeddings():
    close(jk.linear_cross_entropy(X, W.T, LABEL, trans_w=True), plain(X, W, LABEL))
    dw = jax.grad(lambda w: jk.linear_cross_entropy(X, w, LABEL, trans_w=True, reduction="sum"))
    want = jax.grad(lambda w: jk.linear_cross_entropy(X, w, LABEL, reduction="sum"))(W)
    close(dw(W.T), want.T)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.uint64, jnp.int4])
def test_dtypes_of_labels(dtype):
    close(jk.linear_cross_entropy(X, W, LABEL.astype(dtype)), plain(X, W, LABEL))
    wide = RNG.standard_normal((6, 300)).astype(np.float32)
    close(jk.linear_cross_entropy(X, wide, LABEL.astype(dtype)), plain(X, wide, LABEL))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes_of_results(dtype):
    x, w, b = jnp.asarray(X, dtype), jnp.asarray(W, dtype), jnp.ones(7)
    for reduction in ("none", "mean"):
        for logits_dtype in (None, jnp.float32):
            loss = lambda x, w, b: jnp.sum(  # noqa: E731
                jk.linear_cross_entropy(
                    *(x, w, LABEL),
                    bias=b,
                    reduction=reduction,  # noqa: B023
                    logits_dtype=logits_dtype,  # noqa: B023
                )
            )
            value, gradients = jax.value_and_grad(loss, (0, 1, 2))(x, w, b)
            assert value.dtype == jnp.float32
            assert [g.dtype for g in gradients] == [x.dtype, w.dtype, b.dtype]


BYTES = "max_bytes must be None or an integer, a number of bytes; got "
# Arguments that cross_entropy does not have, or whose errors differ; error, what its text has to contain.
WRONG = [
    pytest.param({"w": W.T}, ValueError, r"\(H, V\); got \(3, 5, 6\) and \(7, 6\)", id="w"),
    pytest.param({"trans_w": True}, ValueError, r"\(V, H\) with trans_w; got", id="trans_w"),
    pytest.param({"w": W[None]}, ValueError, "w.shape .H, V.; got", id="rank of w"),
    pytest.param({"x": np.float32(1)}, ValueError, r"x.shape must be \(..., H\)", id="rank of x"),
    pytest.param(
        {"w": jnp.asarray(W, jnp.bfloat16)}, TypeError, "one dtype.*bfloat16", id="dtypes"
    ),
    pytest.param({"x": X.astype(int)}, TypeError, "one dtype of float32", id="integers"),
    pytest.param({"x": "text"}, TypeError, "x must be an array or a number", id="text"),
    pytest.param({"labels": LABEL[:2]}, ValueError, r"labels has shape \(2, 5\)", id="labels"),
    pytest.param({"labels": np.ones((3, 5, 7))}, TypeError, "jaxkernels.cross_entropy", id="probs"),
    pytest.param({"labels": LABEL > 2}, TypeError, "labels must be integers; got bool", id="bool"),
    pytest.param({"bias": np.ones(6)}, ValueError, r"bias must have shape \(7,\)", id="bias"),
    pytest.param({"bias": LABEL[0]}, TypeError, "bias must be floating; got int", id="bias dtype"),
    pytest.param(
        {"temperature": np.ones(4)}, ValueError, "temperature has shape", id="temperatures"
    ),
    pytest.param({"logits_dtype": "float64"}, ValueError, "logits_dtype.*'float64'", id="logits"),
    pytest.param({"max_bytes": "1GB"}, TypeError, BYTES + r"'1GB'.*2\*\*30", id="bytes-text"),
    pytest.param({"max_bytes": np.ones(2)}, TypeError, BYTES + "array", id="bytes-array"),
    pytest.param({"max_bytes": 1000}, ValueError, "max_bytes=1000 is too little", id="max_bytes"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG)
def test_errors(wrong, error, text):
    arguments = {"x": X, "w": W, "labels": LABEL, **wrong}
    with pytest.raises(error, match=f"(?s){text}"):
        jk.linear_cross_entropy(**arguments)


def test_float64_is_not_narrowed():
    with jax.enable_x64(True), pytest.raises(ValueError, match="narrower than x, float64"):
        jk.linear_cross_entropy(
            X.astype(np.float64), W.astype(np.float64), LABEL, logits_dtype="float32"
        )


@pytest.mark.parametrize("implementation", [None, "ffi", "xla"])
def test_implementations(implementation):
    """The plain one has no call of a kernel; the others differ from it by roundings."""

    def step(x, w):
        loss = lambda x, w: jk.linear_cross_entropy(  # noqa: E731
            x, w, LABEL, reduction="mean", implementation=implementation
        )
        return jax.value_and_grad(loss, (0, 1))(x, w)

    text = jax.jit(step).lower(X, W).as_text()
    assert ("jaxkernels_rows" in text) == (implementation != "xla")
    of_logits = lambda x, w: jk.cross_entropy(jk.matmul(x, w), LABEL, reduction="mean")  # noqa: E731
    want = jax.grad(of_logits, (0, 1))(X, W)
    value, gradients = jax.jit(step)(X, W)
    close(value, plain(X, W, LABEL, reduction="mean"))
    for got, truth in zip(gradients, want, strict=True):
        close(got, truth)


def test_without_kernels_a_required_one_is_an_error():
    def loss(x):
        return jk.linear_cross_entropy(x, W, LABEL, reduction="mean", implementation="ffi")

    with pytest.raises(NotImplementedError, match='implementation="ffi": no kernel'):
        jax.export.export(jax.jit(loss), platforms=["tpu"])(X)


def test_a_plan_is_a_value():
    plan = jk.plan_linear_cross_entropy(4096, 4096, 128256, "bfloat16")
    assert plan == jk.plan_linear_cross_entropy(4096, 4096, 128256, jnp.bfloat16)
    assert "chunk_rows=4096" in repr(plan)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert len({plan, dataclasses.replace(plan)}) == 1


def test_what_a_plan_counts():
    """One chunk needs no sums; several need float32 sums and, but for float32 on a GPU, a product."""
    one = jk.plan_linear_cross_entropy(4096, 4096, 128256, "bfloat16")
    assert (one.chunks, one.logits_bytes, one.sums_bytes) == (1, 2 * 4096 * 128256, 0)
    bound = 5_400_000_000
    several = jk.plan_linear_cross_entropy(32768, 4096, 128256, "bfloat16", max_bytes=bound)
    assert several.chunks > 1
    assert several.sums_bytes == 4 * (2 * 4096 + 2) * 128256
    assert bound * 0.8 < several.total_bytes <= bound
    kept = jk.plan_linear_cross_entropy(
        32768, 4096, 128256, "bfloat16", max_bytes=bound, w_is_constant=True
    )
    assert kept.sums_bytes == 0
    for spelled in ("float32", jnp.float32, np.float32, np.dtype("f4")):
        wide = jk.plan_linear_cross_entropy(4096, 4096, 128256, "bfloat16", logits_dtype=spelled)
        assert wide.logits_bytes == 6 * wide.chunk_rows * 128256
    scaled = jk.plan_linear_cross_entropy(64, 8, 100, "float32", is_scaled=True)
    assert scaled.logits_bytes == 3 * 4 * 64 * 100
    on_a_cpu = jk.plan_linear_cross_entropy(
        500, 8, 100, "float32", platform="cpu", max_bytes=200_000
    )
    assert on_a_cpu.chunks > 1
    assert on_a_cpu.sums_bytes == 4 * (8 + 2) * 100
    in_place = jk.plan_linear_cross_entropy(500, 8, 100, "float32", max_bytes=200_000)
    assert in_place.chunks > 1
    assert in_place.sums_bytes == 4 * 2 * 100


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


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"rows": 0}, ValueError, "sizes must be positive; got rows=0"),
        ({"dtype": "int32"}, TypeError, "dtype must be one of"),
        ({"platform": "tpu"}, ValueError, "platform must be"),
        ({"max_bytes": 10_000}, ValueError, "max_bytes=10000 is too little"),
        ({"max_bytes": 1e9}, TypeError, BYTES + r"1000000000\.0"),
    ],
    ids=lambda v: str(v),
)
def test_errors_of_plans(wrong, error, text):
    sizes = {"rows": 1000, "features": 8, "classes": 100, "dtype": "float32"}
    sizes, options = sizes | wrong, {x: wrong[x] for x in wrong if x not in sizes}
    with pytest.raises(error, match=text):
        jk.plan_linear_cross_entropy(*list(sizes.values())[:4], **options)
