"""Flash attention on several devices: CPUs partition it as CUDA devices do, and run models of cuDNN and our kernels."""

import functools

import attention_cases as cases
import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flash_cases import value_and_cotangents as pulled
from hlo import collectives
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._attention import cudnn, tensor_cores

EQUAL = cases.Sizes(4, 16, 24, 8, 8, 8)
GROUPED = cases.Sizes(4, 16, 24, 8, 2, 8)
SHARED = cases.Sizes(4, 16, 24, 8, 1, 8)
ROWS = P("a", None, "b", None)
HEADS = P(None, None, ("a", "b"))


@pytest.fixture(autouse=True)
def _flash(monkeypatch, on_a_cpu):
    flash_cases.take_flash(monkeypatch, on_a_cpu=True)


def operands(sizes):
    arrays = cases.operands(sizes, "bfloat16")
    return [*arrays, cases.operands(sizes, "bfloat16", seed=1)[0]]


def placed(mesh, arrays, *specs):
    """The arrays on a mesh; the last spec is that of all further arrays, too."""
    specs = [*specs, *[specs[-1]] * (len(arrays) - len(specs))]
    pairs = zip(arrays, specs, strict=True)
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in pairs]


def assert_near(got, want, what="", tolerance=2.0**-6):
    for x, y in zip(got, want, strict=True):
        x, y = (np.asarray(z, np.float32) for z in (x, y))
        assert np.abs(x - y).max() <= tolerance * np.abs(y).max(), what


@pytest.fixture
def local_shapes(monkeypatch):
    """The shapes of q and k of each call of cuDNN."""
    shapes, call = [], cudnn._call

    def recorded(name, of, given, others):
        shapes.append((given.q.shape, given.k.shape))
        return call(name, of, given, others)

    monkeypatch.setattr(cudnn, "_call", recorded)
    return shapes


def test_batch_and_heads(mesh, local_shapes):
    """Under either kind of axes."""
    arrays = operands(EQUAL)
    run = jax.jit(functools.partial(pulled, is_causal=True))
    want = run(*arrays)
    with jax.set_mesh(mesh):
        shards = placed(mesh, arrays, ROWS)
        got = run(*shards)
        assert all(x.sharding.is_equivalent_to(NamedSharding(mesh, ROWS), 4) for x in got)
        assert not collectives(run.lower(*shards).compile().as_text())
    assert_near(got, want)
    assert local_shapes[-1] == ((1, 16, 4, 8), (1, 24, 4, 8))


def test_types_that_say_more_than_batch_and_heads(explicit_grid):
    """Explicit axes of queries are left to products and softmax, whose types say what becomes of them."""
    for of_queries, of_keys, takes in ((ROWS, ROWS, True), (P(None, "a"), P(), False)):
        with jax.set_mesh(explicit_grid):
            arrays = placed(explicit_grid, operands(EQUAL)[:3], of_queries, of_keys)
            program = str(jax.make_jaxpr(jk.dot_product_attention)(*arrays))
        assert ("jaxkernels_flash_attention" in program) == takes


ARGUMENTS = {
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "local_window_size": 3},
    "others": {},
}
# The shardings of queries and of keys, and the shapes of a device's queries and keys if there are 8 key heads.
SPECS = {
    "batch-heads": (ROWS, ROWS, (1, 4, 4)),
    "heads": (HEADS, P(), (4, 1, 1)),
    "queries": (P(None, "a"), P(None, "a"), (4, 2, 2)),
    "queries-heads": (P(None, "a", "b"), P(None, None, "b"), (4, 1, 1)),
    "keys": (P(), P(None, "a"), (4, 2, 2)),
    "depth": (P("a", None, None, "b"), P("a", None, None, "b"), (1, 4, 4)),
    "heads-of-keys": (P(), P(None, None, "b"), (4, 4, 4)),
}


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("sizes", [EQUAL, GROUPED, SHARED], ids=["equal", "grouped", "shared"])
def test_partitions(arguments, sizes, grid, local_shapes):
    """Every mesh axis of queries or keys shards batch or heads, within the call."""
    arrays, others = operands(sizes), {}
    if not arguments:
        rng = np.random.default_rng(4)
        others = {
            "bias": jnp.asarray(rng.standard_normal((1, sizes.N, 1, sizes.S)), jnp.bfloat16),
            "mask": rng.random((sizes.B, 1, sizes.T, sizes.S)) < 0.7,
            "query_seq_lengths": jnp.arange(sizes.B, dtype=jnp.int32) * 5 + 1,
            "key_value_seq_lengths": jnp.full(sizes.B, sizes.S - 3, jnp.int32),
        }
    run = jax.jit(functools.partial(pulled, **arguments))
    want = run(*arrays, **others)
    for name, (of_queries, of_keys, (batch, heads, key_heads)) in SPECS.items():
        if sizes is SHARED and "b" in (*of_keys, ""):
            continue
        q, k, v, dy = placed(grid, arrays, of_queries, of_keys, of_keys, of_queries)
        got = run(q, k, v, dy, **others)
        assert_near(got, want, name)
        assert of_queries == P() or got[0].sharding.is_equivalent_to(q.sharding, 4), name
        assert local_shapes[-1][0] == (batch, 16, heads, 8), name
        if sizes is EQUAL:
            assert local_shapes[-1][1] == (batch, 24, key_heads, 8), name


