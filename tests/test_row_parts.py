"""The two parts of row operations, for rows that are spread over devices: statistics, and the result from them.

What crosses the network is read from the HLO in test_partitioning.py; here the kernels are held against the truth, on
the device under test and over simulated ones.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import oracle
import pytest
import tolerance
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels import _row_parts

# Rows that a warp reads and rows that a block reads, of every alignment.
COLS = (1, 3, 8, 33, 127, 128, 1000, 1024, 1027, 2050, 8192, 20001)


def in_parts(operation, *operands, scale=1.0, has_mask=False):
    """The operation in two parts, on the one device under test."""
    parts = _row_parts.Parts(operation, operation.endswith("_fwd"), scale, has_mask)
    mesh = jax.make_mesh((1,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    apply = jax.shard_map(
        lambda *operands: _row_parts.apply(parts, operands, ("a",)),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(),
    )
    return apply(*operands)


def operands_of(operation, x, t):
    if operation.endswith("_fwd"):
        return (x,)
    forward = "softmax_fwd" if operation.startswith("softmax") else "log_softmax_fwd"
    return oracle.truth(forward, x).astype(x.dtype), t


@pytest.mark.parametrize("kind", ["normal", "wide", "minus_inf", "offset"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_parts_on_one_device(dtype, kind):
    pairs = [(cases.logits(kind, 5, c, dtype), cases.cotangents(5, c, dtype)) for c in COLS]
    calls = [(op, operands_of(op, x, t)) for x, t in pairs for op in oracle.OPERATIONS]
    with cases.x64(dtype):
        program = jax.jit(
            lambda all: [in_parts(op, *o) for (op, _), o in zip(calls, all, strict=True)]
        )
        results = jax.device_get(program([operands for _, operands in calls]))
    for (operation, operands), got in zip(calls, results, strict=True):
        lanes = cases.accumulators(operation, operands[0].shape, dtype)
        tolerance.check(got, operation, *operands, accumulators=min(lanes, 32))


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_parts_of_attention_scores(dtype):
    """The same as the whole operation but for roundings, masks and biases that broadcast included."""
    near = 8 * float(jnp.finfo(dtype).eps)
    some = [
        masked_cases.case((2, 3, 5, k), dtype, mask=mask, bias=bias, scale=0.4)
        for k in (1, 37, 128, 1030, 4096)
        for mask, bias in (
            ((2, 1, 5, k), None),
            (None, (1, 3, 1, k)),
            ((2, 3, 5, k), (2, 1, 5, k)),
            (None, None),
        )
    ]

    def program(c):
        operands = [o for o in (c.mask, c.bias) if o is not None]
        operation = "masked_softmax_fwd" if c.bias is None else "biased_softmax_fwd"
        has_mask = c.mask is not None
        y = in_parts(operation, c.scores, *operands, scale=c.scale, has_mask=has_mask)
        dx = in_parts("masked_softmax_grad", y, c.dy, scale=c.scale)
        whole, pull = jax.vjp(
            lambda x: jk.scaled_masked_softmax(x, c.mask, c.bias, scale=c.scale), c.scores
        )
        return y, dx, whole, pull(c.dy)[0]

    with cases.x64(dtype):
        results = jax.device_get(jax.jit(lambda: [program(c) for c in some])())
    for c, (y, dx, whole, whole_dx) in zip(some, results, strict=True):
        y, dx, whole, whole_dx = (oracle.widen(a) for a in (y, dx, whole, whole_dx))
        np.testing.assert_allclose(y, whole, rtol=near, atol=1e-7, err_msg=str(c))
        np.testing.assert_allclose(dx, whole_dx, rtol=near, atol=near / 4, err_msg=str(c))
        if c.mask is not None:
            assert np.all(y[~np.broadcast_to(c.mask, y.shape)] == 0)


def test_rows_that_see_nothing_are_zero():
    """As with the whole operation: no NaN, and a gradient of zero, whatever lies under the mask."""
    mask = np.zeros((1, 1, 4, 40), bool)
    mask[..., 2, :] = True
    scores = np.where(mask, 1.0, np.nan).astype(np.float32)
    y = in_parts("masked_softmax_fwd", scores, mask, scale=0.5, has_mask=True)
    dx = in_parts("masked_softmax_grad", y, scores, scale=0.5)
    assert np.array_equal(y[0, 0, 2], np.full(40, np.float32(1 / 40)))
    assert not np.any(np.delete(np.asarray(y), 2, axis=2))
    assert not np.any(np.isnan(dx))


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax], ids=lambda f: f.__name__)
def test_rows_over_eight_devices(function, dtype, cpu_devices):
    """The distributed form of softmax and its gradient is within the bounds of one device's kernels."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    sharding = NamedSharding(mesh, P(None, "a"))
    x, t = cases.logits("wide", 16, 4096, dtype), cases.cotangents(16, 4096, dtype)

    def program(x, t):
        y, pull = jax.vjp(function, x)
        return y, pull(t)[0]

    with cases.x64(dtype):
        sharded = [jax.device_put(a, sharding) for a in (x, t)]
        y, dx = jax.device_get(jax.jit(program)(*sharded))
    name = function.__name__
    tolerance.check(y, f"{name}_fwd", x, accumulators=4)
    tolerance.check(dx, f"{name}_grad", y, t, accumulators=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: statistics(x, operation="tanh"), "unknown operation 'tanh'"),
        (lambda x: statistics(x, operation="softmax_grad"), "number of the operands: expected 2"),
        (
            lambda x: statistics(x, result=(4, 3)),
            r"shape of the statistics: expected \(4, 8\) with 2",
        ),
        (lambda x: statistics(x, dtype="bfloat16"), "dtype of the statistics: expected float32"),
        (
            lambda x: statistics(x, x[:2], operation="softmax_grad"),
            r"shape of the second operand: expected \(4, 8\)",
        ),
    ],
)
def test_handlers_refuse(call, message):
    """A call that Python would never make is an error of the handler, not a crash."""
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(call(jnp.ones((4, 8))))


def statistics(x, *others, operation="softmax_fwd", result=(4, 2), dtype="float32"):
    call = jax.ffi.ffi_call(_row_parts.STATISTICS_TARGET, jax.ShapeDtypeStruct(result, dtype))
    call = functools.partial(call, operation=operation, scale=np.float64(1), has_mask=False)
    return jax.jit(call)(x, *others)
