"""scaled_masked_softmax in programs: what they keep in memory, how they are exported, what bad input raises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ffi_calls import ffi_call
from masked_cases import case
from memory_stats import SLACK, stats

import jaxkernels as jk

FULL = (4, 2, 64, 128)
CASE = case(FULL, "float32", mask=(4, 1, 1, 128), bias=(1, 2, 64, 128))
SMALL = case((2, 3, 4, 5), "float32", mask=(2, 1, 1, 5), bias=(1, 3, 4, 5))
ours = functools.partial(jk.scaled_masked_softmax, scale=0.5, causal=True)


def operands(c, dtype="float32"):
    return jnp.asarray(c.scores, dtype), jnp.asarray(c.mask), jnp.asarray(c.bias, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_needs_no_temporary(dtype):
    """Neither mask, bias nor band are materialised, mapped or not."""
    x, mask, bias = operands(CASE, dtype)
    for function, arrays in (
        (ours, (x, mask, bias)),
        (ours, (x, mask[0, 0])),
        (ours, (x, None, bias[0])),
        (jax.vmap(ours, (0, 0, None)), (x, mask, bias[0])),
        (jax.vmap(ours, (1, None, 1), 1), (x, mask[:, 0], bias)),
    ):
        analysis = stats(function, *arrays)
        assert analysis.temp_size_in_bytes <= SLACK
        assert analysis.output_size_in_bytes <= x.nbytes + SLACK


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_backward_keeps_y_only(dtype):
    """One array of the size of the scores between the passes, and no other within them."""
    x, mask, bias = operands(CASE, dtype)
    y, pull = jax.vjp(lambda x: ours(x, mask, bias), x)
    (kept,) = jax.tree.leaves(pull)
    np.testing.assert_array_equal(kept, y)
    backward = stats(lambda pull, t: pull(t)[0], pull, x)
    assert backward.temp_size_in_bytes <= SLACK
    step = stats(lambda x, m, b, t: jax.vjp(lambda x: ours(x, m, b), x)[1](t)[0], x, mask, bias, x)
    assert step.temp_size_in_bytes <= x.nbytes + SLACK


def test_gradient_of_a_bias_needs_one_more_array():
    """The array is the gradient of the scores; its sum is the gradient of the bias."""
    x, mask, bias = operands(CASE)
    step = stats(lambda x, m, b, t: jax.vjp(lambda b: ours(x, m, b), b)[1](t)[0], x, mask, bias, x)
    # y, the gradient, and where XLA's CPU sums in parts, a few of the size of the bias
    assert step.temp_size_in_bytes <= 2 * x.nbytes + 2 * bias.nbytes + SLACK


CHECKS = [jax.export.DisabledSafetyCheck.custom_call("jaxkernels_rows")]


def abstract(*arrays):
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]


def test_export_for_other_platforms():
    """Plain HLO where there are no kernels; the same reference is held to the truth in test_masked_softmax.py."""
    shapes = abstract(*operands(SMALL))
    for function in (ours, functools.partial(ours, empty_rows="mean")):
        export = jax.export.export(jax.jit(function), platforms=["tpu"])
        assert "@jaxkernels_" not in export(*shapes).mlir_module()
    with pytest.raises(NotImplementedError, match=r"ffi.*masked_softmax_fwd.*tpu"):
        jax.export.export(
            jax.jit(functools.partial(ours, implementation="ffi")), platforms=["tpu"]
        )(*shapes)


X = jnp.ones((3, 4, 8))
ONES = np.ones((4, 8), bool)
WRONG = [
    # arguments, error, what its text has to contain
    pytest.param({"mask": np.ones((4, 8), np.int32)}, ValueError, "mask.*bool.*int32", id="int-mask"),
    pytest.param({"mask": X}, ValueError, "mask.*bool.*float32", id="float-mask"),
    pytest.param({"mask": "all"}, TypeError, "mask.*'all'", id="text-mask"),
    pytest.param({"mask": ONES[:3]}, ValueError, r"mask.*\(3, 8\).*\(3, 4, 8\)", id="mask-shape"),
    pytest.param({"bias": X[:, :, :3]}, ValueError, r"bias.*\(3, 4, 3\).*\(3, 4, 8\)", id="bias-shape"),
    pytest.param(
        {"mask": ONES, "bias": X[:2]}, ValueError, r"bias.*\(2, 4, 8\).*\(3, 4, 8\)", id="both-shapes"
    ),
    pytest.param({"bias": [1.0]}, TypeError, "bias.*list", id="list-bias"),
    pytest.param({"bias": X * 1j}, TypeError, "bias.*complex64", id="complex-bias"),
    pytest.param({"scale": jnp.ones(3)}, ValueError, r"scale.*\(3,\)", id="scale-shape"),
    pytest.param({"bias": ONES}, TypeError, "bias.*bool.*mask=", id="bool-bias"),
    pytest.param({"scale": 1j}, TypeError, "scale.*real.*complex64", id="complex-scale"),
    pytest.param({"scale": "half"}, TypeError, "scale.*'half'", id="text-scale"),
    pytest.param({"window": 1.5}, TypeError, r"window.*1\.5", id="float-window"),
    pytest.param({"window": (1, 2, 3)}, TypeError, r"window.*\(1, 2, 3\)", id="long-window"),
    pytest.param({"window": (1, "2")}, TypeError, r"window.*'2'", id="text-window"),
    pytest.param({"window": -1}, ValueError, r"window.*-1", id="negative-window"),
    pytest.param({"window": (2, -3)}, ValueError, r"window.*-3", id="negative-side"),
    pytest.param({"empty_rows": "nan"}, ValueError, "'zero' or 'mean'.*'nan'", id="empty-rows"),
    pytest.param({"tier": "grid"}, ValueError, "tier.*'block'.*'grid'", id="tier"),
    pytest.param({"implementation": "cuda"}, ValueError, "'xla'.*'cuda'", id="implementation"),
    pytest.param({"implementation": "xla", "tier": "block"}, ValueError, "'block'", id="xla-with-tier"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "text"), WRONG)
def test_wrong_argument(arguments, error, text):
    with pytest.raises(error, match=text):
        jk.scaled_masked_softmax(X, **arguments)
    with pytest.raises(error, match=text):
        jax.jit(lambda x: jk.scaled_masked_softmax(x, **arguments))(X)


@pytest.mark.parametrize(
    ("scores", "error", "text"),
    [
        ([[1.0]], TypeError, "scores.*list"),
        (jnp.ones(5), ValueError, r"scores.*\(\.\.\., q, k\).*\(5,\)"),
        (jnp.ones(()), ValueError, r"scores.*\(\)"),
        (jnp.ones((2, 3), jnp.int32), TypeError, "scores.*float32.*int32"),
        (jnp.ones((2, 3), bool), TypeError, "scores.*bool"),
        (jnp.ones((2, 3), jnp.complex64), TypeError, "scores.*complex64"),
        (jnp.ones((2, 3), "float8_e4m3fn"), TypeError, "scores.*float8_e4m3fn"),
    ],
    ids=str,
)
def test_wrong_scores(scores, error, text):
    with pytest.raises(error, match=text):
        jk.scaled_masked_softmax(scores)


def test_forced_tier_that_cannot_hold_the_row():
    """A ValueError while tracing, the plan's own words; the gradient needs more than the forward pass."""
    long = jax.ShapeDtypeStruct((2, 3, 100_000), jnp.bfloat16)
    with pytest.raises(ValueError, match="tier 'warp' cannot hold a row"):
        jax.eval_shape(functools.partial(ours, tier="warp"), long)
    fits = functools.partial(
        jk.plan_softmax,
        dtype="bfloat16",
        operation="masked_softmax_fwd",
        device="h200",
        tier="warp",
    )
    cols = max(c for c in range(512, 8192, 512) if c == 512 or _fits(fits, c))
    x = jax.ShapeDtypeStruct((2, 3, cols), jnp.bfloat16)
    forced = functools.partial(ours, tier="warp")
    jax.eval_shape(forced, x)
    with pytest.raises(ValueError, match="tier 'warp' cannot hold a row"):
        jax.eval_shape(jax.grad(lambda x: jnp.sum(forced(x).astype(jnp.float32))), x)


