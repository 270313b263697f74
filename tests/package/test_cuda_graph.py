"""The kernels run inside a captured CUDA graph, which XLA calls a command buffer.

Programs are run in a process of their own with command buffers switched on for custom calls, and XLA dumps the sequence
of thunks that it really executes. A custom call without the command-buffer trait would be outside of the command buffer
in that dump; every one of ours must be inside. Capturing fails for a handler that allocates or synchronises.

The first run of a program after any compilation goes through the thunks one by one; later ones capture the command
buffer, replay it, and update it where buffers have moved. So everything is compiled before any program is run often,
and the results of the last runs are compared with the truth.
"""

import re
import sys

import pytest
from programs import ROOT, run_python

FLAGS = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
THUNK = re.compile(r"^(\s*)\d+: (k\w+)")

PROGRAM = """
import sys
sys.path.insert(0, ".")
import cases, flash_cases, gemm_cases, jax, jax.numpy as jnp, masked_cases, numpy as np, oracle
import jaxkernels as jk
from jaxkernels._core import validate

ROWS, COLS = 64, 1001
TIERS = [
    tier for tier in validate.TIERS
    if cases.serves(tier, (ROWS, COLS), "float32")
]

@jax.jit
def row_operations(x, t):
    operands = [x], [t], [t[:, :1]]
    return [cases.all_operations(*operands, tier=tier, tangents=False)[0] for tier in TIERS]

def check_row_operations(x, t, results):
    for tier, result in zip(TIERS, results, strict=True):
        cases.check_results(x, t, result, "float32", tier, oracle.OPERATIONS)

CASE = masked_cases.case(
    (2, ROWS // 2, COLS), "float32", mask=(ROWS // 2, COLS), bias=(1, COLS), scale=0.5, causal=True)
CASES = [CASE, masked_cases.dataclasses.replace(CASE, bias=None)]
MASKED_TIERS = [
    tier for tier in validate.TIERS if all(masked_cases.serves(c, tier) for c in CASES)
]

@jax.jit
def attention_scores(x, t):
    results = []
    for tier in MASKED_TIERS:
        for c in CASES:
            def function(x, c=c, tier=tier):
                return jk.scaled_masked_softmax(
                    x, c.mask, c.bias, scale=c.scale, causal=True, tier=tier)
            y, pull = jax.vjp(function, x.reshape(CASE.scores.shape))
            results += [y, pull(t.reshape(CASE.scores.shape))[0]]
    return results

def check_attention_scores(x, t, results):
    results = iter(results)
    for tier in MASKED_TIERS:
        for c in CASES:
            c = masked_cases.dataclasses.replace(
                c, scores=x.reshape(c.scores.shape), dy=t.reshape(c.scores.shape))
            truth = masked_cases.Truth(c, tier)
            truth.check(next(results))
            truth.check_gradients({"scores": next(results)}, ("scores",))

FEW = 3  # rows that `thin` serves
RUNGS = [rung for rung in gemm_cases.RUNGS if rung != "thin"]

@jax.jit
def products(a, b):
    results = [jk.sgemm(a[:FEW], b, algorithm="thin", trans_b=True)]
    results += [jk.sgemm(a, b, algorithm=rung, trans_b=True) for rung in RUNGS]
    results.append(jk.sgemm(a, b, results[-1], alpha=0.5, beta=2.0, trans_b=True))
    return [*results, jk.matmul(a.T, b)]  # of the last k is not split; the others' is

def check_products(a, b, results):
    thin, *plain, with_c, outer = results
    gemm_cases.check(thin, a[:FEW], b.T)
    for result in plain:
        gemm_cases.check(result, a, b.T)
    gemm_cases.check(with_c, a, b.T, plain[-1], alpha=0.5, beta=2.0)
    gemm_cases.check(outer, a.T, b)

BIAS = cases.logits("normal", 2 * 480, 480, "float32").reshape(1, 2, 480, 480)
HEADS = {"bias": BIAS, "is_causal": True}

def heads_of(x, t):
    q, dy = (y[:, :960].reshape(1, -1, 2, 64) for y in (x, t))
    return q, dy[:, ::-1], q[:, ::-1], dy

@jax.jit
def flash_attention(x, t):
    return flash_cases.pulled(*heads_of(x, t), implementation=flash_cases.kernels(), **HEADS)

def check_attention(x, t, results):
    *operands, dy = heads_of(x, t)
    flash_cases.check_pulled(results, operands, dy, "attention", **HEADS)

# Products of lines that begin at multiples of 16 bytes are copied by the tensor memory accelerator.
programs = [(row_operations, check_row_operations, COLS),
            (attention_scores, check_attention_scores, COLS), (flash_attention, check_attention, COLS),
            (products, check_products, COLS), (products, check_products, COLS - 1)]
inputs = {
    (cols, seed): (cases.logits("normal", ROWS, cols, "float32", seed),
                   cases.cotangents(ROWS, cols, "float32", seed))
    for cols in (COLS, COLS - 1) for seed in (0, 1)
}
for function, _, cols in programs:
    jax.block_until_ready(function(*inputs[cols, 0]))
for function, check, cols in programs:
    first = {}
    for call in range(10):  # inputs by turns, at other addresses too
        seed = call % 2
        last = jax.device_get(function(*jax.device_put(inputs[cols, seed])))
        first.setdefault(seed, last)
        same = jax.tree.map(np.array_equal, last, first[seed])
        assert jax.tree.all(same), (function, call, same)
        if call >= 8:
            check(*inputs[cols, seed], last)
    # One call computes a result; two compute those of our flash kernels.
    calls = 2 if function is flash_attention else len(jax.tree.leaves(last))
    print(function.__name__, calls)
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


def check_captured(text, calls):
    """A program has this many custom calls or more, and all of them are inside command buffers."""
    found = [inside for kind, inside in thunks(text) if kind == "kCustomCall"]
    assert len(found) >= calls, text
    assert all(found), text


def test_runs_inside_a_command_buffer(gpu, tmp_path):
    flags = f"{FLAGS} --xla_dump_to={tmp_path}"
    stdout, _ = run_python("-c", PROGRAM, XLA_FLAGS=flags, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    programs = [line.split() for line in stdout.splitlines()]
    names = ["row_operations", "attention_scores", "flash_attention", "products", "products"]
    assert [name for name, _ in programs] == names
    for name, calls in programs:
        dumps = list(tmp_path.glob(f"*jit_{name}*thunk_sequence_after_thunk_passes*"))
        assert dumps, sorted(p.name for p in tmp_path.iterdir())
        for dump in dumps:
            check_captured(dump.read_text(), int(calls))


def test_reading_of_the_dump():
    inside = "000: kCommandBuffer\n  000: kCustomCall a\n  001: kKernel b\n"
    text = f"{inside}001: kCustomCall c\n"
    assert thunks(text) == [
        ("kCommandBuffer", False),
        ("kCustomCall", True),
        ("kKernel", True),
        ("kCustomCall", False),
    ]
    check_captured(inside, 1)
    for broken, calls in ((text, 1), (inside, 2)):  # a call outside, a call missing
        with pytest.raises(AssertionError):
            check_captured(broken, calls)


def test_values_of_the_program():
    """Checks the expected results of the captured program on any machine, without a command buffer."""
    run_python("-c", PROGRAM)


@pytest.mark.skipif(sys.platform != "linux", reason="CUDA modules are built on Linux only")
def test_every_cuda_handler_has_the_trait():
    """Read from the sources, so that a machine without a GPU notices a handler that lost it."""
    for source in ("attention/handlers.cc", "rows/cuda/handlers.cc", "sgemm/handlers.cc"):
        _, *definitions = (ROOT / "ffi" / source).read_text().split("XLA_FFI_DEFINE_HANDLER")
        assert definitions
        assert all("kCmdBufferCompatible" in d.split(";")[0] for d in definitions), source
