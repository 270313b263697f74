"""The two parts of row operations, for rows that are spread over devices: statistics, and the result from them.

test_partitioning.py reads the collectives from the HLO; here the kernels are held against the truth, on the device
under test and over simulated ones.
"""

import functools

import cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from row_parts_cases import check_all, check_attention, results_of

import jaxkernels as jk
from jaxkernels._core import registry

# Rows that some lanes, a warp and a block read, of every alignment.
COLS = (1, 3, 8, 33, 127, 128, 1000, 1024, 1027, 2050, 8192, 20001)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("kind", ["normal", "wide", "minus_inf", "offset"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_parts_on_one_device(dtype, kind):
    check_all(
        [(cases.logits(kind, 5, c, dtype), cases.cotangents(5, c, dtype)) for c in COLS], dtype
    )


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_parts_of_attention_scores(dtype):
    """Masks and biases that broadcast included."""
    check_attention(
        [
            masked_cases.case((2, 3, 5, k), dtype, mask=mask, bias=bias, scale=0.4)
            for k in (1, 37, 128, 1030, 4096)
            for mask, bias in (
                ((2, 1, 5, k), None),
                (None, (1, 3, 1, k)),
                ((2, 3, 5, k), (2, 1, 5, k)),
                (None, None),
            )
        ],
        dtype,
    )


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("cols", [3, 1000, 20001])
def test_statistics_of_special_rows(dtype, cols):
    """Rows of nothing but -inf add nothing to those of other devices; NaN and +inf make NaN of what they meet."""
    with cases.x64(dtype):
        x = np.zeros((4, cols), oracle.storage(dtype))
        x[0] = -np.inf
        x[1, cols // 2] = np.nan
        x[2, cols - 1] = np.inf
        x[3, :-1] = -np.inf
        got = np.asarray(statistics(jnp.asarray(x), oracle.compute(dtype)))
        assert np.array_equal(got[0], [-np.inf, 0])
        assert np.isnan(got[1, 1])
        assert np.isnan(got[2, 1])
        assert np.array_equal(got[3], [0, 1])
        for name, function in (("softmax", jk.softmax), ("log_softmax", jk.log_softmax)):
            (y,) = results_of((f"{name}_fwd",), [(jnp.asarray(x),)])
            want = function(jnp.asarray(x))
            np.testing.assert_array_equal(oracle.widen(y), oracle.widen(want))


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [*((dtype, AxisType.Auto) for dtype in oracle.DTYPES), ("float32", AxisType.Explicit)],
    ids=str,
)
def test_rows_over_eight_devices(dtype, kind, cpu_devices):
    """Within the bounds of one device's kernels. Some devices have only -inf; one or several have +inf, also
    together with -inf, or NaN."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(kind,), devices=cpu_devices)
    x = cases.logits("normal", 11, 64, dtype)
    most = float(jnp.finfo(dtype).max)
    x[0] = -np.inf
    x[1, :56], x[1, 56:] = -np.inf, -300
    x[2, 5] = np.nan
    x[3, 17] = np.inf
    x[4, [1, 60]] = np.inf
    x[5, :8], x[5, 8] = -np.inf, np.inf
    x[6, :8], x[6, 8:16] = 300, -300
    x[7] = -most
    x[8, 1] = most
    x[9, 8:16], x[9, 20] = np.nan, np.inf
    xs = [x, cases.logits("wide", 16, 4096, dtype)]
    ts = [cases.cotangents(*x.shape, dtype) for x in xs]
    with cases.x64(dtype):
        columns, whole = (NamedSharding(mesh, spec) for spec in (P(None, "a"), P()))
        scalars = jax.device_put([oracle.row_scalars(t) for t in ts], whole)
        placed = jax.device_put((xs, ts), columns)
        results = jax.device_get(cases.all_operations(*placed, scalars))
    for x, t, result in zip(xs, ts, results, strict=True):
        of = cases.operands_of(x, t, result["softmax_fwd"], result["log_softmax_fwd"])
        for operation, operands in of.items():
            if np.isfinite(oracle.widen(x)).all() or "rms_norm" not in operation:
                oracle.check(result[operation], operation, *operands, accumulators=4)


def statistics(x, dtype):
    call = jax.ffi.ffi_call(registry.STATISTICS_TARGET, jax.ShapeDtypeStruct((len(x), 2), dtype))
    attributes = {"scale": np.float64(1), "has_mask": False, "all_sums": False}
    return jax.jit(functools.partial(call, operation="softmax_fwd", **attributes))(x)
