"""jaxkernels.flax.dot_product_attention, argument by argument, against Flax's own functions.

Flax computes in the dtype of its inputs, so float32 results are compared to within float32 rounding, and equality is
asserted where it is meant: which weights dropout drops, what hooks are given.
"""

import functools
import inspect
import subprocess
import sys

import attention_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SIZES, Truth, check
from flax_layers import (
    BFLOAT16,
    KEY,
    LINEN,
    MEAN,
    NNX,
    X,
    all_close,
    close,
    linen_layer,
    linen_variables,
    masks,
)

from jaxkernels.flax import dot_product_attention

pytestmark = pytest.mark.usefixtures("exact_products")


@pytest.mark.parametrize("broadcast", [True, False])
def test_dropout_drops_what_flax_drops(broadcast):
    """One weight is given per value, so that the result shows the weights as they were multiplied."""
    q, k, _ = cases.operands(SIZES["heads"])
    s = SIZES["heads"]
    value = np.broadcast_to(np.eye(s.S, dtype=np.float32)[:, None], (s.B, s.S, s.N, s.S))
    options = {"dropout_rng": KEY, "dropout_rate": 0.4, "broadcast_dropout": broadcast}
    got, want = (np.asarray(f(q, k, value, **options)) for f in (dot_product_attention, LINEN))
    np.testing.assert_array_equal(got == 0, want == 0)
    assert 0.2 < (got == 0).mean() < 0.6
    close(got, want)
    patterns = (got == 0).swapaxes(1, 2).reshape(-1, s.T, s.S)
    assert (patterns == patterns[0]).all() == broadcast
    still = dot_product_attention(q, k, value, **options, deterministic=True)
    close(still, LINEN(q, k, value))


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_result_against_the_truth(dtype):
    """Without the flag of linen, scores and softmax are float32."""
    q, k, v = cases.operands(SIZES["grouped"], dtype)
    options = cases.arguments(SIZES["grouped"])
    options = {name: options["everything"][name] for name in ("bias", "mask", "scale", "is_causal")}
    given = options | {name: jnp.asarray(options[name]) for name in ("bias", "mask")}
    arrays = [jnp.asarray(x) for x in (q, k, v)]
    for mode in ("zero", "mean"):
        got = dot_product_attention(*arrays, **given, window=(3, 1), empty_rows=mode)
        assert got.dtype == jnp.dtype(dtype)
        want = Truth(q, k, v, dtype, mode, **options, local_window_size=(3, 1))
        check(got, want.result(), mode)


def test_queries_without_keys_give_zero_unless_told_otherwise():
    q, k, v = cases.operands(SIZES["heads"])
    mask = np.ones((1, 1, SIZES["heads"].T, SIZES["heads"].S))
    mask[..., 2, :] = 0
    got, mean, want = (f(q, k, v, mask=mask) for f in (dot_product_attention, MEAN, LINEN))
    assert (got[:, 2] == 0).all()
    close(mean, want)
    others = np.arange(SIZES["heads"].T) != 2
    close(got[:, others], want[:, others])


def test_any_batch_dimensions_and_another_value_depth():
    def operands(*batch):
        rng = np.random.default_rng(4)
        shapes = (5, 4, 8), (7, 4, 8), (7, 4, 3), (1, 5, 7)
        *qkv, mask = (rng.standard_normal((*batch, *x)).astype(np.float32) for x in shapes)
        return *qkv, rng.standard_normal((4, 1, 7)).astype(np.float32), mask > -0.5

    batches = operands(), operands(2), operands(2, 3)
    got, want = (
        jax.jit(lambda batches, f=f: [f(*x) for x in batches])(batches)
        for f in (dot_product_attention, LINEN)
    )
    assert [x.shape for x in got] == [(5, 4, 3), (2, 5, 4, 3), (2, 3, 5, 4, 3)]
    all_close(got, want)


def test_masks_go_by_truth():
    """A mask shows every key where it is not zero, as jnp.where would: also if negative or NaN."""
    q, k, v = cases.operands(SIZES["heads"])
    mask = np.array([-0.5, 0.0, 1.0, np.nan, 0.0, 2.0, -0.0], np.float32)
    close(dot_product_attention(q, k, v, mask=mask), LINEN(q, k, v, mask=mask))


