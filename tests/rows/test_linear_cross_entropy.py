"""Values of the cross entropy of a linear layer and of its gradients against the truth, and memory of its programs."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from linear_losses import PLATFORM, Layer, bound_for
from memory_stats import SLACK, stats

import jaxkernels as jk

in_chunks = pytest.mark.parametrize("chunks", [1, 2, 4])
reductions = pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
SHAPE = (61, 9, 33)  # rows, features, classes


def draw(dtype, shape=SHAPE, kind="normal", seed=0, bias=True):
    """Operands and labels; one label in five is negative. A peaked row is won by its label, by far."""
    rows, features, classes = shape
    rng = np.random.default_rng([seed, rows, features, classes])
    x, w = rng.standard_normal((rows, features)), rng.standard_normal((features, classes))
    label = rng.integers(0, classes, rows).astype(np.int32)
    if kind == "peaked":
        x, w = x + 20 * w[:, label].T / features, 4 * w
    if kind == "large":
        x = 50 * x
    if kind == "equal":
        w[:] = w[:, :1]
    label = np.where(rng.random(rows) < 0.2, -1, label).astype(np.int32)
    b = rng.standard_normal(classes).astype(np.float32 if dtype != "float64" else dtype)
    storage = oracle.storage(dtype)
    return x.astype(storage), w.astype(storage), b if bias else None, label


def program(label, reduction, **options):
    """The loss and its gradients; of rows those of their sum."""

    def loss_of(x, w, *bias):
        b = bias[0] if bias else None
        loss = jk.linear_cross_entropy(x, w, label, bias=b, reduction=reduction, **options)
        return jnp.sum(loss), loss

    def both(*operands):
        argnums = tuple(range(len(operands)))
        (_, loss), gradients = jax.value_and_grad(loss_of, argnums, has_aux=True)(*operands)
        return loss, *gradients

    return jax.jit(both)


def checked(operands, reduction, max_bytes, *, trans_w=False, weights=None, **options):
    """Runs the loss with its gradients, and holds them against the truth."""
    x, w, bias, label = operands
    weight = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if reduction == "mean":
        total = np.sum(np.where(label >= 0, weight, 0))
        weight = weight / total if total else 0 * weight
    sums = options.get("label_smoothing", 0.0), options.get("z_loss", 0.0)
    layer = Layer(x, w, bias, label, weight, *sums, logits_dtype=options.get("logits_dtype"))
    options |= {"trans_w": trans_w, "weights": weights, "max_bytes": max_bytes}
    with cases.x64(x.dtype.name):
        given = [jnp.asarray(x), jnp.asarray(w.T if trans_w else w)]
        given += [] if bias is None else [jnp.asarray(bias)]
        loss, dx, dw, *rest = jax.device_get(program(label, reduction, **options)(*given))
    layer.check(loss, [dx, dw.T if trans_w else dw, *rest], reduction)
    wanted = [oracle.compute(x.dtype.name), *(a.dtype for a in given)]
    assert [a.dtype for a in (loss, dx, dw, *rest)] == wanted
    return loss, dx, dw, *rest


WEIGHTS = np.random.default_rng(5).random(SHAPE[0]).astype(np.float32)
WEIGHTS[::7] = 0
WEIGHTED = {"weights": WEIGHTS, "bias": False}
CASES = {
    "one chunk": (1, {}),
    "two chunks": (2, {}),
    "four chunks": (4, {}),  # the first has fewer rows than the others
    "smoothing": (2, {"label_smoothing": 0.1, **WEIGHTED}),
    "z": (2, {"z_loss": 0.01, **WEIGHTED}),
    "both": (2, {"label_smoothing": 0.3, "z_loss": 0.02, "trans_w": True, **WEIGHTED}),
    "peaked": (2, {"kind": "peaked"}),
    "large": (2, {"kind": "large"}),
    "equal": (2, {"kind": "equal"}),
}


@pytest.mark.half_on_a_cpu
@cases.dtypes
@reductions
@pytest.mark.parametrize("case", CASES)
def test_values(dtype, reduction, case):
    chunks, options = CASES[case]
    options = {"kind": "normal", "bias": True, **options}
    operands = draw(dtype, kind=options.pop("kind"), bias=options.pop("bias"))
    checked(operands, reduction, bound_for(chunks, *SHAPE, dtype), **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@in_chunks
def test_logits_in_float32(dtype, chunks):
    """The bound of the loss is then that of float32: 2^16 times narrower than bfloat16's."""
    bound = bound_for(chunks, *SHAPE, dtype, logits_dtype="float32")
    operands = draw(dtype, kind="peaked")
    loss, *_ = checked(operands, "none", bound, logits_dtype="float32")
    rounded, *_ = program(operands[3], "none")(*operands[:3])
    assert np.max(np.abs(loss - rounded)) > 1e-3


