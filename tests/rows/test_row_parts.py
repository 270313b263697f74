"""The two parts of row operations, for rows that are spread over devices: statistics, and the result from them.

test_partitioning.py reads the collectives from the HLO; here the kernels are compared with the truth, on the device
under test and over simulated ones.
"""

import cases
import jax
import jax.numpy as jnp
import masked_cases
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from row_parts_cases import check_all, check_attention

# Rows that some lanes, a warp and a block read, of every alignment.
COLS = (1, 3, 8, 33, 127, 128, 1000, 1024, 1027, 2050, 8192, 20001)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("kind", ["normal", "wide", "minus_inf", "offset", "special"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_parts_on_one_device(dtype, kind):
    """Special rows are of nothing but -inf, have one finite element, NaN or +inf."""
    xs = [cases.logits("normal" if kind == "special" else kind, 5, c, dtype) for c in COLS]
    for x in xs if kind == "special" else ():
        x[0], x[1, :-1] = -np.inf, -np.inf
        x[2, x.shape[-1] // 2], x[3, -1] = np.nan, np.inf
    check_all([(x, cases.cotangents(*x.shape, dtype)) for x in xs], dtype)


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
        is_finite = np.isfinite(oracle.widen(x)).all()
        some = [name for name in result if is_finite or "rms_norm" not in name]
        cases.check_results(x, t, result, dtype, operations=some, lanes=4)
