"""Flash attention as CUDA devices run it: with cuDNN on a GPU, elsewhere with a model of cuDNN."""

import dataclasses
import functools

import attention_cases as cases
import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Truth, check
from flash_cases import SIZES
from jax.experimental import checkify
from oracle import storage

import jaxkernels as jk
from jaxkernels._attention import checks, choice, default, flash_forms
from jaxkernels._attention.problem import present
from jaxkernels._rows.masked_kernels import band_of

pytestmark = pytest.mark.filterwarnings("ignore:jaxkernels runs its pure-JAX reference")
GROUPED = SIZES["grouped"]
NAMES = "qkv"


@pytest.fixture(autouse=True)
def _flash(monkeypatch):
    flash_cases.take_flash(monkeypatch)


def pulled(q, k, v, dy, **options):
    """The result, and the cotangents of q, k and v."""
    y, pull = jax.vjp(lambda q, k, v: jk.dot_product_attention(q, k, v, **options), q, k, v)
    return y, *pull(dy)


def held(got, operands, dy, dtype, what, **options):
    """Asserts that a result and cotangents lie within their bounds."""
    truth = flash_cases.truth(operands, dtype, **options)
    check(got[0], truth.result(), f"{what}: y")
    want = truth.gradients(dy)
    for name, x in zip(NAMES, got[1:], strict=True):
        assert x.dtype == storage(dtype)
        check(x, want[name], f"{what}: d{name}")


def together(function, sets):
    """A function of operands with each of many sets of arguments, as one program."""
    return jax.jit(lambda *x: {name: function(*x, **some) for name, some in sets.items()})


def values_and_gradients(q, k, v, dy, **options):
    """The result of a program that keeps nothing for a backward pass, and what `pulled` gives."""
    return jk.dot_product_attention(q, k, v, **options), pulled(q, k, v, dy, **options)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", flash_cases.DTYPES)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_values_and_gradients(sizes, dtype):
    operands = cases.operands(sizes, dtype)
    dy = cases.operands(sizes, dtype, seed=1)[0]
    sets = flash_cases.arguments(sizes, dtype)
    for name, (y, got) in together(values_and_gradients, sets)(*operands, dy).items():
        check(y, flash_cases.truth(operands, dtype, **sets[name]).result(), name)
        held(got, operands, dy, dtype, name, **sets[name])


def test_some_queries_see_nothing():
    """The sets of arguments include queries without keys; else no test would cover them."""
    operands = cases.operands(GROUPED, "bfloat16")
    sets = flash_cases.arguments(GROUPED, "bfloat16").items()
    truths = {name: flash_cases.truth(operands, "bfloat16", **options) for name, options in sets}
    empty = {name for name, truth in truths.items() if np.isneginf(truth.log_sum_exp).any()}
    assert {"mask", "mask-keys-causal", "bias-infinite", "key-lengths", "everything"} <= empty


def test_rows_of_the_smallest_biases():
    """cuDNN takes finfo.min for what hides, so that no gradient is NaN."""
    operands = cases.operands(cases.Sizes(1, 4, 6, 1, 1, 8), "bfloat16")
    bias = jnp.zeros((1, 1, 4, 6), jnp.bfloat16).at[0, 0, 1].set(jnp.finfo(jnp.bfloat16).min)
    y, *gradients = jax.jit(functools.partial(pulled, bias=bias))(*operands, operands[0])
    assert not np.any(y[0, 1])
    assert not np.any(gradients[0][0, 1])
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradients)


def in_two_forms(forward, backward, q, k, v, dy, **options):
    """The log-sum-exps and the results of `pulled`, of forms of different kinds."""
    names = ("bias", "mask", "query_seq_lengths", "key_value_seq_lengths")
    given = checks.as_operands(q, k, v, *map(options.get, names))
    band = band_of(
        options.get("is_causal", False), options.get("local_window_size"), from_end=False
    )
    scale = options.get("scale", q.shape[-1] ** -0.5)
    call = default.path_of(given, scale, band, is_drop_in=True).call
    call, arrays = dataclasses.replace(call, keeps_sums=True), present(given)
    y, sums = getattr(flash_forms.FORWARD, forward)(call, arrays)
    found = getattr(flash_forms.BACKWARD, backward)(call, [*arrays, sums, y, dy])
    return sums, (y, *found)


@pytest.mark.parametrize("dtype", flash_cases.DTYPES)
@pytest.mark.parametrize("forms", [("plain", "cudnn"), ("cudnn", "plain")])
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
    operands = cases.operands(GROUPED, "bfloat16")
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for name, options in flash_cases.arguments(GROUPED, "bfloat16").items():
            run = functools.partial(values_and_gradients, **options)
            assert flash_cases.calls_of_cudnn(run, *operands, operands[0]) == 3, name