def _fits(plan, cols):
    try:
        plan((2, cols))
    except ValueError:
        return False
    return True


BAND = {"scale": 1.0, "left": 0, "right": 0, "from_end": True, "all_sums": False}
MASKED, BIASED = "masked_softmax_fwd", "biased_softmax_fwd"


@pytest.mark.parametrize(
    ("shapes", "operation", "has_mask", "texts"),
    [
        ([((2, 3), "bool")], MASKED, True, ()),
        ([((3, 3), "bool")], MASKED, True, ("mask", "(3, 3)")),
        ([((2, 1), "bool")], MASKED, True, ("mask", "(2, 1)")),
        ([((1, 2, 3), "bool")], MASKED, True, ("mask", "(1, 2, 3)")),
        ([((2, 3), "float32")], MASKED, True, ("mask", "bool", "float32")),
        ([((2, 3), "bfloat16")], BIASED, False, ("bias", "float32", "bfloat16")),
        ([((3,), "float32")], BIASED, False, ("bias", "(3,)")),
        ([((2, 3), "bool")], MASKED, False, ("number", "1", "2")),
        ([], BIASED, True, ("number", "3", "1")),
    ],
    ids=str,
)  # fmt: skip
def test_handlers_check_masks_and_biases(shapes, operation, has_mask, texts):
    """As only a broken Python layer could call them: an error that names the operand, not a crash."""
    result = ((2, 3), "float32")
    attributes = {"operation": operation, **BAND, "has_mask": has_mask}
    if not texts:  # the right call, so that the wrong ones fail for their own reason
        made = [jnp.ones(shape, dtype) for shape, dtype in (result, *shapes)]
        run = jax.ffi.ffi_call("jaxkernels_rows", jax.ShapeDtypeStruct(*result))
        assert jax.jit(lambda *a: run(*a, tier="auto", **attributes))(*made).shape == (2, 3)
        return
    text = ffi_call("jaxkernels_rows", [result, *shapes], result, **attributes)
    assert "INVALID_ARGUMENT" in text
    assert all(part in text for part in texts), text