def test_dtypes_are_promoted():
    q, k, v = cases.operands(SIZES["heads"])
    mixed = (q.astype(jnp.bfloat16), k, v)
    close(dot_product_attention(*mixed), LINEN(*mixed))
    assert dot_product_attention(q, k, v, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    asked = []

    def promote(arrays, dtype):
        asked.append(dtype)
        return tuple(jnp.asarray(x, jnp.float32) for x in arrays)

    got = dot_product_attention(*mixed, dtype=jnp.float16, promote_dtype=promote)
    assert asked == [jnp.float16]
    close(got, LINEN(*mixed))


def test_einsum_hooks_are_given_what_flax_gives_them():
    calls = {LINEN: [], MEAN: []}

    def hooks(calls):
        def einsum(*args):
            calls.append(args)
            return jnp.einsum(*args) * 1.5

        return {
            "qk_attn_weights_einsum_cls": lambda: einsum,
            "attn_weights_value_einsum_cls": lambda: einsum,
        }

    variables = linen_variables()
    results = [
        linen_layer(f, **hooks(calls[f])).apply(variables, X, mask=masks()["float"]) for f in calls
    ]
    close(results[1], results[0])
    assert [c[0] for c in calls[MEAN]] == ["...qhd,...khd->...hqk", "...hqk,...khd->...qhd"]
    for got, want in zip(calls[MEAN], calls[LINEN], strict=True):
        close(got[1:], want[1:])
    np.testing.assert_array_equal(calls[MEAN][0][1], calls[LINEN][0][1])  # the scaled queries


def test_einsum_dot_general_is_used():
    q, k, v = cases.operands(SIZES["heads"])
    seen = []

    def dot_general(lhs, rhs, dimension_numbers, precision=None, **options):
        seen.append(precision)
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, **options) * 1.5

    options = {"einsum_dot_general": dot_general, "precision": "highest"}
    got = dot_product_attention(q, k, v, **options)
    assert seen == ["highest", "highest"]
    close(got, LINEN(q, k, v, **options))


def test_softmax_is_forced_to_float32_whatever_a_hook_returns():
    q, k, v = (x.astype(jnp.bfloat16) for x in cases.operands(SIZES["heads"]))
    options = {"einsum_dot_general": jax.lax.dot_general, "force_fp32_for_softmax": True}
    got, want = (f(q, k, v, **options) for f in (dot_product_attention, LINEN))
    assert got.dtype == jnp.float32
    close(got, want, BFLOAT16)


def test_precision_goes_to_xla_and_its_absence_means_float32():
    x = jnp.zeros((1, 4, 2, 8))

    def products(precision):
        with jax.default_matmul_precision("bfloat16"):
            f = functools.partial(dot_product_attention, precision=precision)
            lines = jax.jit(f).lower(x, x, x).as_text().splitlines()
        return [line for line in lines if "dot_general" in line or "sgemm" in line]

    assert all("HIGHEST" in line or "sgemm" in line for line in products(None))
    assert all("HIGH," in line for line in products(jax.lax.Precision.HIGH))
    assert len(products(None)) == len(products("high")) == 2


def test_the_layers_see_every_argument():
    """linen's layer passes only what it finds in the signature, and silently leaves out the rest."""
    ours = inspect.signature(dot_product_attention).parameters
    names = list(ours)
    for theirs in (LINEN, NNX):
        parameters = list(inspect.signature(theirs).parameters)
        assert names[:12] == parameters[:12]
        assert set(parameters) <= set(names)
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[12:])
    assert set(inspect.signature(MEAN).parameters) == set(names)


X4 = np.zeros((2, 5, 4, 8), np.float32)
einsum = jnp.einsum
WRONG = [
    ({"key": X4[:, :, :3], "value": X4[:, :, :3]}, ValueError, "multiple.*4 and 3"),
    ({"key": X4[:1]}, ValueError, "batch"),
    ({"key": X4[..., :3]}, ValueError, "depth"),
    ({"value": X4[:, :2]}, ValueError, "length"),
    ({"value": X4[0]}, ValueError, "rank"),
    ({"mask": np.ones((3, 1, 5, 5))}, ValueError, r"mask.*\(3, 1, 5, 5\)"),
    ({"bias": np.ones((1, 2, 4, 5, 5))}, ValueError, "bias"),
    ({"dropout_rate": 0.5}, ValueError, "dropout_rng"),
    ({"module": "layer"}, TypeError, "module.*str"),
    ({"qk_attn_weights_einsum": einsum}, ValueError, "together"),
    ({"attn_weights_value_einsum": einsum}, ValueError, "together"),
    (
        {
            "qk_attn_weights_einsum": einsum,
            "attn_weights_value_einsum": einsum,
            "precision": "highest",
        },
        ValueError,
        "exclude",
    ),
    (
        {
            "qk_attn_weights_einsum": einsum,
            "attn_weights_value_einsum": einsum,
            "key": X4[:, :, :2],
            "value": X4[:, :, :2],
        },
        ValueError,
        "as many key heads",
    ),
    ({"empty_rows": None}, ValueError, "None"),
    ({"implementation": "cudnn"}, ValueError, "cudnn"),
    ({"window": -1}, ValueError, "-1"),
    ({"dtype": jnp.complex64}, TypeError, "complex64"),
]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("changed", "error", "text"), WRONG, ids=lambda x: "-".join(x) if isinstance(x, dict) else ""
)
def test_errors(changed, error, text):
    with pytest.raises(error, match=text):
        dot_product_attention(**{"query": X4, "key": X4, "value": X4, **changed})


def test_flax_is_imported_only_when_asked_for():
    code = "import sys, jaxkernels; assert 'flax' not in sys.modules; assert 'optax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