def test_pinned():
    operands = [jnp.asarray(x) for x in cases.operands(GROUPED, "bfloat16")]
    run = jax.jit(functools.partial(pulled, implementation="cudnn", is_causal=True))
    got = run(*operands, operands[0])
    held(got, operands, operands[0], "bfloat16", "pinned", is_causal=True)
    with pytest.raises(NotImplementedError, match=r"cudnn.*not on .tpu."):
        run.trace(*operands, operands[0]).lower(lowering_platforms=("tpu",))


def test_repeated():
    """y, dk and dv of cuDNN are the same bit by bit; dq is not promised."""
    operands = cases.operands(GROUPED, "bfloat16")
    run = jax.jit(functools.partial(pulled, is_causal=True))
    first, second = (run(*operands, operands[0]) for _ in range(2))
    for i in (0, 2, 3):
        assert np.array_equal(first[i], second[i])


def test_three_dimensions_and_lists_of_lengths():
    q, k, v = (x[0] for x in cases.operands(GROUPED, "bfloat16"))
    got = jk.dot_product_attention(q, k, v, key_value_seq_lengths=[9])
    want = Truth(q[None], k[None], v[None], "bfloat16", key_value_seq_lengths=[9]).result()
    check(got, tuple(x[0] for x in want))


def test_vmap():
    sizes = cases.Sizes(4, *(getattr(GROUPED, name) for name in "TSNKH"))
    operands = cases.operands(sizes, "bfloat16")
    dy = cases.operands(sizes, "bfloat16", seed=1)[0]
    options = flash_cases.arguments(sizes, "bfloat16")["everything"]
    options |= {
        "query_seq_lengths": np.array([50, 30, 0, 7], np.int32),
        "key_value_seq_lengths": np.array([40, 60, 3, 0], np.int32),
    }
    static = {"scale": options.pop("scale"), "is_causal": options.pop("is_causal")}
    bias = options.pop("bias")

    def split(x):
        return x.reshape(2, 2, *x.shape[1:])

    def member(q, k, v, dy, mapped):
        return pulled(q, k, v, dy, bias=bias, **mapped, **static)

    got = jax.jit(jax.vmap(member))(*map(split, [*operands, dy]), jax.tree.map(split, options))
    merged = [x.reshape(4, *x.shape[2:]) for x in got]
    held(merged, operands, dy, "bfloat16", "vmap", bias=bias, **options, **static)


def test_vmap_of_queries_alone():
    q, k, v = cases.operands(GROUPED, "bfloat16")
    masks = np.random.default_rng(5).random((2, GROUPED.T, GROUPED.S)) < 0.5
    got = jax.jit(jax.vmap(lambda m: jk.dot_product_attention(q, k, v, mask=m)))(masks)
    for i in range(2):  # each is common to the batch
        check(got[i], Truth(q, k, v, "bfloat16", mask=masks[i]).result(), f"mask {i}")
    biases = flash_cases.arguments(GROUPED, "bfloat16")["bias"]["bias"][:, :1]

    def member(q, bias):
        return jk.dot_product_attention(q, k, v, bias)

    for dims in ((1, None), (None, 1), (1, 1)):
        ours = jax.vmap(member, (1 if dims[0] else None, dims[1]))
        stacked = np.stack([q, 2 * q], 1) if dims[0] else q
        sides = np.stack([biases, biases - 1], 1) if dims[1] else biases
        got = jax.jit(ours)(stacked, sides)
        for i in range(2):
            own = stacked[:, i] if dims[0] else q
            side = sides[:, i] if dims[1] else biases
            check(got[i], Truth(own, k, v, "bfloat16", bias=side).result(), f"{dims} {i}")


def test_gradient_of_the_bias():
    operands = cases.operands(GROUPED, "bfloat16")
    dy = cases.operands(GROUPED, "bfloat16", seed=1)[0]
    options = flash_cases.arguments(GROUPED, "bfloat16")["mask-and-bias"]
    bias, others = options["bias"], {k: v for k, v in options.items() if k != "bias"}

    def of(q, k, v, bias):
        return jk.dot_product_attention(q, k, v, bias, **others)

    y, pull = jax.vjp(of, *operands, bias)
    *got, dbias = pull(dy)
    held([y, *got], operands, dy, "bfloat16", "with a bias", **options)
    ds, error = Truth(*operands, "bfloat16", **options).gradients(dy)["scores"]
    error = error.sum(0, keepdims=True) + 2.0**-7 * np.abs(ds).sum(0, keepdims=True)
    check(dbias, (ds.sum(0, keepdims=True), error), "dbias")


