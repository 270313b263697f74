"""Our flash kernels, float32 on Hopper: their plan, their programs, and their results on a GPU."""

import dataclasses
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
import jax.numpy as jnp
import memory_stats
import numpy as np
import pytest
import raw_calls
import slice_cases
from attention_cases import Sizes
from cases import ON_GPU
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._attention import plain
from jaxkernels._core import devices, registry
from jaxkernels.flax import dot_product_attention as flax_attention

pytestmark = pytest.mark.filterwarnings("ignore:jaxkernels runs its pure-JAX reference")
ROOT = Path(__file__).parents[2]
SIZES = {
    "tiles": Sizes(1, 256, 256, 2, 2, 64),
    "grouped": Sizes(2, 130, 257, 6, 2, 32),
    "one-key-head": Sizes(1, 300, 129, 2, 1, 128),
    "shallow": Sizes(2, 37, 53, 2, 2, 8),
    "decode": Sizes(1, 1, 513, 4, 2, 96),
    "odd-depth": Sizes(2, 129, 127, 2, 1, 65),
}
pinned = functools.partial(jk.dot_product_attention, implementation="ffi_flash")


@pytest.fixture
def as_on_hopper(monkeypatch):
    """Traces and lowers as on a Hopper GPU, also on a machine without any."""
    if not ON_GPU:
        flash_cases.take_hopper(monkeypatch)
    elif devices.limits_of(None).compute_capability != 90:
        pytest.skip("this GPU is without Hopper's tensor cores")