@pytest.mark.smoke
@pytest.mark.parametrize("shape", [(5, 3, 1), (1, 4, 7), (40, 1, 5), (300, 8, 257)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_shapes(shape, reduction):
    loss, *_ = checked(draw("float32", shape), reduction, None)
    if shape[-1] == 1:
        np.testing.assert_array_equal(loss, 0)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_no_rows(reduction):
    x, w, _, _ = draw("float32")
    loss, dx, dw = program(np.zeros(0, np.int32), reduction)(x[:0], w)
    assert loss.shape == ((0,) if reduction == "none" else ())
    assert dx.shape == (0, x.shape[1])
    np.testing.assert_array_equal(dw, 0 * w)
    np.testing.assert_array_equal(jnp.sum(loss), 0)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("scales", [(), ("temperature",), ("temperature", "logit_soft_cap")])
@in_chunks
def test_rows_that_are_left_out_do_no_harm(chunks, scales, reduction):
    """NaN in a row that is left out by its label or its weight, and a temperature of 0 there, reach nothing."""
    x, w, bias, label = draw("float32")
    label[:2] = 3
    weights, temperature = np.ones((2, len(x)), np.float32)
    label[7], weights[11] = -1, 0
    bound = bound_for(chunks, *SHAPE, "float32")

    def loss(x, w, bias, temperature, cap):
        given = {"temperature": temperature, "logit_soft_cap": cap}
        options = {"weights": weights, "reduction": reduction, "max_bytes": bound}
        options |= {name: given[name] for name in scales}
        return jnp.sum(jk.linear_cross_entropy(x, w, label, bias=bias, **options))

    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4)))
    want = run(x, w, bias, temperature, 5.0)
    x[7], x[11], temperature[7] = np.nan, np.inf, 0
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, run(x, w, bias, temperature, 5.0), want)
    x[1, 2] = np.nan
    _, (dx, dw, dbias, dtemperature, _) = run(x, w, bias, temperature, 5.0)
    assert np.isnan(dx[1]).all()
    assert np.isnan(dw).all()
    assert np.isnan(dbias).all()
    assert np.isnan(dtemperature[1]) or not scales
    assert not np.isnan(dx[0]).any()


def test_tokens_that_are_left_out_give_zero():
    """Whatever they hold: their entropies, gradients and effect on w are 0."""
    x, w, _, ids = draw("float32")
    bound = bound_for(3, *SHAPE, "float32")

    @jax.jit
    def program(x, w):
        options = {"return_entropy": True, "max_bytes": bound}
        found, pull = jax.vjp(lambda x, w: jk.linear_token_log_probs(x, w, ids, **options), x, w)
        return found, pull(jax.tree.map(lambda y: jnp.cos(jnp.arange(y.size)), found))

    got = program(np.where(ids[:, None] < 0, np.nan, x), w)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5), got, program(x, w))
    (log_probs, entropy), (dx, _) = got
    for rows in (log_probs, entropy, dx):
        np.testing.assert_array_equal(rows[ids < 0], 0)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_labels_beyond_the_classes(reduction):
    """Traced, they give NaN, and do so in the row's gradient."""
    x, w, _, label = draw("float32")
    label[4] = 33

    def mean(x, label):
        return jnp.sum(jk.linear_cross_entropy(x, w, label, reduction=reduction))

    loss, dx = jax.jit(jax.value_and_grad(mean))(x, label)
    assert np.isnan(loss)
    assert np.isnan(dx[4]).all()
    assert np.isfinite(np.delete(dx, 4, 0)).all()


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_bias_of_minus_infinity_hides_a_class(reduction):
    """Values and gradients are those of the other classes, also the derivative of a temperature."""
    x, w, _, label = draw("float32")
    label, bias = label % 30, np.zeros(33, np.float32)
    bias[30:] = -np.inf

    def loss(x, w, temperature, bias):
        options = {"bias": bias, "temperature": temperature, "reduction": reduction}
        return jnp.sum(jk.linear_cross_entropy(x, w, label, **options))

    @jax.jit
    def program(w, bias):
        reverse = jax.value_and_grad(loss, (0, 1, 2, 3))(x, w, 0.7, bias)
        return reverse, jax.jacfwd(loss, 2)(x, w, 0.7, bias)

    got, want = program(w, bias), program(w[:, :30], bias[:30])
    _, (_, dw, _, dbias) = got[0]
    np.testing.assert_array_equal(dw[:, 30:], 0)
    np.testing.assert_array_equal(dbias[30:], 0)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a[..., :30] if a.ndim else a, b, rtol=1e-5, atol=2e-6)


