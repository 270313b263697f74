"""jaxkernels.flax in 16 bits: what takes flash attention, what does not, and that layers give what they gave."""

import functools

import attention_cases as cases
import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flash_cases import SIZES

from jaxkernels.flax import dot_product_attention

GROUPED = SIZES["grouped"]
FLASH = "jaxkernels_flash_attention"


@pytest.fixture(autouse=True)
def _flash(monkeypatch):
    flash_cases.take_flash(monkeypatch)


def takes_flash(*operands, **options):
    program = jax.make_jaxpr(functools.partial(dot_product_attention, **options))(*operands)
    return FLASH in str(program)


OPERANDS = cases.operands(GROUPED, "bfloat16")
TAKES = {
    "plain": {},
    "linen": {"force_fp32_for_softmax": False, "deterministic": True, "dropout_rate": 0.5},
    "causal": {"is_causal": True, "window": (4, 0)},
    "mask": {"mask": np.ones((GROUPED.T, GROUPED.S), np.float32)},
    "bias": {"bias": jnp.zeros((GROUPED.N, 1, 1), "bfloat16")},
}
TAKES_NOT = {
    "float32-softmax": {"force_fp32_for_softmax": True},
    "dropout": {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)},
    "precision": {"precision": "high"},
    "mean": {"empty_rows": "mean"},
    "pinned": {"implementation": "xla"},
    "hook": {"einsum_dot_general": jax.lax.dot_general},
    "wide-bias": {"bias": np.zeros((GROUPED.N, 1, 1), np.float32)},
    "dtype": {"dtype": jnp.float32},
    "later-keys": {"window": (4, 4)},
}


@pytest.mark.parametrize("name", [*TAKES, *TAKES_NOT])
def test_who_takes_flash(name):
    options = TAKES[name] if name in TAKES else TAKES_NOT[name]
    assert takes_flash(*OPERANDS, **options) == (name in TAKES)


def test_another_depth_of_values():
    q, k, v = OPERANDS
    assert not takes_flash(q, k, v[..., :8])


@pytest.mark.parametrize("leading", [(), (1,), (2, 1), (1, 1, 2)])
def test_any_leading_dimensions(leading):
    """Compares with our own kernels; mask and bias broadcast along different dimensions."""
    members = int(np.prod(leading))
    sizes = cases.Sizes(members, 16, 32, 4, 2, 16)
    q, k, v = (x.reshape(*leading, *x.shape[1:]) for x in cases.operands(sizes, "bfloat16"))
    rng = np.random.default_rng(3)
    mask = rng.random((*leading[:1], *(1,) * max(len(leading) - 1, 0), 1, 16, 32)) < 0.6
    bias = jnp.asarray(rng.standard_normal((*leading[-1:], 4, 1, 32)), "bfloat16")
    run = functools.partial(dot_product_attention, bias=bias, mask=mask)
    assert takes_flash(q, k, v, bias=bias, mask=mask)
    got = np.asarray(run(q, k, v), np.float32)
    want = np.asarray(run(q, k, v, implementation="ffi"), np.float32)
    assert np.abs(got - want).max() <= 2.0**-6 * np.abs(want).max()
