"""dot_product_attention against the truth, and against jax.nn's; its arguments, derivatives and errors."""

import functools

import attention_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import wrong_arguments
from attention_cases import SIZES, Truth, check
from hlo import collectives
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from oracle import storage

import jaxkernels as jk

MODES = ("zero", "mean")
GROUPED = SIZES["grouped"]


def run_all(function, q, k, v, argument_sets):
    """Many calls in one program, so that many arguments cost one compilation."""

    @jax.jit
    def program(q, k, v):
        return [function(q, k, v, **options) for options in argument_sets]

    # jax.nn's products are TF32 on a GPU unless told otherwise; ours do not listen.
    with jax.default_matmul_precision("highest"):
        return program(q, k, v)


XLAS = {"implementation": "xla"}  # shows that the truth is what jax.nn means
CALLS = {
    **{name: (sizes, {"empty_rows": "zero"}) for name, sizes in SIZES.items()},
    "grouped-mean": (GROUPED, {"empty_rows": "mean"}),
    "grouped-xla": (GROUPED, XLAS),
}


@pytest.mark.smoke
@pytest.mark.parametrize(("sizes", "options"), CALLS.values(), ids=CALLS)
def test_arguments(sizes, options):
    q, k, v = cases.operands(sizes)
    sets = cases.arguments(sizes)
    results = run_all(
        functools.partial(jk.dot_product_attention, **options), q, k, v, sets.values()
    )
    empty_rows = options.get("empty_rows", "mean")
    for (name, arguments), got in zip(sets.items(), results, strict=True):
        assert got.dtype == jnp.float32
        check(got, Truth(q, k, v, empty_rows=empty_rows, **arguments).result(), name)


@pytest.mark.smoke
@pytest.mark.parametrize("empty_rows", MODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dtype, empty_rows):
    with jax.enable_x64(dtype == "float64"):
        q, k, v = cases.operands(GROUPED, dtype)
        everything = cases.arguments(GROUPED)["everything"]
        sets = ({}, everything, {**everything, "bias": everything["bias"].astype(storage(dtype))})
        ours = functools.partial(jk.dot_product_attention, empty_rows=empty_rows)
        for options, got in zip(sets, run_all(ours, q, k, v, sets), strict=True):
            assert got.dtype == storage(dtype)
            check(got, Truth(q, k, v, dtype, empty_rows, **options).result(), dtype)


def gradients(function, operands, do, **options):
    bias = options.pop("bias")

    @jax.jit
    def pull(q, k, v, bias, do):
        return jax.vjp(lambda q, k, v, b: function(q, k, v, b, **options), q, k, v, bias)[1](do)

    return pull(*operands, bias, do)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("sizes", "dtype", "empty_rows"),
    [
        pytest.param(SIZES["heads"], "float32", "zero", id="heads"),
        pytest.param(GROUPED, "float32", "zero", id="grouped"),
        pytest.param(GROUPED, "float32", "mean", id="grouped-mean"),
        pytest.param(GROUPED, "bfloat16", "zero", id="grouped-bfloat16"),
    ],
)
def test_gradients(sizes, dtype, empty_rows):
    operands = cases.operands(sizes, dtype)
    do = cases.operands(sizes, dtype, seed=1)[0]
    options = cases.arguments(sizes)["everything"]
    truth = Truth(*operands, dtype, empty_rows, **options)
    want = truth.gradients(do)
    ours = functools.partial(jk.dot_product_attention, empty_rows=empty_rows)
    *got, dbias = gradients(ours, operands, do, **options)
    for name, x in zip("qkv", got, strict=True):
        assert x.dtype == storage(dtype)
        check(x, want[name], f"d{name}")
    # The bias is (1, N, T, S): common to the batch.
    ds, ds_error = (x.sum(0, keepdims=True) for x in want["scores"])
    check(dbias, (ds, ds_error + 2 * truth.precision.u * np.abs(ds)), "dbias")


