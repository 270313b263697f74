"""Calls of FFI targets past the Python layer, for tests of what the handlers say."""

import jax
import jax.numpy as jnp
import pytest


def ffi_call(target, shapes, result, **attributes):
    """Calls a target as only a broken Python layer could, and returns what the handler says."""
    operands = [jnp.ones(shape, dtype) for shape, dtype in shapes]
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(*result))
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*operands))
    return str(raised.value)
