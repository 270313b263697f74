"""Flash attention as CUDA devices run it: by cuDNN and our kernels on a GPU, elsewhere by models of both."""

import dataclasses
import functools
import re

import attention_cases as cases
import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Truth, check
from flash_cases import SIZES
from flash_cases import value_and_cotangents as pulled
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from oracle import storage

import jaxkernels as jk
from jaxkernels._attention import checks, choice, cudnn, plain
from jaxkernels._attention.problem import present
from jaxkernels._rows.masked_kernels import band_of
from jaxkernels.flax import dot_product_attention as flax_attention

pytestmark = pytest.mark.filterwarnings("ignore:jaxkernels runs its pure-JAX reference")
GROUPED = SIZES["grouped"]
OPERANDS = cases.operands(GROUPED, "bfloat16")
DOTS = cases.operands(GROUPED, "bfloat16", seed=1)
DTYPES = (*flash_cases.DTYPES, "float32")
CAUSAL = functools.partial(jk.dot_product_attention, is_causal=True)


@pytest.fixture(autouse=True)
def _flash(monkeypatch):
    flash_cases.take_flash(monkeypatch)


def held(got, operands, dy, dtype, what, **options):
    truth = flash_cases.truth(operands, dtype, **options)
    check(got[0], truth.result(), f"{what}: y")
    want = truth.gradients(dy)
    for name, x in zip("qkv", got[1:], strict=True):
        assert x.dtype == storage(dtype)
        check(x, want[name], f"{what}: d{name}")


def together(function, sets):
    """A function of operands with each of many sets of arguments, as one program."""
    return jax.jit(lambda *x: {name: function(*x, **some) for name, some in sets.items()})


def values_and_gradients(q, k, v, dy, **options):
    """The result of a program that keeps nothing for a backward pass, and what `pulled` gives."""
    return jk.dot_product_attention(q, k, v, **options), pulled(q, k, v, dy, **options)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_values_and_gradients(sizes, dtype):
    operands = cases.operands(sizes, dtype)
    dy = cases.operands(sizes, dtype, seed=1)[0]
    sets = flash_cases.arguments(sizes, dtype)
    for name, (y, got) in together(values_and_gradients, sets)(*operands, dy).items():
        check(y, flash_cases.truth(operands, dtype, **sets[name]).result(), name)
        held(got, operands, dy, dtype, name, **sets[name])


def test_rows_of_the_smallest_biases():
    """cuDNN takes finfo.min for what hides, so that no gradient is NaN."""
    shape, least = (1, 1, GROUPED.T, GROUPED.S), jnp.finfo(jnp.bfloat16).min
    bias = jnp.zeros(shape, jnp.bfloat16).at[0, 0, 1].set(least)
    y, *gradients = jax.jit(functools.partial(pulled, bias=bias))(*OPERANDS, DOTS[0])
    assert not np.any(y[:, 1])
    assert not np.any(gradients[0][:, 1])
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradients)


def in_two_forms(forward, backward, q, k, v, dy, **options):
    """The log-sum-exps and the results of `pulled`, of forms of different kinds."""
    names = ("bias", "mask", "query_seq_lengths", "key_value_seq_lengths")
    given = checks.as_operands(q, k, v, *map(options.get, names))
    band = band_of(
        options.get("is_causal", False), options.get("local_window_size"), from_end=False
    )
    scale = options.get("scale", q.shape[-1] ** -0.5)
    call = choice.flash_call(given, scale, band)
    call, arrays = dataclasses.replace(call, keeps_sums=True), present(given)
    y, sums = forward.forward(call, arrays)
    found = backward.backward(call, [*arrays, sums, y, dy])
    return sums, (y, *found)


@pytest.mark.parametrize("dtype", flash_cases.DTYPES)
@pytest.mark.parametrize("forms", [(plain, cudnn), (cudnn, plain)], ids=["plain", "cudnn"])
def test_either_form_takes_the_residuals_of_the_other(forms, dtype):
    operands = cases.operands(GROUPED, dtype)
    dy = cases.operands(GROUPED, dtype, seed=1)[0]
    sets = flash_cases.arguments(GROUPED, dtype)
    found = together(functools.partial(in_two_forms, *forms), sets)(*operands, dy)
    for name, (sums, got) in found.items():
        held(got, operands, dy, dtype, name, **sets[name])
        truth = flash_cases.truth(operands, dtype, **sets[name])
        alive = np.isfinite(truth.log_sum_exp) & (truth.rows[..., 0] > 0)
        found = np.asarray(sums)[alive]
        np.testing.assert_allclose(found, truth.log_sum_exp[alive], rtol=1e-4, atol=1e-4)


