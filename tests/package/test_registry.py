"""Loading the extension modules: versions of the FFI, registration, the one warning."""

import os
import shutil
import subprocess
import textwrap
import warnings

import jax
import jax.numpy as jnp
import pytest
from programs import run_python

import jaxkernels as jk
from jaxkernels._core import registry


@pytest.mark.smoke
def test_status_names_every_target_on_both_platforms():
    status = registry.status()
    assert {(s.target, s.platform) for s in status} == {
        (target, platform) for target in registry.TARGETS["cuda"] for platform in ("cpu", "CUDA")
    }
    for s in status:
        assert s.live == (s.why == "")
        if s.platform == "cpu" and s.target in (registry.SGEMM_TARGET, *registry.ATTENTION_TARGETS):
            assert "serves this platform" in s.why
        elif s.platform == "cpu":
            assert s.live
    if not registry.has_cuda_module():
        assert all("without CUDA" in s.why for s in status if s.platform == "CUDA")


def test_cuda_targets_are_live(gpu):
    assert all(s.live for s in registry.status() if s.platform == "CUDA")
    assert jk.plan_softmax((2, 3), "float32", device=gpu).tier == "warp"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("built", "running", "fits"),
    [
        ((0, 3), (0, 3), True),
        ((0, 3), (0, 4), True),
        ((0, 4), (0, 3), False),
        ((1, 0), (0, 9), False),
        ((0, 3), (1, 0), False),
        ((0, 3), None, True),
    ],
)
def test_version_check(built, running, fits):
    if fits:
        registry.check_api_version("jaxkernels._cpu", built, running)
        return
    places = f"{built[0]}.{built[1]}.*{running[0]}.{running[1]}.*pip install"
    with pytest.raises(ImportError, match=rf"(?s)jaxkernels\._cpu.*{places}"):
        registry.check_api_version("jaxkernels._cpu", built, running)


def test_older_jaxlib_gets_one_import_error_and_keeps_its_backend(tmp_path):
    """Simulated by headers of an older FFI: importing fails with a clear text, and JAX goes on working."""
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 1\n")
    program = f"""
        import jax
        jax.ffi.include_dir = lambda: {str(tmp_path)!r}
        try:
            import jaxkernels
        except ImportError as error:
            print("ERROR", error)
        print("JAX", float(jax.jit(lambda x: x + 1)(1.0)))
    """
    stdout, _ = run_python("-c", textwrap.dedent(program))
    error, answer = stdout.strip().splitlines()
    assert error.startswith("ERROR jaxkernels._cpu was built for XLA FFI 0.")
    assert "speaks XLA FFI 0.1" in error
    assert answer == "JAX 2.0"


@pytest.mark.smoke
def test_lowering_for_cuda():
    """With a CUDA module a custom call, from any machine; without one the reference, after one warning."""
    program = jax.jit(jk.softmax).trace(jnp.zeros((2, 3)))
    product = jax.jit(jk.matmul).trace(jnp.zeros((2, 3)), jnp.zeros((3, 4)))
    registry.warn_missing_cuda.cache_clear()
    if registry.has_cuda_module():
        assert "@jaxkernels_rows" in program.lower(lowering_platforms=("cuda",)).as_text()
        assert "@jaxkernels_sgemm" in product.lower(lowering_platforms=("cuda",)).as_text()
        return
    with pytest.warns(
        UserWarning, match="jaxkernels runs its pure-JAX reference on CUDA devices.*JK_CUDA=ON"
    ):
        text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert "@jaxkernels_rows" not in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(jk.log_softmax).trace(jnp.zeros((2, 3))).lower(lowering_platforms=("cuda",))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("capability", "architectures", "has_code"),
    [
        ("9.0", "90a-real", True),
        ("8.6", "80-real", True),
        ("8.0", "86-real", False),
        ("9.0", "80-real", False),
        ("10.0", "90a-real", False),
        ("10.0", "90a-real 80-virtual", True),
        ("12.0", "90a-virtual", False),
        ("7.5", "80", False),
        ("9.0", "80", True),
        ("10.3", "100f-real", True),
        ("10.3", "100a-real", False),
        ("12.1", "100f", False),
        ("12.0", "80-real 120a-real", True),
        ("6.1", "all-major", True),
    ],
)
def test_which_gpus_run_what_was_compiled(capability, architectures, has_code):
    assert registry.has_code_for(capability, architectures) == has_code


# Gives the CUDA module a stub, compiled for compute capability 8.0.
STUB = """
import functools, sys, types, warnings
import jax, jax.numpy as jnp

def registrations():
    capsule, *_ = sys.modules["jaxkernels._cpu"].registrations().values()
    rows = ("jaxkernels_rows", "jaxkernels_row_statistics", "jaxkernels_row_finish")
    attention = ("jaxkernels_attention", "jaxkernels_attention_backward")
    return dict.fromkeys((*rows, "jaxkernels_sgemm", *attention), capsule)

stub = types.ModuleType("jaxkernels._cuda")
stub.registrations = registrations
stub.ffi_api_version = lambda: sys.modules["jaxkernels._cpu"].ffi_api_version()
stub.architectures = lambda: "80-real"
sys.modules["jaxkernels._cuda"] = stub
"""