def test_gradients_are_those_of_jax_nn():
    """The truth of the gradients is ours; this shows that it is jax.nn's, too."""
    operands, do = cases.operands(GROUPED), cases.operands(GROUPED, seed=1)[0]
    options = cases.arguments(GROUPED)["everything"]
    with jax.default_matmul_precision("highest"):
        ours, peer = (
            gradients(functools.partial(jk.dot_product_attention, **mode), operands, do, **options)
            for mode in ({"empty_rows": "mean"}, {"implementation": "xla"})
        )
    for x, y in zip(ours, peer, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_scale_may_be_an_array():
    q, k, v = cases.operands(GROUPED)
    truth = Truth(q, k, v, scale=0.3)
    got, slope = jax.jvp(
        lambda scale: jk.dot_product_attention(q, k, v, scale=scale), (0.3,), (1.0,)
    )
    check(got, truth.result())
    step = 1e-4
    above, below = (Truth(q, k, v, scale=0.3 + d).result().value for d in (step, -step))
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("empty_rows", MODES)
def test_residual(empty_rows):
    q, k, v = cases.operands(GROUPED)
    sets = cases.arguments(GROUPED)
    sets = {name: sets[name] for name in ("plain", "window", "mask", "everything")}
    ours = functools.partial(jk.dot_product_attention, empty_rows=empty_rows, return_residual=True)
    peer = functools.partial(jk.dot_product_attention, implementation="xla", return_residual=True)
    # As NumPy arrays: indexing them by a mask would be a compilation each.
    results = jax.device_get([run_all(f, q, k, v, sets.values()) for f in (ours, peer)])
    for options, (result, got), (_, theirs) in zip(sets.values(), *results, strict=True):
        truth = Truth(q, k, v, empty_rows=empty_rows, **options)
        check(result, truth.result())
        want = np.where(truth.rows[..., 0] > 0, truth.log_sum_exp, -np.inf).swapaxes(1, 2)
        alive = np.isfinite(want)
        np.testing.assert_allclose(got[alive], want[alive], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(theirs[alive], want[alive], rtol=1e-5, atol=1e-5)
        if empty_rows == "mean":
            np.testing.assert_array_equal(got[~alive], theirs[~alive])
        else:
            assert (got[~alive] == -np.inf).all()
    slope = jax.jit(jax.grad(lambda q: ours(q, k, v)[1].sum()))(q)
    assert (np.asarray(slope) == 0).all()


def test_three_dimensions():
    q, k, v = cases.operands(GROUPED)
    mask = cases.arguments(GROUPED)["mask"]["mask"]
    want = Truth(q, k, v, mask=mask).result()
    one = jax.jit(jk.dot_product_attention)
    got = jnp.stack([one(*(x[i] for x in (q, k, v)), mask=mask[i]) for i in range(GROUPED.B)])
    check(got, want)
    with_residual = functools.partial(jk.dot_product_attention, return_residual=True)
    _, residual = jax.eval_shape(with_residual, q[0], k[0], v[0])
    assert residual.shape == (GROUPED.T, GROUPED.N)


def test_shared_keys_are_not_copied():
    q, k, v = (jnp.zeros(shape) for shape in ((2, 7, 12, 5), (2, 11, 3, 5), (2, 11, 3, 5)))
    text = jax.jit(jk.dot_product_attention).lower(q, k, v).as_text()
    assert "tensor<2x12x7x11xf32>" in text  # the scores
    assert "tensor<2x12x11x5xf32>" not in text
    assert "tensor<2x11x12x5xf32>" not in text


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_heads_and_batch_may_be_sharded(kind, cpu_devices):
    """Shared key heads too, without a device asking another for anything."""
    q, k, v = cases.operands(cases.Sizes(2, 5, 7, 8, 4, 4))
    mesh = jax.make_mesh((2, 4), ("b", "h"), axis_types=(kind, kind), devices=cpu_devices)
    ours = jax.jit(functools.partial(jk.dot_product_attention, is_causal=True))
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, PartitionSpec("b", None, "h", None))
        operands = [jax.device_put(x, sharding) for x in (q, k, v)]
        got = ours(*operands)
        text = ours.lower(*operands).compile().as_text()
    assert got.sharding.is_equivalent_to(sharding, got.ndim)
    assert not collectives(text)
    check(got, Truth(q, k, v, is_causal=True).result())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_say_how_precise_they_are(dtype):
    """Nothing is left to the flag for the default precision of float32."""
    x = jnp.zeros((1, 4, 2, 8), dtype)

    def products(precision):
        with jax.default_matmul_precision(precision):
            text = jax.jit(jk.dot_product_attention).lower(x, x, x).as_text()
        return [line for line in text.splitlines() if "dot_general" in line or "sgemm" in line]

    found = products("bfloat16")
    assert len(found) == 2
    if dtype == "float32":
        assert all("HIGHEST" in line or "sgemm" in line for line in found)
    elif jax.default_backend() == "cpu":  # the scores are float32; both are XLA's default
        assert found == products("highest")
        assert found[0].endswith("xf32>")
    else:
        assert "accumulation_type = f32" in found[0]


def test_errors_are_of_the_class_that_jax_nn_raises():
    for changes, error, _ in wrong_arguments.OF_JAX_NN:
        with pytest.raises(error):
            jax.nn.dot_product_attention(**{**wrong_arguments.GROUPED, **changes})