def test_cudnn_runs_them():
    """Forward alone, forward for a gradient, and backward; under strict promotion too."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for name, options in flash_cases.arguments(GROUPED, "bfloat16").items():
            run = functools.partial(values_and_gradients, **options)
            assert flash_cases.calls_of_cudnn(run, *OPERANDS, DOTS[0]) == 3, name


def test_platforms_that_cannot_be_pinned():
    run = jax.jit(functools.partial(pulled, implementation="cudnn"))
    with pytest.raises(NotImplementedError, match=r"cudnn.*not on .tpu."):
        run.trace(*OPERANDS, DOTS[0]).lower(lowering_platforms=("tpu",))


def donated(run, *arrays):
    return jax.jit(run, donate_argnums=(0, 3))(*map(jnp.asarray, arrays))


def exported(run, *arrays):
    """An exported program holds no call of cuDNN or our kernels, because its GPU is unknown."""
    export = jax.export.export(
        jax.jit(run), platforms=("cpu", "cuda"), disabled_checks=jk.export_checks()
    )(*arrays)
    assert not re.search("__cudnn|@jaxkernels_attention", export.mlir_module())
    return jax.export.deserialize(export.serialize()).call(*arrays)


def repeated(run, *arrays):
    """y, dk and dv of cuDNN are the same bit by bit; dq is not promised."""
    first, second = (jax.jit(run)(*arrays) for _ in range(2))
    assert all(np.array_equal(first[i], second[i]) for i in (0, 2, 3))
    return first


def checked(run, *arrays):
    with jax.debug_nans(True):
        return jax.jit(run)(*arrays)


def sharded(run, *arrays):
    mesh = jax.make_mesh((1,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    split = jax.shard_map(run, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    return jax.jit(split)(*arrays)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("context", [donated, exported, repeated, checked, sharded])
def test_contexts(context, dtype):
    operands, dy = cases.operands(GROUPED, dtype), cases.operands(GROUPED, dtype, seed=1)[0]
    options = flash_cases.arguments(GROUPED, dtype)["causal-lengths"]
    got = context(functools.partial(pulled, **options), *operands, dy)
    held(got, operands, dy, dtype, context.__name__, **options)


def test_pinned_and_rematerialised():
    of = jax.checkpoint(functools.partial(CAUSAL, implementation="cudnn"))
    y, pull = jax.vjp(jax.jit(of), *OPERANDS)
    held([y, *pull(DOTS[0])], OPERANDS, DOTS[0], "bfloat16", "remat", is_causal=True)


def test_gradient_of_the_bias():
    options = flash_cases.arguments(GROUPED, "bfloat16")["mask-and-bias"]
    others = {name: x for name, x in options.items() if name != "bias"}
    of = functools.partial(jk.dot_product_attention, **others)
    y, pull = jax.vjp(of, *OPERANDS, options["bias"])
    *got, dbias = pull(DOTS[0])
    held([y, *got], OPERANDS, DOTS[0], "bfloat16", "with a bias", **options)
    ds, error = Truth(*OPERANDS, "bfloat16", **options).gradients(DOTS[0])["scores"]
    error = error.sum(0, keepdims=True) + 2.0**-7 * np.abs(ds).sum(0, keepdims=True)
    check(dbias, (ds.sum(0, keepdims=True), error), "dbias")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_forward_mode(dtype):
    operands, dots = (tuple(cases.operands(GROUPED, dtype, seed=seed)) for seed in (0, 1))
    y, y_dot = jax.jit(lambda x, t: jax.jvp(CAUSAL, x, t))(operands, dots)
    check(y, Truth(*operands, dtype, is_causal=True).result())
    ours = functools.partial(CAUSAL, implementation="ffi")
    want = jax.jit(lambda x, t: jax.jvp(ours, x, t)[1])(operands, dots)
    # Ours corrects weights whose rows do not sum to 1.
    y_dot, want = (np.asarray(t, np.float32) for t in (y_dot, want))
    np.testing.assert_allclose(y_dot, want, rtol=2**-6, atol=2**-6 * np.abs(want).max())


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2.0**-4), ("float32", 2.0**-16)])
def test_second_order(dtype, tolerance):
    """Forward over reverse, reverse over reverse, and a Hessian, compared with those of our own kernels."""
    sizes = cases.Sizes(1, 4, 4, 2, 1, 8)
    operands = [jnp.asarray(x) for x in cases.operands(sizes, dtype)]
    dots = [jnp.asarray(x) for x in cases.operands(sizes, dtype, seed=1)]

    def derivatives(implementation):
        def loss(q, k, v):
            y = jk.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
            return jnp.sum(jnp.sin(y.astype(jnp.float32)))

        gradient = jax.grad(loss, (0, 1, 2))

        def dotted(*x):
            found = zip(gradient(*x), dots, strict=True)
            return sum(jnp.vdot(g.astype(jnp.float32), dot) for g, dot in found)

        def run(*x):
            forward = jax.jvp(gradient, x, tuple(dots))[1]
            return forward, jax.grad(dotted, (0, 1, 2))(*x), jax.hessian(loss)(*x)

        return jax.tree.leaves(jax.jit(run)(*operands))

    for ours, want in zip(derivatives(None), derivatives("ffi"), strict=True):
        ours, want = (np.asarray(x, np.float32) for x in (ours, want))
        assert np.abs(ours - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize(
    ("policy", "runs"),
    [
        (jk.checkpoint_policies.dots_saveable, 1),
        (jk.checkpoint_policies.dots_with_no_batch_dims_saveable, 2),
        (jax.checkpoint_policies.everything_saveable, 1),
        (None, 2),
    ],
)
def test_policies_of_remat(policy, runs):
    """Attention is a product with batch dimensions."""
    layer = jax.checkpoint(lambda q: CAUSAL(jnp.sin(q), q, q), policy=policy)
    gradient = jax.grad(lambda q: jnp.sum(layer(q).astype(jnp.float32)))
    program = str(jax.make_jaxpr(gradient)(DOTS[0][:, :, :2]))
    assert program.count("jaxkernels_flash_attention[") == runs


def test_a_batch_that_vmap_makes_too_large(monkeypatch):
    monkeypatch.setattr(choice, "MOST_BLOCKS", 4)
    one = jax.ShapeDtypeStruct((2, 64, 2, 64), jnp.bfloat16)
    for members, calls in ((2, 1), (3, 0)):
        several = jax.ShapeDtypeStruct((members, *one.shape), one.dtype)
        function = jax.vmap(lambda q: jk.dot_product_attention(q, q, q))
        assert flash_cases.calls_of_cudnn(function, several) == calls


def flax_takes_flash(*operands, **options):
    program = jax.make_jaxpr(functools.partial(flax_attention, **options))(*operands)
    return "jaxkernels_flash_attention" in str(program)


TAKES = {
    "plain": {},
    "linen": {"force_fp32_for_softmax": False, "deterministic": True, "dropout_rate": 0.5},
    "causal": {"is_causal": True, "window": (4, 0)},
    "mask": {"mask": np.ones((GROUPED.T, GROUPED.S), np.float32)},
    "bias": {"bias": jnp.zeros((GROUPED.N, 1, 1), "bfloat16")},
    "float32": {"dtype": jnp.float32, "force_fp32_for_softmax": True},
}
TAKES_NOT = {
    "float32-softmax": {"force_fp32_for_softmax": True},
    "dropout": {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)},
    "precision": {"precision": "high"},
    "mean": {"empty_rows": "mean"},
    "pinned": {"implementation": "xla"},
    "hook": {"einsum_dot_general": jax.lax.dot_general},
    "wide-bias": {"bias": np.zeros((GROUPED.N, 1, 1), np.float32)},
    "later-keys": {"window": (4, 4)},
}


@pytest.mark.parametrize("name", [*TAKES, *TAKES_NOT])
def test_who_flax_takes_flash(name):
    options = TAKES[name] if name in TAKES else TAKES_NOT[name]
    assert flax_takes_flash(*OPERANDS, **options) == (name in TAKES)


def test_another_depth_of_values_in_flax():
    q, k, v = OPERANDS
    assert not flax_takes_flash(q, k, v[..., :8])
    q, k, v = cases.operands(GROUPED)
    assert flax_takes_flash(q, k, v[..., :8])
    got, want = (flax_attention(q, k, x) for x in (v[..., :8], v))
    np.testing.assert_allclose(got, want[..., :8], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("leading", [(), (1,), (2, 1), (1, 1, 2)])
def test_any_leading_dimensions_in_flax(leading):
    """Compares with our own kernels; mask and bias broadcast along different dimensions."""
    members = int(np.prod(leading))
    sizes = cases.Sizes(members, 16, 32, 4, 2, 16)
    q, k, v = (x.reshape(*leading, *x.shape[1:]) for x in cases.operands(sizes, "bfloat16"))
    rng = np.random.default_rng(3)
    mask = rng.random((*leading[:1], *(1,) * max(len(leading) - 1, 0), 1, 16, 32)) < 0.6
    bias = jnp.asarray(rng.standard_normal((*leading[-1:], 4, 1, 32)), "bfloat16")
    run = functools.partial(flax_attention, bias=bias, mask=mask)
    assert flax_takes_flash(q, k, v, bias=bias, mask=mask)
    got = np.asarray(run(q, k, v), np.float32)
    want = np.asarray(run(q, k, v, implementation="ffi"), np.float32)
    assert np.abs(got - want).max() <= 2.0**-6 * np.abs(want).max()