def test_a_gpu_without_code_gets_plain_jax():
    """A stub of the CUDA module, compiled for 8.0, lowers kernels without a GPU, and plain JAX for one of 9.0.

    There is one warning; where a kernel is required its text is an error.
    """
    program = """
        import jaxkernels as jk
        from jaxkernels._core import registry

        x, w, labels = jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.array([0, 2])
        calls = [
            (jk.softmax, (x,)),
            (jk.cross_entropy, (x, labels)),
            (jk.matmul, (x, w)),
            (jk.linear_cross_entropy, (x, w, labels)),
        ]

        def lowered(function, operands, **options):
            traced = jax.jit(functools.partial(function, **options)).trace(*operands)
            return traced.lower(lowering_platforms=("cuda",)).as_text()

        registry.cuda_devices = lambda: []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            print([lowered(*call).count("@jaxkernels") > 0 for call in calls], len(warned))
        registry.cuda_devices = lambda: [
            types.SimpleNamespace(device_kind="NVIDIA H100", compute_capability="9.0")
        ]
        registry._why_no_code.cache_clear()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            print(["@jaxkernels" in lowered(*call) for call in calls], len(warned))
        print(warned[0].message)
        for call in calls:
            try:
                lowered(*call, implementation="ffi")
            except NotImplementedError as error:
                print(error)
    """
    stdout, _ = run_python("-c", STUB + textwrap.dedent(program), JAX_PLATFORMS="cpu")
    with_code, without, *texts = stdout.strip().splitlines()
    assert with_code == "[True, True, True, True] 0"
    assert without == "[False, False, False, False] 1"
    assert len(texts) == 5
    for text in texts:
        assert "compiled for 80-real, not for the NVIDIA H100 (compute capability 9.0)" in text
        assert text.endswith("Reinstall jaxkernels with JK_CUDA=ON CUDAARCHS='90a-real'")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("capabilities", "environment", "warned"),
    [
        ("7, 9", {}, True),
        ("7, 8", {}, False),  # whether JAX uses the second one is known when its backends start
        ("9, 9", {"CUDA_VISIBLE_DEVICES": "1"}, True),
        ("9, 9", {"CUDA_VISIBLE_DEVICES": ""}, False),
        ("9, 9", {"JAX_PLATFORMS": "cpu"}, False),
    ],
)
def test_the_import_warns_if_no_gpu_has_code(capabilities, environment, warned, tmp_path):
    """Held against a stub of NVML with two GPUs. The warning comes once, before any backend starts."""
    (tmp_path / "jax_plugins").mkdir()
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(
        "#include <string.h>\n"
        f"static int majors[] = {{{capabilities}}};\n"
        "int nvmlInit_v2(void) { return 0; }\n"
        "int nvmlShutdown(void) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** to) { *to = majors + i; return 0; }\n"
        'int nvmlDeviceGetName(void* device, char* to, unsigned n) { strcpy(to, "GPU"); return 0; }\n'
        "int nvmlDeviceGetCudaComputeCapability(int* device, int* major, int* minor) {\n"
        "  *major = *device; *minor = 0; return 0; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    program = """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import jaxkernels as jk
        jax.config.update("jax_num_cpu_devices", 2)  # an error once a backend has started
        jax.config.update("jax_platforms", "cpu")
        print(*(x.message for x in caught))
        warnings.filterwarnings("error", "jaxkernels")
        program = jax.jit(jk.softmax).trace(jnp.zeros((2, 3))).lower(lowering_platforms=("cuda",))
        print("@jaxkernels" in program.as_text())
    """
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    cleared = dict.fromkeys(("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS"))
    given = cleared | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path} | environment
    stdout, _ = run_python("-c", STUB + textwrap.dedent(program), **given)
    text, has_kernels = stdout.splitlines()
    assert has_kernels == str(not warned)
    assert ("compiled for 80-real, not for the GPU (compute capability" in text) == warned


def test_programs_run_on_a_gpu_without_code(gpu, monkeypatch):
    """The CUDA module says that it was compiled for another GPU than that under test."""

    def forget():
        for cache in (registry._why_no_code, registry.warn_missing_cuda):
            cache.cache_clear()
        jax.clear_caches()

    monkeypatch.setattr(registry.cuda_module, "architectures", lambda: "75-real")
    forget()
    try:
        x = jax.random.normal(jax.random.key(0), (4, 33))
        with pytest.warns(UserWarning, match=r"compiled for 75-real.*CUDAARCHS="):
            value = jax.jit(jk.softmax)(x)
        assert jnp.allclose(value, jax.nn.softmax(x), rtol=1e-5)
        query = jnp.ones((1, 8, 2, 16), jnp.bfloat16)
        assert jk.dot_product_attention(query, query, query).shape == query.shape
        assert jk.matmul(x, x.T).shape == (4, 4)
        assert not any(s.live for s in registry.status() if s.platform == "CUDA")
        with pytest.raises(NotImplementedError, match="compiled for 75-real"):
            jk.softmax(x, implementation="ffi")
    finally:
        forget()


def test_a_process_forked_after_the_import_uses_the_gpu(gpu):
    """The import asks NVML for the GPUs, which must not initialise CUDA: CUDA does not survive a fork."""
    program = """
        import os, sys
        import jaxkernels as jk
        if child := os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        x = jax.numpy.zeros((2, 5))
        print(next(iter(x.devices())).platform, jk.softmax(x, implementation="ffi")[0, 0])
    """
    stdout, _ = run_python("-c", "import jax\n" + textwrap.dedent(program))
    assert stdout.split() == ["gpu", "0.2"]
