"""Runs row operations in two parts on one device, and compares them with the truth; for the tests and the sanitizer."""

import dataclasses
import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._rows import calls, contract, logsumexp


def in_parts(operation, *operands, scale=1.0, has_mask=False):
    """The operation in two parts, on the one device under test."""
    options = {"scale": scale, "has_mask": has_mask, "epsilon": oracle.EPSILON}
    kernel = getattr(logsumexp, operation, None)
    given = contract.OPERATIONS[operation], kernel and kernel.from_statistics
    mesh = jax.make_mesh((1,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    apply = jax.shard_map(
        lambda *operands: calls.in_parts(*given, operands, ("a",), **options),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(),
    )
    return apply(*operands)


def _operands_of(operation, x, t):
    y, log_y = (oracle.truth(f, x).astype(x.dtype) for f in ("softmax_fwd", "log_softmax_fwd"))
    return cases.operands_of(x, t, y, log_y)[operation]


@functools.partial(jax.jit, static_argnums=0)
def results_of(operations, operands):
    """Many operations in parts, in one program."""
    return [in_parts(op, *o) for op, o in zip(operations, operands, strict=True)]


def check_all(pairs, dtype):
    """Runs all operations in parts on (x, t) pairs and holds each result against the truth."""
    calls = [(op, _operands_of(op, x, t)) for x, t in pairs for op in oracle.OPERATIONS]

    with cases.x64(dtype):
        results = results_of(tuple(op for op, _ in calls), [operands for _, operands in calls])
        results = jax.device_get(results)
    for (operation, operands), got in zip(calls, results, strict=True):
        lanes = min(cases.accumulators(operation, operands[0].shape, dtype), 8)
        oracle.check(got, operation, *operands, accumulators=lanes)


def check_attention(some, dtype):
    """Runs cases without a band in parts: results are those of the whole operation, within a few roundings."""
    near = 8 * float(jnp.finfo(dtype).eps)

    def spoiled(c):  # hidden scores do not matter
        scores = (
            c.scores if c.mask is None else np.where(c.mask, c.scores, c.scores.dtype.type("nan"))
        )
        return dataclasses.replace(c, scores=scores)

    def program(c):
        operands = [o for o in (c.mask, c.bias) if o is not None]
        operation = "masked_softmax_fwd" if c.bias is None else "biased_softmax_fwd"
        y = in_parts(operation, c.scores, *operands, scale=c.scale, has_mask=c.mask is not None)
        dx = in_parts("masked_softmax_grad", y, c.dy, scale=c.scale)
        whole, pull = jax.vjp(
            lambda x: jk.scaled_masked_softmax(x, c.mask, c.bias, scale=c.scale), c.scores
        )
        return y, dx, whole, pull(c.dy)[0]

    some = list(map(spoiled, some))
    with cases.x64(dtype):
        results = jax.device_get(jax.jit(lambda: [program(c) for c in some])())
    for c, result in zip(some, results, strict=True):
        y, dx, whole, whole_dx = (oracle.widen(a) for a in result)
        np.testing.assert_allclose(y, whole, rtol=near, atol=1e-7, err_msg=str(c))
        np.testing.assert_allclose(dx, whole_dx, rtol=near, atol=near / 4, err_msg=str(c))
        if c.mask is not None:
            assert np.all(y[~np.broadcast_to(c.mask, y.shape)] == 0)
