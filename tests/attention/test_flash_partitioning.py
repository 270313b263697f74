"""Flash attention on several devices: batch and heads are split without communication, queries with some."""

import functools

import attention_cases as cases
import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo import collectives
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._attention import flash, flash_forms, flash_lowering, flash_partitioning
from jaxkernels._attention.problem import MOVING, Call, Operands, names_of, present
from jaxkernels._core import partitioned_calls
from jaxkernels._rows.masked_kernels import Band

EQUAL = cases.Sizes(4, 16, 24, 8, 8, 8)
GROUPED = cases.Sizes(4, 16, 24, 8, 2, 8)
SHARED = cases.Sizes(4, 16, 24, 8, 1, 8)
ROWS = P("a", None, "b", None)


@pytest.fixture(autouse=True)
def _flash(monkeypatch, on_a_cpu):
    flash_cases.take_flash(monkeypatch)


def pulled(q, k, v, dy, **options):
    y, pull = jax.vjp(lambda q, k, v: jk.dot_product_attention(q, k, v, **options), q, k, v)
    return y, *pull(dy)


def placed(mesh, arrays, spec):
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]


def mesh_of(devices):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=devices)


def operands(sizes):
    arrays = cases.operands(sizes, "bfloat16")
    return [*arrays, cases.operands(sizes, "bfloat16", seed=1)[0]]


def assert_near(got, want, what=""):
    for x, y in zip(got, want, strict=True):
        x, y = (np.asarray(z, np.float32) for z in (x, y))
        assert np.abs(x - y).max() <= 2.0**-6 * np.abs(y).max(), what


def test_batch_and_heads(mesh):
    """The lowering of a CPU, under either kind of axes."""
    arrays = operands(EQUAL)
    want = jax.jit(functools.partial(pulled, is_causal=True))(*arrays)
    with jax.set_mesh(mesh):
        run = jax.jit(functools.partial(pulled, is_causal=True))
        shards = placed(mesh, arrays, ROWS)
        got = run(*shards)
        assert not collectives(run.lower(*shards).compile().as_text())
    assert_near(got, want)


def test_types_that_say_more_than_batch_and_heads(cpu_devices):
    """Explicit axes of queries are left to products and softmax, whose types say what becomes of them."""
    mesh = jax.make_mesh(
        (4, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2, devices=cpu_devices
    )
    arrays = operands(EQUAL)[:3]
    with jax.set_mesh(mesh):
        for of_queries, of_keys, takes in (
            (ROWS, ROWS, True),
            (P(None, "a"), P(), False),
        ):
            q, k, v = (
                placed(mesh, [x], spec)[0]
                for x, spec in zip(arrays, (of_queries, of_keys, of_keys), strict=True)
            )
            program = str(jax.make_jaxpr(jk.dot_product_attention)(q, k, v))
            assert ("jaxkernels_flash_attention" in program) == takes


@pytest.mark.parametrize("spec", [P(None, "a"), P("b", "a"), P(None, None, None, "b"), P("a", "b")])
def test_other_dimensions(spec, cpu_devices):
    """A sequence or the depth that is sharded is no error."""
    mesh = mesh_of(cpu_devices)
    arrays = operands(EQUAL)
    want = jax.jit(functools.partial(pulled, is_causal=True))(*arrays)
    with jax.set_mesh(mesh):
        got = jax.jit(functools.partial(pulled, is_causal=True))(*placed(mesh, arrays, spec))
    assert_near(got, want)


# ---- the partitions of CUDA devices; a CPU runs their form with scores in memory ----

PLAIN = {"forward": flash_forms.FORWARD.plain, "backward": flash_forms.BACKWARD.plain}


def of_partitions(given, others, results, operation, band):
    """An operation as CUDA devices would split it, and its operands."""
    call = Call(names_of(given), 0.3, band, keeps_sums=True)
    form = PLAIN[operation]
    arrays = [*present(given), *others]
    shapes = [x.shape for x in arrays]
    forms = flash_forms.Forms(form, form)
    split = flash_partitioning.partitioned(call, forms, shapes, results)
    return split, functools.partial(form, call), arrays


def problem(sizes, band, operation):
    q, k, v = (jnp.asarray(x) for x in cases.operands(sizes, "bfloat16"))
    rng = np.random.default_rng(4)
    s = sizes
    given = Operands(
        *(q, k, v),
        bias=jnp.asarray(rng.standard_normal((1, s.N, 1, s.S)), jnp.bfloat16),
        mask=jnp.asarray(rng.random((s.B, 1, s.T, s.S)) < 0.7),
        q_lengths=jnp.arange(s.B, dtype=jnp.int32) * 5 + 1,
        k_lengths=jnp.full(s.B, s.S - 3, jnp.int32),
    )
    if operation == "forward":
        return of_partitions(given, [], ("y", "sums"), operation, band)
    sums = jnp.zeros((s.B, s.N, s.T), jnp.float32)
    return of_partitions(given, [sums, q, 2 * q], MOVING, operation, band)


BANDS = {
    "open": Band(from_end=False),
    "causal": Band(None, 0, from_end=False),
    "window": Band(-3, 0, from_end=False),
}
SPECS = {
    "batch-heads": (ROWS, ROWS),
    "heads": (P(None, None, ("a", "b")), P()),
    "queries": (P(None, "a"), P(None, "a")),
    "queries-heads": (P(None, "a", "b"), P(None, None, "b")),
    "keys": (P(), P(None, "a")),
    "depth": (P("a", None, None, "b"), P("a", None, None, "b")),
    "heads-of-keys": (P(), P(None, None, "b")),
}


@pytest.mark.parametrize("operation", PLAIN)
@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
@pytest.mark.parametrize("sizes", [EQUAL, GROUPED, SHARED], ids=["equal", "grouped", "shared"])
def test_partitions(operation, band, sizes, cpu_devices):
    split, whole, arrays = problem(sizes, band, operation)
    want = jax.jit(lambda *x: whole(x))(*arrays)
    mesh = mesh_of(cpu_devices)
    for name, (of_queries, of_keys) in SPECS.items():
        if sizes is SHARED and "b" in (*of_keys, ""):
            continue
        specs = [of_queries, of_keys, of_keys, *[P()] * (len(arrays) - 3)]
        if operation == "backward":
            specs[-2:] = [of_queries] * 2
        shards = [
            jax.device_put(x, NamedSharding(mesh, spec))
            for x, spec in zip(arrays, specs, strict=True)
        ]
        assert_near(jax.jit(split)(*shards), want, name)


@pytest.mark.parametrize("operation", PLAIN)
@pytest.mark.parametrize("sizes", [EQUAL, GROUPED], ids=["equal", "grouped"])
def test_partitions_of_batch_and_heads_ask_no_other_device(operation, sizes, cpu_devices):
    split, _, arrays = problem(sizes, BANDS["causal"], operation)
    mesh = mesh_of(cpu_devices)
    sides = [P(None, "b"), P("a"), P("a"), P("a")]
    behind = [] if operation == "forward" else [P("a", "b"), ROWS, ROWS]
    specs = [ROWS, ROWS, ROWS, *sides, *behind]
    shards = [
        jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)
    ]
    text = jax.jit(split).lower(*shards).compile().as_text()
    assert not collectives(text)