def test_bits_are_the_same_from_run_to_run():
    x, w, bias, label = draw("bfloat16")
    run = program(label, "mean", max_bytes=bound_for(4, *SHAPE, "bfloat16"))
    jax.tree.map(np.testing.assert_array_equal, run(x, w, bias), run(x, w, bias))


LOSSES_OF_FLOAT16 = {
    "linear": jk.linear_cross_entropy,
    "wide logits": functools.partial(jk.linear_cross_entropy, logits_dtype="float32"),
    "given logits": lambda x, w, *label, **options: jk.cross_entropy(x @ w, *label, **options),
}


@pytest.mark.parametrize("loss", LOSSES_OF_FLOAT16.values(), ids=LOSSES_OF_FLOAT16)
def test_float16_takes_the_cotangent_of_a_scaled_loss(loss):
    """1e5 tokens: a mean's gradient is below what float16 has, and 65536 times it is not."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((100_000, 4)).astype(np.float16)
    w = rng.standard_normal((4, 8)).astype(np.float16)
    label = rng.integers(0, 8, 100_000)

    def scaled(x, w):
        return 65536 * loss(x, w, label, reduction="mean")

    def plain(x, w):
        x, w = x.astype(jnp.float32), w.astype(jnp.float32)
        return 65536 * jk.cross_entropy(jk.matmul(x, w), label, reduction="mean")

    got, want = (jax.jit(jax.grad(f, (0, 1)))(x, w) for f in (scaled, plain))
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.max(np.abs(a - b)) < 0.002 * np.max(np.abs(b))


MEMORY = (1021, 64, 2048)  # a prime number of rows
# XLA of JAX 0.10 keeps several chunks at once on a CPU, as docs/losses.md says.
KEEPS_ONE_CHUNK = jax.__version_info__ >= (0, 11) or PLATFORM != "cpu"


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("chunks", [1, 2, 5])
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("where", [False, True])
def test_memory_stays_within_the_bound(reduction, chunks, capped, constant, where):
    options = {"logit_soft_cap": 30.0} if capped else {}
    options |= {"where": jnp.arange(MEMORY[2]) > 0} if where else {}
    about = {"w_is_constant": constant, "platform": PLATFORM}
    bound = bound_for(chunks, *MEMORY, "float32", **about)
    plan = jk.plan_linear_cross_entropy(*MEMORY, "float32", max_bytes=bound, **about)
    assert plan.chunks >= chunks
    rows, features, classes = MEMORY
    x, w = jnp.zeros((rows, features)), jnp.zeros((features, classes))
    label = jnp.zeros(rows, jnp.int32)

    def loss(x, w, label):
        losses = jk.linear_cross_entropy(
            *(x, w, label), reduction=reduction, max_bytes=bound, **options
        )
        return jnp.sum(losses)

    step = jax.value_and_grad(loss, 0 if constant else (0, 1))
    used = stats(step, x, w, label).temp_size_in_bytes
    limit = plan.total_bytes
    if reduction == "none":  # the forward pass has no sums
        forward = jk.plan_linear_cross_entropy(
            *MEMORY, "float32", max_bytes=bound, **{**about, "w_is_constant": True}
        )
        limit = max(limit, forward.total_bytes)
    assert limit <= bound
    if where and capped:  # as docs/losses.md says
        limit += 4 * plan.chunk_rows * classes
    assert used <= limit + SLACK or not KEEPS_ONE_CHUNK
    # A chunk's logits are there, so that the bound would notice another array of their size.
    assert used >= 4 * plan.chunk_rows * classes


def test_no_logits_of_tokens_are_kept():
    """Neither by the forward pass, nor between it and the gradient."""
    bound = bound_for(5, *MEMORY, "float32")
    rows, features, classes = MEMORY
    x, w, ids = jnp.zeros((rows, features)), jnp.zeros((features, classes)), jnp.zeros(rows, int)
    options = {"max_bytes": bound, "return_entropy": True}
    both = lambda x, w: jk.linear_token_log_probs(x, w, ids, **options)  # noqa: E731
    loss = lambda x, w: sum(jnp.sum(jnp.sin(y)) for y in both(x, w))  # noqa: E731
    plan = functools.partial(
        jk.plan_linear_cross_entropy, *MEMORY, "float32", max_bytes=bound, platform=PLATFORM
    )
    pulled = stats(jax.grad(loss, (0, 1)), x, w).temp_size_in_bytes
    if KEEPS_ONE_CHUNK:
        forward = plan(w_is_constant=True).total_bytes
        assert stats(both, x, w).temp_size_in_bytes <= forward + SLACK
        assert pulled <= max(plan().total_bytes, forward) + SLACK
    residuals = jax.tree.leaves(jax.vjp(both, x, w)[1])
    assert max(r.size for r in residuals) <= w.size


def test_a_constant_w_has_no_gradient():
    """Neither its product nor its sum is in the program, or in the plan."""
    x, w, _, label = draw("float32")
    bound = bound_for(3, *SHAPE, "float32", w_is_constant=True)
    with pytest.raises(ValueError, match="for sums over chunks"):
        jk.plan_linear_cross_entropy(*SHAPE, "float32", max_bytes=bound // 2, platform=PLATFORM)
    loss = functools.partial(jk.linear_cross_entropy, labels=label, reduction="sum")
    program = str(jax.make_jaxpr(jax.grad(functools.partial(loss, max_bytes=bound)))(x, w))
    assert "wanted=('kept', 'dx')" in program
    got = jax.jit(jax.grad(functools.partial(loss, max_bytes=bound)))(x, w)
    np.testing.assert_allclose(got, jax.grad(loss, (0, 1))(x, w)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.smoke
def test_mapped_rows_share_chunks():
    """A mean of each member, and the gradient of w of all of them: nothing has w's size for each member."""
    x, w = jnp.zeros((64, 2, 64)), jnp.zeros((64, 512))
    label = jnp.zeros((64, 2), jnp.int32)

    def loss(w):
        member = functools.partial(jk.linear_cross_entropy, reduction="mean")
        return jnp.sum(jax.vmap(member, (0, None, 0))(x, w, label))

    assert stats(jax.grad(loss), w).temp_size_in_bytes < 8 * w.nbytes


def test_the_truth_notices_mistakes():
    """Results that err by 2^-9 of themselves, or are those of a rounded w, fail, and right ones pass."""
    operands = draw("float32")
    loss, *gradients = checked(operands, "mean", None)
    x, w, bias, label = operands
    layer = Layer(x, w, bias, label, np.full(len(x), 1 / np.sum(label >= 0)))
    error = np.float32(2.0**-9)
    with pytest.raises(AssertionError, match="loss"):
        layer.check(loss * (1 + error), (), "mean")
    rounded = w.astype(oracle.storage("bfloat16")).astype(w.dtype)
    wrong_loss, *others = jax.device_get(program(label, "mean")(x, rounded, bias))
    with pytest.raises(AssertionError, match="loss"):
        layer.check(wrong_loss, (), "mean")
    for i, name in enumerate(("dx", "dw", "dbias")):
        for wrong in (gradients[i] * (1 + error), others[i]):
            with pytest.raises(AssertionError, match=name):
                layer.check(loss, [*gradients[:i], wrong, *gradients[i + 1 :]], "mean")