def arguments(sizes):
    """Sets of arguments; some hide all keys of a query."""
    found = cases.arguments(sizes)
    rng = np.random.default_rng(5)
    hidden = rng.standard_normal((1, sizes.N, sizes.T, sizes.S)).astype(np.float32)
    hidden[rng.random(hidden.shape) < 0.3] = -np.inf
    hidden[:, 0, sizes.T // 2] = -np.inf
    found |= {"bias-infinite": {"bias": hidden}, "negative-scale": {"scale": -0.2}}
    return found | {"wide-window": {"local_window_size": (150, 20)}}


pulled = functools.partial(flash_cases.pulled, attention=pinned)


def check_all(sizes, attention=pinned):
    operands, dy, sets = cases.operands(sizes), cases.operands(sizes, seed=1)[0], arguments(sizes)
    run = {name: functools.partial(pulled, attention=attention, **x) for name, x in sets.items()}
    results = jax.jit(lambda *x: {name: one(*x) for name, one in run.items()})(*operands, dy)
    for name, result in results.items():
        flash_cases.check_pulled(result, operands, dy, name, **sets[name])


@pytest.mark.parametrize("name", SIZES)
def test_kernels(hopper, name):
    check_all(SIZES[name])


def test_kernels_on_slices(hopper):
    """Slices that XLA passes in place begin at any element."""

    def of_slices(q, k, v, *bias, **options):
        wide = (jnp.pad(x, ((1, 0), (0, 0), (0, 0), (0, 0))) for x in (q, k, v))
        return pinned(*(jax.lax.optimization_barrier(x)[1:] for x in wide), *bias, **options)

    check_all(SIZES["odd-depth"], of_slices)


def test_plain_form_in_their_place(monkeypatch):
    """The rules of the primitives, with the same residuals."""
    if ON_GPU:
        pytest.skip("the kernels run here")
    flash_cases.take_flash(monkeypatch)
    check_all(SIZES["shallow"])


def errors_of(name, length):
    """Errors of each result, by our kernels and by XLA at the highest precision."""
    *given, bias = attention_pairs.operands(name, length, np.random.default_rng(1))
    want = attention_pairs.exact(*given, 1 / math.sqrt(given[0].shape[1]), bias)
    options = {} if bias is None else {"bias": bias[None, None]}
    found = {key: [] for key in ("O", "dQ", "dK", "dV", "dBias") if key in want}
    for implementation in ("ffi_flash", "xla"):
        run = functools.partial(flash_cases.pulled, implementation=implementation)
        with jax.default_matmul_precision("highest"):
            y, _, gradients = jax.jit(run)(*(x[None, :, None] for x in given), **options)
        for key, x in zip(found, (y, *gradients), strict=True):
            own = np.asarray(x)[0, 0] if key == "dBias" else np.asarray(x)[0, :, 0]
            found[key].append(attention_pairs.errors(own, want[key]))
    return found


# XLA keeps 16 GiB of scores of the longest.
LENGTHS = [512, 8192, pytest.param(32768, marks=pytest.mark.xdist_group("large arrays"))]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", attention_pairs.NAMES)
def test_errors(hopper, name, length):
    """Relative errors are those of float32 for any distribution of the operands."""
    if length > 512 and name not in attention_pairs.LONG:
        pytest.skip("the length matters for few distributions")
    # dQ of "lognormal" reaches 1.51 over 32768 keys, with an error of 7.9e-6.
    most = 1.05 if length < 32768 else 2
    for key, (mine, theirs) in errors_of(name, length).items():
        assert mine[0] <= max(most * theirs[0], 5e-7), (key, mine, theirs)
        assert mine[1] <= max(2 * theirs[1], 5e-6) or key != "O", (key, mine, theirs)


# Functions of q, k, v (2, 1024, 4, 64) and a bias whose programs keep no scores, and the calls in each.
attention = jk.dot_product_attention


def gradient(function, *at):
    return jax.grad(lambda *x: jnp.sum(jnp.sin(function(*x))), at or (0, 1, 2))


def over_shards(q, k, v, b):
    mesh = jax.make_mesh((1,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs = (P("a"),) * 3 + (P(),)
    return jax.shard_map(attention, mesh=mesh, in_specs=specs, out_specs=P("a"))(q, k, v, b)


def scanned(q, k, v, b):
    return jax.lax.scan(lambda x, _: (attention(x, k, v, b), None), q, length=3)[0]


KEEPING_NONE = {
    "value": (attention, 1),
    "gradient": (gradient(attention, 0, 1, 2, 3), 2),
    "causal": (gradient(functools.partial(attention, is_causal=True)), 2),
    "window": (gradient(functools.partial(attention, local_window_size=9)), 2),
    "residual": (functools.partial(attention, return_residual=True), 1),
    "scale": (lambda *x: jax.grad(lambda s: jnp.sum(attention(*x, scale=s)))(-1.0), 2),
    "remat": (gradient(jax.checkpoint(attention), 3), 3),
    "scan": (gradient(scanned), 2),
    "vmap": (gradient(jax.vmap(attention, (0, 0, 0, None)), 0, 1, 2, 3), 2),
    "vmap of gradients": (jax.vmap(gradient(attention), (0, 0, 0, None)), 2),
    "shard_map": (gradient(over_shards), 2),
    "flax": (gradient(flax_attention, 0, 1, 2, 3), 2),
    "narrow bias": (lambda *x: gradient(attention, 3)(*x[:3], x[3].astype(jnp.bfloat16)), 2),
}
KEEPING_SCORES = {
    "forward mode": lambda *x: jax.jvp(attention, x, x),
    "second order": gradient(lambda *x: gradient(attention, 0)(*x)[0], 1),
    "bias of keys": lambda q, k, v, b: gradient(attention, 3)(q, k, v, b[:, :, :1]),
    "softmax": functools.partial(attention, implementation="ffi"),
    "mean": functools.partial(attention, empty_rows="mean"),
}


def text_for_cuda(function, *operands):
    return jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def largest_array(text):
    shapes = re.findall(r"tensor<((?:\d+x)+)b?f(?:16|32|64)>", text)
    return max(math.prod(map(int, shape[:-1].split("x"))) for shape in shapes)


@pytest.mark.parametrize("name", [*KEEPING_NONE, *KEEPING_SCORES])
def test_programs(as_on_hopper, name):
    """Lowered for a GPU on any machine, also under x64 and strict promotion."""
    function, calls = KEEPING_NONE.get(name, (KEEPING_SCORES.get(name), None))
    shape = (3, 2, 1024, 4, 64) if name.startswith("vmap") else (2, 1024, 4, 64)
    given = [jax.ShapeDtypeStruct(of, "float32") for of in [shape] * 3 + [(1, 4, 1024, 1024)]]
    text, scores = text_for_cuda(function, *given), 2 * 4 * 1024 * 1024
    assert (largest_array(text) < scores) == (calls is not None)
    if calls is not None:
        assert len(re.findall(r"custom_call @jaxkernels_attention", text)) == calls
        with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
            assert largest_array(text_for_cuda(function, *given)) < scores


def test_memory(hopper):
    """XLA's analysis of AlphaFold's pair bias, whose scores take 906 MB: beyond operands and results."""
    x, b = (
        jax.ShapeDtypeStruct(shape, "float32") for shape in ((384, 384, 4, 32), (1, 4, 384, 384))
    )
    both = lambda *given: flash_cases.pulled(*given[:4], attention, bias=given[4])  # noqa: E731
    assert memory_stats.stats(attention, x, x, x, b).temp_size_in_bytes < 100e6
    assert memory_stats.stats(both, x, x, x, x, b).temp_size_in_bytes < 100e6


# Sizes, the depth of values, the band, and letters for options: b(ias), m(ask), q and k (lengths),
# h(uge biases of rows with tiny cotangents), l(arge scores), x (a NaN in a key), n (NaN beyond the
# lengths), w(ide: 1e12 there), r(ows of dO spread over 2^-34).
OPEN = 10**9
SIMULATED = (
    (Sizes(1, 300, 257, 4, 2, 64), 64, (-OPEN, OPEN), "_"),
    (Sizes(1, 260, 129, 1, 1, 128), 128, (-OPEN, OPEN), "bm"),
    (Sizes(1, 300, 300, 2, 1, 96), 70, (-20, 5), "k"),
    (Sizes(2, 190, 257, 2, 1, 32), 17, (-OPEN, OPEN), "bk"),
    (Sizes(2, 129, 127, 2, 1, 63), 8, (-OPEN, 0), "bmqk"),
    (Sizes(1, 140, 200, 2, 2, 64), 64, (-OPEN, OPEN), "bh"),
    (Sizes(1, 140, 200, 2, 2, 64), 64, (-OPEN, OPEN), "l"),
    (Sizes(1, 140, 200, 1, 1, 32), 32, (-OPEN, OPEN), "x"),
    (Sizes(2, 140, 200, 2, 1, 32), 32, (-OPEN, OPEN), "bqkn"),
    (Sizes(2, 140, 200, 2, 1, 32), 32, (-OPEN, OPEN), "qkw"),
    SPREAD := (Sizes(2, 140, 200, 2, 1, 32), 32, (-OPEN, OPEN), "br"),
)
# A file, and a replacement; PLANTED is true in the runs with the mistake.
MISTAKES = {
    "a cross product": ("scores", "Multiply(scores, a_low", "if (!PLANTED) Multiply(scores, a_low"),
    "one scale": ("split_gradient", "ExponentOf(largest)", "(PLANTED ? 0 : ExponentOf(largest))"),
    "a tile": ("args", "kBlockRows + 1}", "kBlockRows + !PLANTED}"),
    "another row": ("key_gradient", "8 * i + j].delta", "8 * i + (PLANTED ? 0 : j)].delta"),
    "a batch member": ("bias_gradient", "all = batch *", "all = (batch - PLANTED) *"),
}
LARGEST = np.finfo(np.float32).max
HUGE = np.float32([-3e7, 5e7, -1e8, -1e9, -LARGEST, LARGEST])


@np.errstate(all="ignore")  # the truth, too, computes with NaN
def check_simulated(program, s, depth, band, letters, mistake="no mistake"):
    rng = np.random.default_rng(1)
    q, k, v = (np.array(x) / np.float32(1.5) for x in cases.operands(s))  # standard normal
    v, dy = v[..., :depth], rng.standard_normal((s.B, s.T, s.N, depth)).astype(np.float32)
    sides = {
        "bias": rng.standard_normal((1, s.N, s.T, s.S)).astype(np.float32),
        "mask": rng.random((s.B, 1, s.T, s.S)) < 0.75,
        "query_seq_lengths": np.arange(s.B, dtype=np.int32) + s.T // 2,
        "key_value_seq_lengths": np.arange(s.B, dtype=np.int32) + s.S * 3 // 4,
    }
    if "r" in letters:
        dy *= np.exp2(-34 * rng.random((*dy.shape[:3], 1))).astype(np.float32)
    if "h" in letters:  # equal scores, whatever the bias
        rows = slice(70, 70 + HUGE.size)
        q[:, rows], sides["bias"][:, :, rows] = 0, HUGE[:, None]
        dy[:, rows] *= np.float32(2.0**-20)
    q *= np.float32(1e8 if "l" in letters else 1)
    k[0, 17] *= np.float32(np.nan if "x" in letters else 1)
    operands, bias = [q, k, v, dy], sides["bias"]
    if beyond := re.search("[nw]", letters):
        beyond = np.float32({"n": np.nan, "w": 1e12}[beyond[0]])
        q_seen, k_seen = (
            (np.arange(size) < sides[f"{name}_seq_lengths"][:, None])[..., None, None]
            for name, size in (("query", s.T), ("key_value", s.S))
        )
        seen = (q_seen, k_seen, k_seen, q_seen)
        operands = [np.where(*x, beyond) for x in zip(seen, operands, strict=True)]
        widest = (q_seen.any(0) & k_seen.any(0).swapaxes(0, 1))[..., 0]
        bias = np.where(widest, bias, beyond)
    arrays = (*operands, bias, *list(sides.values())[1:])
    given = b"".join(np.ascontiguousarray(x).tobytes() for x in arrays)
    sizes = map(str, (*dataclasses.astuple(s), depth, *band, letters))
    run = subprocess.run(
        [program, *sizes], input=given, capture_output=True, check=True, env={mistake: "1"}
    )
    options = {name: x for name, x in sides.items() if name[0] in letters}
    options["local_window_size"] = (-band[0], band[1])
    wider = [(0, 0)] * 3 + [(0, s.H - depth)]  # the truth has one depth
    scale = float(np.float32(0.7) / np.sqrt(np.float32(s.H)))
    truth = cases.Truth(q, k, np.pad(v, wider), scale=scale, **options)
    of = {name: x.value for name, x in truth.gradients(np.pad(dy, wider)).items()}
    rows = flash_cases.within_lengths(s.B, s.T, options)
    sums = np.where(rows, truth.log_sum_exp, -np.inf)
    want = [truth.result().value[..., :depth], sums, of["q"], of["k"], of["v"][..., :depth]]
    want += [of["scores"].sum(0)] * ("b" in letters)
    found = np.frombuffer(run.stdout, np.float32).astype(float)
    for name, x in zip(("y", "sums", "dq", "dk", "dv", "dbias"), want, strict=False):
        parts = {"sums": 2, "dbias": 2}.get(name, 1)  # pairs (r, s); two partial sums
        own, found = found[: parts * x.size], found[parts * x.size :]
        if name == "sums":
            found_sums = plain.log_sum_exps(own.reshape(*x.shape, 2))
            # Those near the largest float32 are clamped in base 2.
            limits = (-2e38, 2e38) if "h" in letters else (-np.inf, np.inf)
            want_sums = np.clip(x, *limits)
            np.testing.assert_allclose(
                np.clip(found_sums, *limits), want_sums, rtol=1e-6, atol=4e-6
            )
            continue
        if "x" in letters or ("l" in letters and name in ("dq", "dk")):  # or almost 0
            assert (np.isnan(own) if "x" in letters else np.isfinite(own)).all(), name
            continue
        error = np.linalg.norm(own.reshape(parts, -1).sum(0) - x.ravel()) / np.linalg.norm(x)
        assert error < 1e-6, (name, error)
        if "r" in letters and name == "dq":
            assert attention_pairs.errors(own.reshape(-1, s.H), x.reshape(-1, s.H))[1] < 5e-6
    assert found.size == 0


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    """A program that runs the kernels on a CPU, thread by thread, with a model of copies and tensor cores."""
    compiler, include = shutil.which("c++"), Path("/usr/local/cuda/include")
    if compiler is None or not include.exists():
        pytest.skip("no C++ compiler, or no CUDA headers")
    folder, built = ROOT / "tests/support/simulator", tmp_path_factory.mktemp("simulator")
    shutil.copytree(ROOT / "ffi/attention", built / "attention")
    for mistake, (name, right, wrong) in MISTAKES.items():
        source = built / f"attention/{name}.cuh"
        before, after = source.read_text().split(right)
        planted = wrong.replace("PLANTED", f'(std::getenv("{mistake}") != nullptr)')
        source.write_text(before + planted + after)
    # A kernel's shared memory is thread-local here, and has no initializer.
    flags = ["-std=c++20", "-O2", "-fno-extern-tls-init"]
    flags += [f"-I{path}" for path in (folder, built, ROOT / "ffi", include)]
    program = built / "program"
    subprocess.run([compiler, *flags, folder / "attention.cc", "-o", program], check=True)
    return program


@pytest.mark.parametrize("case", SIMULATED, ids=lambda case: case[-1])
def test_simulated_kernels(simulator, case):
    check_simulated(simulator, *case)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes(simulator, mistake):
    with pytest.raises(AssertionError):
        check_simulated(simulator, *SPREAD, mistake)


def test_calls_have_the_attributes_that_the_handlers_read(as_on_hopper):
    handlers = (ROOT / "ffi/attention/handlers.cc").read_text()
    read = set(re.findall(r'Attr<\S+>\("(\w+)"\)', handlers))
    sizes = SIZES["grouped"]
    given = (*cases.operands(sizes), cases.operands(sizes)[0])
    run = functools.partial(pulled, **cases.arguments(sizes)["everything"])
    calls = re.findall(
        r"@(jaxkernels_att\w+)\(.*?\) \{.*?backend_config = \{(.*?)\}", text_for_cuda(run, *given)
    )
    assert {target for target, _ in calls} == set(registry.ATTENTION_TARGETS)
    for _, attributes in calls:
        assert set(re.findall(r"(\w+) = ", attributes)) == read


@pytest.mark.parametrize(
    ("dtype", "depth", "message"),
    [
        ("bfloat16", 64, "multiply float32, not bfloat16"),
        ("complex64", 64, "kernels exist for"),
        ("float32", 136, "depths up to 128"),
    ],
)
def test_what_cannot_be_pinned(as_on_hopper, dtype, depth, message):
    x = jax.ShapeDtypeStruct((1, 8, 2, depth), dtype)
    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(pinned, x, x, x)


def test_platforms_that_cannot_be_pinned():
    x = jnp.zeros((1, 8, 2, 8))
    for platform, why in (("tpu", "not on .tpu."), ("cuda", "built without CUDA|Reinstall")):
        if platform == "tpu" or not registry.has_kernels("cuda"):
            with pytest.raises(NotImplementedError, match=f"ffi_flash.*({why})"):
                jax.jit(pinned).trace(x, x, x).lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("target", registry.ATTENTION_TARGETS)
@pytest.mark.parametrize("scale", [math.inf, math.nan, 0, -1])
def test_scales_that_handlers_refuse(hopper, target, scale):
    with jax.enable_x64(True):
        call = raw_calls.right_call(target, np.random.default_rng(1))
        assert not raw_calls.refusal(target, call)
        call.attributes["scale"] = np.float32(scale)
        assert "scale must be positive and finite" in raw_calls.refusal(target, call)


def test_row_sums_between_two_pairs(hopper):
    """XLA passes a slice in place or copies it: an error, or the right gradients."""
    target = registry.ATTENTION_BACKWARD_TARGET
    with jax.enable_x64(True):
        call = raw_calls.right_call(target, np.random.default_rng(1))
        results = [jax.ShapeDtypeStruct(*result) for result in call.results]
        rng = np.random.default_rng(2)
        operands = [rng.random(shape, np.float32) for shape, _ in call.operands]
        wide = np.pad(operands.pop(4).ravel(), 1)

        def gradients(offset, wide, *others):
            sums = slice_cases.cut(wide, offset, call.operands[4][0])
            operands = (*others[:4], sums, *others[4:])
            return jax.ffi.ffi_call(target, results)(*operands, **call.attributes)[:3]

        run = jax.jit(gradients, static_argnums=0)
        want = run(0, np.roll(wide, -1), *operands)
        try:
            assert jax.tree.all(jax.tree.map(np.array_equal, run(1, wide, *operands), want))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            assert "multiple of 8 bytes" in str(error)  # noqa: PT017


MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2**30, 1, 1, 1, 1), "fewer than 2.30 tiles"),
        ((2**29, 1, 1, 4, 4), "fewer than 2.30 tiles"),
        ((2**15, 2**15, 1, 2**12, 1), "fewer than 2.30 tiles"),
        ((MOST, MOST, MOST, MOST, MOST), "fewer than 2.30 tiles"),
        ((1, 1, MOST, 1, 1), "fewer than 2.30 tiles"),
        ((1, 1, 1, MOST, 2), "heads of queries"),
        ((1, 1, 0, 1, 1), "nothing to compute"),
    ],
)
def test_sizes_that_the_plan_refuses(sizes, message):
    limits = flash_cases.h200().limits
    for backward in (False, True):
        with pytest.raises(ValueError, match=message):
            registry.cpu_module.plan_attention_kernel(*sizes, 64, 64, limits, backward)


def test_plan_keeps_the_scratch_small():
    limits = flash_cases.h200().limits
    plan = functools.partial(registry.cpu_module.plan_attention_kernel, limits=limits)
    found = plan(384, 384, 384, 4, 4, 32, 32)
    assert found.groups * found.batch_of_group >= 384
    assert found.sm_count == limits.sm_count <= found.tiles
    whole = plan(4, 2048, 2048, 16, 16, 64, 64)
    assert (whole.groups, whole.padded_depth, whole.tiles) == (1, 64, 1024)
    for backward in (False, True):
        assert plan(384, 384, 384, 4, 4, 32, 32, backward=backward).scratch_bytes < 100e6