@pytest.mark.parametrize("operation", PLAIN)
def test_more_devices_than_key_heads(operation, cpu_devices):
    """Nothing is sent forward, and backward the cotangents of keys and values alone."""
    split, _, arrays = problem(GROUPED, BANDS["causal"], operation)
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    of_heads = P(None, None, "a")
    behind = [] if operation == "forward" else [P(None, "a"), of_heads, of_heads]
    specs = [of_heads, P(), P(), P(None, "a"), P(), P(), P(), *behind]
    shards = [
        jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)
    ]
    text = jax.jit(split).lower(*shards).compile().as_text()
    assert set(collectives(text)) == ({"all-reduce"} if operation == "backward" else set())


def test_queries_that_are_spread_stay_so(cpu_devices):
    split, _, arrays = problem(EQUAL, BANDS["causal"], "forward")
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    shards = placed(mesh, arrays, P())
    shards[0] = placed(mesh, arrays[:1], P(None, "a"))[0]
    y, _ = jax.jit(split)(*shards)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "a")), 4)


# ---- shard_map ----


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma, cpu_devices):
    """Queries differ between devices; the keys, which do not, get the sum of all cotangents."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    q, k, v, dy = operands(cases.Sizes(8, 8, 8, 2, 2, 8))
    k, v = k[:1], v[:1]

    def local(q, k, v):
        return jk.dot_product_attention(q, k, v, is_causal=True)

    split = jax.shard_map(
        local, mesh=mesh, in_specs=(P("a"), P(), P()), out_specs=P("a"), check_vma=check_vma
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


# ---- the whole rule of CUDA devices ----


def as_on_cuda(name, forms, results):
    """A primitive that a CPU lowers as CUDA devices do flash attention; `name` tells its partitions from others."""
    primitive = Primitive(f"flash_attention_{name}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(flash.attention_abstract_eval)
    rule = functools.partial(flash_lowering.lower_cuda, primitive.name, forms, results)
    mlir.register_lowering(primitive, rule, platform="cpu")
    partitioned_calls.needs_devices_for_lowering(primitive)
    return primitive


def test_the_lowering_of_cuda_devices(mesh):
    form = flash_forms.FORWARD.plain
    calls = []

    def cudnn(call, arrays):
        calls.append(arrays[0].shape)
        return form(call, arrays)

    name = str(mesh.axis_types[0])
    primitive = as_on_cuda(name, flash_forms.Forms(form, cudnn), ("y", "sums"))
    call = Call(MOVING, 0.3, BANDS["causal"])
    q, k, v, _ = operands(EQUAL)
    run = jax.jit(lambda *x: primitive.bind(*x, call=call)[0])
    want = form(call, [jnp.asarray(x) for x in (q, k, v)])
    with jax.set_mesh(mesh):
        shards = placed(mesh, (q, k, v), ROWS)
        got = run(*shards)
        assert got.sharding.is_equivalent_to(NamedSharding(mesh, ROWS), 4)
        assert not collectives(run.lower(*shards).compile().as_text())
    assert_near([got], want)
    assert (1, 16, 4, 8) in calls  # a device's part


def test_the_lowering_of_one_cuda_device(cpu_devices):
    def never(call, arrays):
        raise AssertionError

    primitive = as_on_cuda("alone", flash_forms.Forms(never, flash_forms.FORWARD.plain), ("y",))
    call = Call(MOVING, 0.3, BANDS["open"])
    arrays = [jnp.asarray(x) for x in operands(EQUAL)[:3]]
    jax.jit(lambda *x: primitive.bind(*x, call=call)).lower(*arrays)
