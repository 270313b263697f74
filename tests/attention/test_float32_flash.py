"""Float32 attention on Hopper's tensor cores: its plan, its index arithmetic, and its results on a GPU."""

import functools
import math
import shutil
import subprocess
from pathlib import Path

import attention_cases as cases
import attention_pairs
import flash_cases
import jax
import numpy as np
import pytest
from attention_cases import Sizes, check

from jaxkernels._attention import checks, heads, tensor_cores
from jaxkernels._core import devices, registry
from jaxkernels._rows.masked_kernels import band_of

ROOT = Path(__file__).parents[2]
SIZES = {
    "tiles": Sizes(2, 256, 256, 4, 4, 64),
    "grouped": Sizes(2, 130, 257, 6, 2, 32),
    "one-key-head": Sizes(1, 300, 129, 4, 1, 128),
    "shallow": Sizes(2, 37, 53, 2, 2, 8),
    "decode": Sizes(1, 1, 513, 4, 2, 96),
    "odd-depth": Sizes(2, 129, 127, 2, 1, 65),
}


def attend(
    q, k, v, bias=None, mask=None, query_seq_lengths=None, key_value_seq_lengths=None, **options
):
    """The result and the log-sum-exps, with the arguments of `dot_product_attention`."""
    given = checks.as_operands(q, k, v, bias, mask, query_seq_lengths, key_value_seq_lengths)
    scale = options.pop("scale", heads.default_scale(q.shape[-1]))
    causal = options.pop("is_causal", False)
    band = band_of(causal, options.pop("local_window_size", None), from_end=False)
    assert not options
    return tensor_cores.attention(given, scale, band)


def arguments(sizes):
    """Sets of arguments; some hide all keys of a query."""
    found = cases.arguments(sizes)
    rng = np.random.default_rng(5)
    hidden = rng.standard_normal((1, sizes.N, sizes.T, sizes.S)).astype(np.float32)
    hidden[rng.random(hidden.shape) < 0.3] = -np.inf
    hidden[:, 0, sizes.T // 2] = -np.inf
    return found | {"bias-infinite": {"bias": hidden}, "negative-scale": {"scale": -0.2}}


def check_all(sizes, seed, function):
    operands, sets = cases.operands(sizes, seed=seed), arguments(sizes)
    found = jax.jit(lambda *x: {name: function(*x, **some) for name, some in sets.items()})(
        *operands
    )
    for name, (y, sums) in found.items():
        truth = flash_cases.truth(operands, "float32", **sets[name])
        check(y, truth.result(), name)
        lengths = sets[name].get("query_seq_lengths", np.full(sizes.B, sizes.T))
        rows = np.arange(sizes.T) < np.reshape(lengths, (-1, 1, 1))
        want = np.where(rows, truth.log_sum_exp, -np.inf)
        np.testing.assert_allclose(sums, want, rtol=2e-6, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", SIZES)
def test_kernels(hopper, name):
    sizes = SIZES[name]
    text = jax.jit(attend).lower(*cases.operands(sizes)).as_text()
    assert "@jaxkernels_attention" in text
    check_all(sizes, 0, attend)


def test_kernels_on_slices(hopper):
    """Slices that XLA passes in place begin at any element."""
    sizes = SIZES["odd-depth"]

    def of_slices(q, k, v, **options):
        wide = (jax.numpy.pad(x, ((1, 0), (0, 0), (0, 0), (0, 0))) for x in (q, k, v))
        return attend(*(jax.lax.optimization_barrier(x)[1:] for x in wide), **options)

    check_all(sizes, 1, of_slices)


def test_plain_form():
    """Other devices compute the same results."""
    if jax.default_backend() == "gpu":
        pytest.skip("the kernels run here")
    check_all(SIZES["shallow"], 0, attend)


@pytest.mark.parametrize("length", [512, 8192])
@pytest.mark.parametrize("name", attention_pairs.NAMES)
def test_errors(hopper, name, length):
    """Relative errors are those of float32 for any distribution of the operands."""
    if length > 2048 and name not in attention_pairs.LONG:
        pytest.skip("the length matters for few distributions")
    q, k, v, do, bias = attention_pairs.operands(name, length, np.random.default_rng(1))
    given = q[:256], k, v, do[:256], 1 / math.sqrt(q.shape[1]), None if bias is None else bias[:256]
    want, single = (attention_pairs.exact(*given, t)["O"] for t in (np.float64, np.float32))
    heads_of = [x[None, :, None] for x in (q[:256], k, v)]
    y, _ = jax.jit(attend)(*heads_of, **({} if bias is None else {"bias": bias[:256]}))
    mine, theirs = (attention_pairs.errors(x, want) for x in (np.asarray(y)[0, :, 0], single))
    assert mine[0] <= max(1.05 * theirs[0], 5e-7), (mine, theirs)
    assert mine[1] <= max(2 * theirs[1], 5e-6), (mine, theirs)


def test_index_arithmetic(tmp_path):
    """The host checks tiles, bands, places and fragments, since each is shared with the kernels."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "tiles"
    source = ROOT / "tests" / "support" / "attention_tiles.cc"
    subprocess.run([compiler, "-std=c++20", "-I", ROOT / "ffi", source, "-o", program], check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


H200 = devices.limits_of("h200")
plan = functools.partial(registry.cpu_module.plan_attention_kernel, limits=H200)


def test_plan_keeps_the_scratch_small():
    found = plan(384, 384, 384, 4, 4, 32, 32)
    assert found.groups * found.batch_of_group >= 384
    assert found.scratch_bytes < 100e6
    assert found.grid_blocks == H200.sm_count <= found.tiles
    whole = plan(4, 2048, 2048, 16, 16, 64, 64)
    assert (whole.groups, whole.halves, whole.tiles) == (1, 1, 1024)
    assert plan(1, 8192, 8192, 16, 16, 128, 128).halves == 2
    assert plan(2, 1, 5, 2, 1, 65, 8).grid_blocks == 4


def test_plan_refuses_what_no_kernel_serves():
    for sizes, why in (
        ((1, 8, 8, 2, 2, 129, 64), "depths up to 128"),
        ((1, 8, 0, 2, 2, 64, 64), "nothing to compute"),
        ((1, 8, 8, 3, 2, 64, 64), "multiple of the heads of keys"),
    ):
        with pytest.raises(ValueError, match=why):
            plan(*sizes)
    with pytest.raises(ValueError, match="tensor cores"):
        registry.cpu_module.plan_attention_kernel(1, 8, 8, 2, 2, 8, 8, devices.limits_of("a100"))
