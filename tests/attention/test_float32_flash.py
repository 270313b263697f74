"""Float32 attention on Hopper's tensor cores: its plan, its index arithmetic, and its results on a GPU."""

import functools
import math
import re
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
from jaxkernels._attention.problem import Call, present
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


def gradients(q, k, v, dy, **options):
    """The cotangents of q, k and v by the kernels; options are those of `attend`, with a positive scale."""
    names = ("bias", "mask", "query_seq_lengths", "key_value_seq_lengths")
    given = checks.as_operands(q, k, v, *(options.get(name) for name in names))
    band = band_of(
        options.get("is_causal", False), options.get("local_window_size"), from_end=False
    )
    call = Call(given.names(), options.get("scale", heads.default_scale(q.shape[-1])), band)
    y, rows = tensor_cores.kernel_form(call, present(given))
    return tensor_cores.kernel_backward(call, [*present(given), y, rows, dy])


@pytest.mark.parametrize("name", SIZES)
def test_gradients(hopper, name):
    sizes = SIZES[name]
    operands, dy = cases.operands(sizes), cases.operands(sizes, seed=1)[0]
    sets = {key: x for key, x in arguments(sizes).items() if x.get("scale", 1) > 0}
    run = jax.jit(lambda *x: {key: gradients(*x, **some) for key, some in sets.items()})
    for key, found in run(*operands, dy).items():
        want = flash_cases.truth(operands, "float32", **sets[key]).gradients(dy)
        for letter, x in zip("qkv", found[:3], strict=True):
            check(x, want[letter], f"{key}: d{letter}")
        for x in found[3:]:
            shared = tuple(i for i, size in enumerate(x.shape) if size == 1)
            total = [part.sum(shared, keepdims=True) for part in want["scores"]]
            check(x, total, f"{key}: dbias")


@pytest.mark.parametrize("name", attention_pairs.NAMES)
def test_errors_of_gradients(hopper, name):
    *given, bias = attention_pairs.operands(name, 512, np.random.default_rng(1))
    scale = 1 / math.sqrt(given[0].shape[1])
    want, single = (attention_pairs.exact(*given, scale, bias, t) for t in (np.float64, np.float32))
    options = {} if bias is None else {"bias": bias}
    found = jax.jit(gradients)(*(x[None, :, None] for x in given), **options)
    for key, x in zip(("dQ", "dK", "dV", "dBias"), found, strict=False):
        own = np.asarray(x)[0, 0] if key == "dBias" else np.asarray(x)[0, :, 0]
        mine, theirs = (attention_pairs.errors(y, want[key]) for y in (own, single[key]))
        assert mine[0] <= max(1.05 * theirs[0], 5e-7), (key, mine, theirs)


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


def compiled(tmp_path, source, *flags):
    """A program of a C++ file of tests/support."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "program"
    command = [
        compiler,
        "-std=c++20",
        "-O2",
        *flags,
        f"-I{ROOT / 'ffi'}",
        ROOT / "tests/support" / source,
    ]
    subprocess.run([*command, "-o", program], check=True)
    return program


def test_index_arithmetic(tmp_path):
    """The host checks tiles, bands, places and fragments, since each is shared with the kernels."""
    program = compiled(tmp_path, "attention_tiles.cc")
    found = subprocess.run([program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


# batch, queries, keys, heads, heads of keys, depth, depth of values, band, and what else there is:
# b(ias), m(ask), q and k (lengths)
SIMULATED = (
    "2 300 257 4 2 64 64 -1000000000 1000000000 _",
    "1 260 129 2 1 128 128 -1000000000 1000000000 bm",
    "1 300 300 2 1 96 70 -20 5 k",
    "2 190 257 2 1 32 17 -1000000000 1000000000 bk",
    "2 129 127 2 1 63 8 -1000000000 0 bmqk",
)


def test_simulated_kernels(tmp_path):
    """A CPU runs the kernels thread by thread, with a model of copies and tensor cores."""
    include = Path("/usr/local/cuda/include")
    if not include.exists():
        pytest.skip("no CUDA headers")
    # A kernel's shared memory is thread-local here, and has no initializer.
    flags = ("-fno-extern-tls-init", f"-I{ROOT / 'tests/support/simulator'}", f"-I{include}")
    program = compiled(tmp_path, "simulator/attention.cc", *flags)
    for case in SIMULATED:
        found = subprocess.run(
            [program, *case.split()], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, f"{case}: {found.stdout}"


def test_calls_have_the_attributes_that_the_handlers_read():
    """Lowered for a GPU on any machine."""
    read = set(
        re.findall(r'Attr<\S+>\("(\w+)"\)', (ROOT / "ffi/attention/handlers.cc").read_text())
    )
    sizes = SIZES["grouped"]
    operands = (*cases.operands(sizes), cases.operands(sizes)[0])
    program = jax.jit(lambda *x: gradients(*x, **cases.arguments(sizes)["everything"]))
    text = program.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    calls = re.findall(r"@(jaxkernels_\w+)\(.*?\) \{.*?backend_config = \{(.*?)\}", text)
    assert {target for target, _ in calls} == set(registry.ATTENTION_TARGETS)
    for _, attributes in calls:
        assert set(re.findall(r"(\w+) = ", attributes)) == read


H200 = devices.limits_of("h200")
plan = functools.partial(registry.cpu_module.plan_attention_kernel, limits=H200)


def test_plan_keeps_the_scratch_small():
    found = plan(384, 384, 384, 4, 4, 32, 32)
    assert found.groups * found.batch_of_group >= 384
    assert found.scratch_bytes < 100e6
    assert found.sm_count == H200.sm_count <= found.tiles
    whole = plan(4, 2048, 2048, 16, 16, 64, 64)
    assert (whole.groups, whole.padded_depth, whole.tiles) == (1, 64, 1024)
    assert plan(1, 8192, 8192, 16, 16, 128, 128).padded_depth == 128
    assert plan(384, 384, 384, 4, 4, 32, 32, backward=True).scratch_bytes < 100e6


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
