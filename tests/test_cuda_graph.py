"""The kernels run inside a captured CUDA graph, which XLA calls a command buffer.

A program is run in a process of its own with command buffers switched on for custom calls, and XLA dumps the sequence
of thunks that it really executes. A custom call without the command-buffer trait would stand beside the command buffer
in that dump; every one of ours has to stand inside. Capturing fails for a handler that allocates or synchronises.
"""

import re
import sys

import pytest
from programs import run_python

FLAGS = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
THUNK = re.compile(r"^(\s*)\d+: (k\w+)")

PROGRAM = """
import functools, sys
sys.path.insert(0, ".")
import cases, gemm_cases, jax, numpy as np
import jaxkernels as jk

x, t = cases.logits("normal", 64, 1001, "float32"), cases.cotangents(64, 1001, "float32")

@jax.jit
def graph(x, t):
    results = []
    for tier in ("warp", "block_smem", "block_uncached"):
        if not cases.serves(tier, x.shape, "float32"):
            continue
        for f in (jk.softmax, jk.log_softmax):
            f = functools.partial(f, tier=tier)
            y, pull = jax.vjp(f, x)
            results += [y, pull(t)[0], jax.jvp(f, (x,), (t,))[1]]
    for algorithm in gemm_cases.RUNGS:
        results.append(jk.sgemm(x, t, algorithm=algorithm, trans_b=True))
    results.append(jk.sgemm(x, t, results[-1], alpha=0.5, beta=2.0, trans_b=True))
    results.append(jk.matmul(x.T, t))  # k is not split; the others' are
    return results

first = jax.device_get(graph(x, t))
for _ in range(4):  # the first run may only warm up; later ones capture and replay, at other addresses too
    again = graph(jax.device_put(x), jax.device_put(t))
    assert all(np.array_equal(a, b) for a, b in zip(first, jax.device_get(again), strict=True))
other = jax.device_get(graph(x[::-1].copy(), t))
assert not np.array_equal(other[0], first[0])
np.testing.assert_array_equal(other[0], first[0][::-1] if x.shape[1] % 4 == 0 else other[0])
np.testing.assert_allclose(other[0], first[0][::-1], rtol=1e-5)
cases.check_all([(x, t)], "float32")
print(len(first), "results")
"""


def thunks(text):
    """(kind, whether inside a command buffer) of every thunk in a dump."""
    found, inside = [], None
    for line in text.splitlines():
        match = THUNK.match(line)
        if not match:
            continue
        depth, kind = len(match[1]), match[2]
        if inside is not None and depth <= inside:
            inside = None
        found.append((kind, inside is not None))
        if kind == "kCommandBuffer" and inside is None:
            inside = depth
    return found


def test_runs_inside_a_command_buffer(gpu, tmp_path):
    flags = f"{FLAGS} --xla_dump_to={tmp_path}"
    stdout, _ = run_python("-c", PROGRAM, XLA_FLAGS=flags, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert "results" in stdout
    dumps = list(tmp_path.glob("*jit_graph*thunk_sequence_after_thunk_passes*"))
    assert dumps, sorted(p.name for p in tmp_path.iterdir())
    for dump in dumps:
        calls = [inside for kind, inside in thunks(dump.read_text()) if kind == "kCustomCall"]
        assert len(calls) >= 8, dump.read_text()
        assert all(calls), dump.read_text()


def test_reading_of_the_dump():
    """The reader tells a captured custom call from one that is not."""
    text = "000: kCommandBuffer\n  000: kCustomCall a\n  001: kKernel b\n001: kCustomCall c\n"
    assert thunks(text) == [
        ("kCommandBuffer", False),
        ("kCustomCall", True),
        ("kKernel", True),
        ("kCustomCall", False),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="CUDA modules are built on Linux only")
def test_every_cuda_handler_has_the_trait():
    """Read from the sources, so that a machine without a GPU notices a handler that lost it."""
    from programs import ROOT

    sources = list((ROOT / "ffi").glob("*/handlers_cuda.cc"))
    assert len(sources) == 2
    for source in sources:
        _, *definitions = source.read_text().split("XLA_FFI_DEFINE_HANDLER")
        assert definitions
        assert all("kCmdBufferCompatible" in d.split(";")[0] for d in definitions), source