def test_forward_mode():
    operands = [jnp.asarray(x) for x in cases.operands(GROUPED, "bfloat16")]
    dots = [jnp.asarray(x) for x in cases.operands(GROUPED, "bfloat16", seed=1)]
    of = functools.partial(jk.dot_product_attention, is_causal=True)
    y, y_dot = jax.jit(lambda x, t: jax.jvp(of, x, t))(operands, dots)
    check(y, Truth(*operands, "bfloat16", is_causal=True).result())
    ours = functools.partial(of, implementation="ffi")
    want = jax.jit(lambda x, t: jax.jvp(ours, x, t)[1])(operands, dots)
    # Ours corrects weights whose rows do not sum to 1.
    y_dot, want = (np.asarray(t, np.float32) for t in (y_dot, want))
    np.testing.assert_allclose(y_dot, want, rtol=2**-6, atol=2**-6 * np.abs(want).max())


def test_second_order():
    """Forward over reverse, reverse over reverse, and a Hessian, compared with those of our own kernels."""
    sizes = cases.Sizes(1, 4, 4, 2, 1, 8)
    operands = [jnp.asarray(x) for x in cases.operands(sizes, "bfloat16")]
    dots = [jnp.asarray(x) for x in cases.operands(sizes, "bfloat16", seed=1)]

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
        assert np.abs(ours - want).max() <= 2.0**-4 * np.abs(want).max()


def test_linear_transpose_of_a_pullback():
    operands = [jnp.asarray(x) for x in cases.operands(GROUPED, "bfloat16")]
    of = functools.partial(jk.dot_product_attention, is_causal=True)
    _, pull = jax.vjp(of, *operands)
    cotangents = tuple(jnp.asarray(x) for x in cases.operands(GROUPED, "bfloat16", seed=1))
    (got,) = jax.linear_transpose(pull, operands[0])(cotangents)
    want = jax.jvp(of, operands, list(cotangents))[1]
    assert np.array_equal(got, want)


def test_jit_and_remat():
    operands = cases.operands(GROUPED, "bfloat16")
    dy = cases.operands(GROUPED, "bfloat16", seed=1)[0]
    of = jax.checkpoint(functools.partial(jk.dot_product_attention, is_causal=True))

    def run(q, k, v, dy):
        y, pull = jax.vjp(of, q, k, v)
        return y, *pull(dy)

    held(jax.jit(run)(*operands, dy), operands, dy, "bfloat16", "remat", is_causal=True)


def test_donated():
    operands = cases.operands(GROUPED, "bfloat16")
    run = jax.jit(functools.partial(jk.dot_product_attention, is_causal=True), donate_argnums=0)
    got = run(*(jnp.asarray(x) for x in operands))
    check(got, Truth(*operands, "bfloat16", is_causal=True).result())


def test_export_and_reload():
    """An exported program holds no call of cuDNN, whose version where it runs nobody knows."""
    operands = cases.operands(GROUPED, "bfloat16")
    dy = cases.operands(GROUPED, "bfloat16", seed=1)[0]
    run = jax.jit(functools.partial(pulled, is_causal=True))
    exported = jax.export.export(
        run, platforms=("cpu", "cuda"), disabled_checks=jk.export_checks()
    )(*operands, dy)
    assert "__cudnn" not in exported.mlir_module()
    got = jax.export.deserialize(exported.serialize()).call(*operands, dy)
    held(got, operands, dy, "bfloat16", "exported", is_causal=True)


def products_saved(policy):
    """How often a checkpointed function runs attention forward, for its gradient."""

    def layer(q):
        return jk.dot_product_attention(jnp.sin(q), q, q)

    x = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    run = jax.checkpoint(layer, policy=policy)
    gradient = jax.grad(lambda q: jnp.sum(run(q).astype(jnp.float32)))
    return str(jax.make_jaxpr(gradient)(x)).count("jaxkernels_flash_attention[")


def test_policies_of_remat():
    """Attention is a product with batch dimensions."""
    policies = jk.checkpoint_policies
    assert products_saved(policies.dots_saveable) == 1
    assert products_saved(policies.dots_with_no_batch_dims_saveable) == 2
    assert products_saved(jax.checkpoint_policies.everything_saveable) == 1
    assert products_saved(None) == 2


def test_checkify():
    q = jnp.asarray(cases.operands(GROUPED, "bfloat16")[0])

    def of(q):
        return jk.dot_product_attention(q, q, q, is_causal=True)

    for bad in (False, True):
        given = q.at[0, 0, 0, 0].set(jnp.nan) if bad else q
        error, _ = checkify.checkify(jax.jit(of), errors=checkify.float_checks)(given)
        assert ("jaxkernels_flash_attention" in (error.get() or "")) == bad


def test_a_batch_that_vmap_makes_too_large(monkeypatch):
    monkeypatch.setattr(choice, "MOST_BLOCKS", 4)
    one = jax.ShapeDtypeStruct((2, 64, 2, 64), jnp.bfloat16)
    for members, calls in ((2, 1), (3, 0)):
        several = jax.ShapeDtypeStruct((members, *one.shape), one.dtype)
        function = jax.vmap(lambda q: jk.dot_product_attention(q, q, q))
        assert flash_cases.calls_of_cudnn(function, several) == calls