def test_more_devices_than_key_heads(line):
    """Nothing is sent forward, and backward the cotangents of keys and values alone."""
    bias = jnp.zeros((1, 8, 16, 24), jnp.bfloat16)
    arrays = [*operands(GROUPED), bias]
    q, k, v, dy, bias = placed(
        line, arrays, P(None, None, "a"), P(), P(), P(None, None, "a"), P(None, "a")
    )
    forward = jax.jit(jk.dot_product_attention).lower(q, k, v, bias)
    assert not collectives(forward.compile().as_text())
    both = jax.jit(pulled).lower(q, k, v, dy, bias=bias)
    assert set(collectives(both.compile().as_text())) == {"all-reduce"}


# The shardings of queries and of keys, and whether devices exchange cotangents alone.
OF_FLOAT32 = {
    "batch-heads": (ROWS, ROWS, True),
    "queries": (P(None, "a"), P(), True),
    "queries-heads": (P(None, "a", "b"), P(None, None, "b"), True),
    "batch-queries": (P("b", "a"), P("b"), True),
    "keys": (P(), P(None, "a"), False),
}


def check_float32(sizes, of_queries, of_keys, grid):
    """Under a window, with the gradient of a bias that the batch shares.

    Returns the kinds of collectives, forward and with gradients.
    """
    rng = np.random.default_rng(4)
    others = {
        "mask": rng.random((sizes.B, 1, sizes.T, sizes.S)) < 0.7,
        "query_seq_lengths": jnp.arange(sizes.B, dtype=jnp.int32) * 5 + 2,
        "key_value_seq_lengths": jnp.full(sizes.B, sizes.S - 5, jnp.int32),
        "is_causal": sizes.T > 3,
        "local_window_size": (9, sizes.S // 2),
    }
    bias = rng.standard_normal((1, sizes.N, sizes.T, sizes.S)).astype(np.float32)
    bias[:, 0, 1] = -np.inf
    arrays = [*cases.operands(sizes), cases.operands(sizes, seed=1)[0]]
    forward = functools.partial(jk.dot_product_attention, return_residual=True, **others)

    def both(q, k, v, dy, bias):
        y, pull, sums = jax.vjp(forward, q, k, v, bias, has_aux=True)
        return y, jnp.exp(sums), *pull(dy)

    want = jax.jit(both)(*arrays, bias)
    q, k, v, dy = placed(grid, arrays, of_queries, of_keys, of_keys, of_queries)
    alone = jax.jit(functools.partial(jk.dot_product_attention, **others)).lower(q, k, v, bias)
    alone = alone.compile()
    assert_near([alone(q, k, v, bias)], want[:1], tolerance=2.0**-19)
    run = jax.jit(both).lower(q, k, v, dy, bias).compile()
    assert_near(run(q, k, v, dy, bias), want, tolerance=2.0**-19)
    return [set(collectives(program.as_text())) for program in (alone, run)]


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("name", OF_FLOAT32)
@pytest.mark.parametrize("sizes", [EQUAL, GROUPED, SHARED], ids=["equal", "grouped", "shared"])
def test_float32(name, sizes, grid):
    of_queries, of_keys, is_local = OF_FLOAT32[name]
    if sizes is SHARED and "b" in (*of_keys[2:], ""):
        of_keys = P(*of_keys[:2])
    forward, both = check_float32(sizes, of_queries, of_keys, grid)
    if is_local:
        assert not forward
        assert both <= {"all-reduce"}


# Sizes with keys over 4 devices, and the queries and keys of each in the forward pass.
OF_KEYS = {
    "few queries": (cases.Sizes(2, 3, 48, 6, 3, 8), 3, 12),
    "odd batch and heads": (cases.Sizes(3, 16, 24, 3, 3, 8), 4, 24),
    "queries too": (cases.Sizes(1, 6, 96, 4, 4, 8), 3, 24),
}


@pytest.mark.parametrize("name", OF_KEYS)
def test_float32_keys(name, grid, monkeypatch):
    """Devices merge the results of their keys, or share the queries; also under x64 and strict promotion."""
    (sizes, t, s), shapes, kernel = OF_KEYS[name], [], tensor_cores.forward

    def recorded(call, operands):
        shapes.append((operands[0].shape[1], operands[1].shape[1]))
        return kernel(call, operands)

    monkeypatch.setattr(tensor_cores, "forward", recorded)
    of_queries = P(None, "b") if name == "queries too" else P()
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        forward, _ = check_float32(sizes, of_queries, P(None, "a"), grid)
    assert shapes[-1] == (t, s)
    if s < sizes.S:
        assert forward <= {"all-reduce"}


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma, line):
    """Queries differ between devices; the keys, which do not, get the sum of all cotangents."""
    q, k, v, dy = operands(cases.Sizes(8, 8, 8, 2, 2, 8))
    k, v = k[:1], v[:1]
    local = functools.partial(jk.dot_product_attention, is_causal=True)
    split = jax.shard_map(
        local, mesh=line, in_specs=(P("a"), P(), P()), out_specs=P("a"), check_vma=check_vma
    )

    def whole(q, k, v):
        k, v = (jnp.broadcast_to(x, (8, *x.shape[1:])) for x in (k, v))
        return local(q, k, v)

    got, want = (
        jax.jit(lambda q, k, v, dy, f=f: [f(q, k, v), *jax.vjp(f, q, k, v)[1](dy)])(q, k, v, dy)
        for f in (split, whole)
    )
    assert_near(got, want)


def test_vmap_over_a_sharded_axis(mesh):
    arrays = [np.stack([x] * 4) for x in operands(EQUAL)]
    run = jax.jit(jax.vmap(functools.partial(pulled, is_causal=True)))
    want = run(*arrays)
    with jax.set_mesh(mesh):
        got = run(*placed(mesh, arrays, P("a")))
    assert_near(got, want)
