"""Fixtures, options and settings of all tests.

The same suite runs everywhere: on the GPU when JAX has one, else on the CPU. The partitioning tests use eight simulated
CPU devices on both. JAXKERNELS_REQUIRE_GPU=1 makes a test fail that would skip for lack of a GPU or of its tools.
"""

import gc
import os

# The tests choose the algorithm of products, not the environment.
os.environ.pop("JAXKERNELS_ALGORITHM", None)
# Tests start programs that need memory on the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import pytest
import threadpoolctl
from jax.sharding import AxisType

if jax.__version_info__ < (0, 11):
    # XLA compiles in a third of the time without its newer emitters of fusions. Compiling a program on one thread takes a
    # fifth off that. A later XLA refuses the first flag, and the second saves nothing there.
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    jax.config.update("jax_num_cpu_devices", 8)

import jaxkernels._core.devices
import jaxkernels._core.registry
import jaxkernels._linear_loss.plan
from jaxkernels.bench import programs as bench_programs

# On a CPU nearly all of the time goes into compiling small programs that run once. XLA's passes still run. LLVM optimises
# little, which changes no kernel of ours.
OPTIMIZED = jax.default_backend() != "cpu"
jax.config.update("jax_disable_most_optimizations", not OPTIMIZED)

# A second thread of NumPy's BLAS waits in a loop, which takes longer than the small products of the tests.
threadpoolctl.threadpool_limits(1, "blas")

REQUIRE_GPU = os.environ.get("JAXKERNELS_REQUIRE_GPU", "") not in ("", "0")


def skip_or_fail(reason):
    """Skips a test that needs a GPU or its tools; fails it if JAXKERNELS_REQUIRE_GPU is set."""
    if REQUIRE_GPU:
        pytest.fail(f"JAXKERNELS_REQUIRE_GPU is set, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def device():
    """The device under test."""
    return jax.devices()[0]


@pytest.fixture
def gpu(device):
    """The device under test, if it is a GPU that runs this package's kernels."""
    if device.platform != "gpu":
        skip_or_fail(f"JAX's default device is {device}")
    if not jaxkernels._core.registry.has_kernels("cuda"):
        skip_or_fail(jaxkernels._core.registry.why_no_kernels("cuda"))
    return device


@pytest.fixture
def hopper(gpu):
    """A GPU that has the rung `tensor`; other GPUs run `pipelined`, which test_sgemm.py tests."""
    limits = jaxkernels._core.devices.limits_of(gpu)
    if limits.compute_capability != 90:
        pytest.skip("this GPU is without Hopper's tensor cores")
    assert limits.has_wgmma, "the build has no code for sm_90a"


@pytest.fixture(scope="session")
def cpu_devices():
    """Eight simulated CPU devices."""
    devices = jax.devices("cpu")
    assert len(devices) >= 8, "XLA_FLAGS asks for fewer than 8 CPU devices"
    return devices[:8]


@pytest.fixture
def on_a_cpu(cpu_devices):
    """Makes a simulated device the default, where a GPU would be."""
    with jax.default_device(cpu_devices[0]):
        yield


@pytest.fixture(params=(AxisType.Auto, AxisType.Explicit), ids=("auto", "explicit"))
def mesh(request, cpu_devices):
    """Eight simulated devices as 4 x 2, under either kind of axes."""
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(request.param,) * 2, devices=cpu_devices)


@pytest.fixture
def grid(cpu_devices):
    """The same, whose shardings XLA chooses."""
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=cpu_devices)


@pytest.fixture
def explicit_grid(cpu_devices):
    """The same, whose shardings are part of types."""
    return jax.make_mesh(
        (4, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2, devices=cpu_devices
    )


@pytest.fixture
def line(cpu_devices):
    """The same devices along one axis."""
    return jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)


@pytest.fixture
def exact_products():
    """XLA's products at the highest precision, so that results differ from them only by roundings."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def small_chunks(monkeypatch):
    """Computes linear losses of a few rows in several chunks."""
    monkeypatch.setattr(jaxkernels._linear_loss.plan, "_CHUNK_BYTES", 60)


@pytest.fixture
def optimized():
    """Optimises programs as outside of tests: for errors of XLA's own code, or for a program that runs long."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", not OPTIMIZED)


@pytest.fixture(scope="session", autouse=True)
def small_inputs_of_benchmarks():
    """Shrinks the inputs of benchmarks on a CPU, where drawing them takes most of the time. No test looks at times."""
    with pytest.MonkeyPatch.context() as patch:
        if not OPTIMIZED:
            patch.setattr(bench_programs, "last_level_cache_bytes", lambda platform: 1 << 16)
        yield


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Clears JAX's caches: in JAX 0.10 each kept program slows down later lowerings, by two after half of the tests."""
    yield
    if not OPTIMIZED:
        jax.clear_caches()


def pytest_addoption(parser):
    parser.addoption(
        "--full", action="store_true", help="all cases of the tests marked half_on_a_cpu"
    )
    parser.addoption(
        "--quarter",
        action="store_true",
        help="on a CPU a quarter of the cases of the tests marked half_on_a_cpu, if it has every value",
    )


def _half(items, quarter):
    """Keeps all tests, except for those marked half_on_a_cpu: they keep the cases on the white squares of a board.

    A board's sides are the parameters. With a third parameter of two values or more, every pair of values of two of
    them is on a white square; with two parameters, half of the pairs are left out. `quarter` leaves out every other
    white square of a board that has two sides or more, each with four values or more.
    """
    numbers = {}  # the index of each value of each parameter of each test
    sides_of = {}
    for item in items:
        if item.get_closest_marker("half_on_a_cpu") is None or not hasattr(item, "callspec"):
            continue
        params = item.callspec.params
        sides = [mark.args[0] for mark in item.iter_markers("parametrize")]
        sides = [n.split(",") if isinstance(n, str) else n for n in sides]
        sides = [tuple(name.strip() for name in names) for names in sides]
        sides += [(name,) for name in params if not any(name in names for names in sides)]
        sides_of[item] = [
            (numbers.setdefault((item.function, names), {}), tuple(id(params[x]) for x in names))
            for names in sides
        ]
        for known, value in sides_of[item]:
            known.setdefault(value, len(known))
    for item in items:
        sides = sides_of.get(item, [])
        is_large = len(sides) > 1 and min(len(known) for known, _ in sides) >= 4
        if sum(known[value] for known, value in sides) % (4 if quarter and is_large else 2) == 0:
            yield item


def pytest_collection_modifyitems(config, items):
    """Starts the race check first, which takes longest by far; the others run meanwhile.

    On a CPU, where compilation dominates, tests marked half_on_a_cpu run half of their cases.
    """
    items.sort(key=lambda item: "racecheck" not in item.nodeid)
    if not OPTIMIZED and not config.getoption("--full"):
        half = list(_half(items, config.getoption("--quarter")))
        config.hook.pytest_deselected(items=list(set(items).difference(half)))
        items[:] = half


def pytest_collection_finish():
    """Freezes modules and tests, which live until the end, so that the garbage collector skips them.

    On a CPU it also runs rarely, because tracing makes many objects and few cycles, which saves a few per cent of the time.
    """
    gc.freeze()
    if not OPTIMIZED:
        gc.set_threshold(50_000)


def pytest_report_header():
    """Says what is under test."""
    import jaxlib

    return (
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, device under test {jax.devices()[0]}, "
        f"CUDA module {'built' if jaxkernels._core.registry.has_cuda_module() else 'not built'}"
    )
