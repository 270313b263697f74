"""Many host threads call compiled programs at once: every call succeeds, with the bits that it has alone.

Threads share what CUDA keeps for a kernel, such as the shared memory that its launches may ask for, so they call programs
that run the same kernels by different plans. Each test is a process of its own: what goes wrong here may end it.
"""

from programs import run_python

GRAPHS = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"

PROGRAM = """
import faulthandler, sys, threading
faulthandler.enable()
sys.path.insert(0, ".")
import cases, flash_cases, gemm_cases, jax, jax.numpy as jnp, numpy as np, row_parts_cases
import jaxkernels as jk

THREADS, CALLS = 8, int(sys.argv[1])
COLS = (9000, 20480, 40960, 81920) if cases.ON_GPU else (90, 200, 400, 800)
WORDS = {"float32": jnp.uint32, "bfloat16": jnp.uint16}

def bits(x):
    return jax.lax.bitcast_convert_type(x, WORDS[x.dtype.name])

@jax.jit
def same(results, wanted):
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(wanted), strict=True)
    return jnp.all(jnp.array([jnp.all(bits(a) == bits(b)) for a, b in pairs]))

def row_operations(x, t):
    y, pull = jax.vjp(jk.softmax, x)
    return y, pull(t), jk.log_softmax(x)

def losses(x, t):
    label = jnp.arange(len(x)) - 1
    each, pull = jax.vjp(lambda x: jk.cross_entropy(x, label, label_smoothing=0.1), x)
    mean = jax.value_and_grad(lambda x: jk.cross_entropy(x, label, reduction="mean"))
    return each, pull(t[:, 0].astype(each.dtype)), mean(x)

def masked(x, t):
    y, pull = jax.vjp(lambda x: jk.scaled_masked_softmax(x, t > 0, t, scale=0.5, window=x.shape[1] // 3), x)
    return y, pull(t)

def parts(x, t):
    return row_parts_cases.in_parts("softmax_fwd", x)

def products(x, t):
    a, b = x[:, : x.shape[1] // 128 * 64], t[:, : x.shape[1] // 128 * 64]
    deep = jk.matmul(a, b.T), jk.matmul(a, b.T, algorithm="tensor")
    return *deep, jk.matmul(a.T[:512], b), jk.sgemm(a, b, trans_b=True, algorithm="split_tile")

def attention(x, t):
    results = []
    for heads, depth in ((2, 32), (1, 64)):
        q, dy = (y[:, : y.shape[1] // 64 * 64].reshape(1, -1, heads, depth) for y in (x, t))
        results.append(flash_cases.pulled(q, dy, q, dy, implementation=flash_cases.kernels()))
    return results

calls = []
for function in (row_operations, losses, masked, parts, products, attention):
    for dtype in WORDS if function not in (products, attention) else ("float32",):
        program = jax.jit(function)
        for cols in COLS:
            operands = jax.device_put(
                (cases.logits("normal", 4, cols, dtype), cases.cotangents(4, cols, dtype)))
            wanted = jax.block_until_ready(program(*operands))
            assert same(wanted, wanted)
            calls.append((program, operands, wanted))

failures = []
def work(thread):
    try:
        for first in range(0, CALLS, 50):
            found = []
            for call in range(first, min(first + 50, CALLS)):
                program, operands, wanted = calls[(thread + call) % len(calls)]
                found.append(same(program(*operands), wanted))
            assert all(map(bool, found)), "other bits"
    except Exception as error:
        failures.append(error)

threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
print(THREADS * CALLS, "calls")
"""


def call_at_once(calls, flags=""):
    stdout, _ = run_python(
        "-c", PROGRAM, calls, XLA_FLAGS=flags, XLA_PYTHON_CLIENT_PREALLOCATE="false"
    )
    assert stdout.split()[-2:] == [str(8 * calls), "calls"]


def test_threads_call_at_once(device):
    call_at_once(700 if device.platform == "gpu" else 30)


def test_threads_call_captured_graphs_at_once(gpu):
    call_at_once(700, GRAPHS)
