"""Cross entropy on many devices, its kernels and memory, and derivatives that it alone has."""

import functools
import math

import cases
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hlo import collectives, operations, reduced_shapes
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from public_functions import plain_losses
from rows_of_losses import check_kernels, serves

import jaxkernels as jk
from jaxkernels._core import registry

X = cases.logits("normal", 16 * 8, 24, "float32").reshape(16, 8, 24)
LABEL = np.random.default_rng(0).integers(0, 24, (16, 8)).astype(np.int32)
LABEL[::3, 1] = -1


def mean(x, label=LABEL, **options):
    options |= {"label_smoothing": 0.1, "z_loss": 0.01, "reduction": "mean"}
    return jk.cross_entropy(x, label, **options)


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_values_of_sharded_classes(dtype, line):
    """Within the bounds of one device's kernels; devices that see nothing but -inf, far from the maximum, NaN."""
    x = cases.logits("normal", 11, 64, dtype)
    x[1, :56], x[1, 56:] = -np.inf, -300
    x[2, 5] = np.nan
    x[5, :8] = -np.inf
    x[6, :8], x[6, 8:16] = 300, -300
    x[7] = -200
    x[8, 1] = 100

    def place(calls):
        columns, whole = (NamedSharding(line, spec) for spec in (P(None, "a"), P()))
        return [
            (jax.device_put(x, columns), *jax.device_put(others, whole)) for x, *others in calls
        ]

    check_kernels([x], dtype, place=place)


@pytest.mark.parametrize("mode", [jax.jacrev, jax.jacfwd])
@pytest.mark.parametrize("options", [{}, {"logit_soft_cap": 3.0}], ids=str)
@pytest.mark.parametrize("hidden", [-np.inf, np.nan])
def test_derivatives_of_a_temperature_with_hidden_classes(mode, options, hidden):
    """They are those of the classes that are seen."""
    label = np.array([0, 1, 3])
    x = X[0, :3, :7]
    seen = np.arange(x.shape[-1]) < 4
    where = None if hidden == -np.inf and not options else seen

    def loss(x, temperature, where=None):
        found = jk.cross_entropy(
            *(x, label), where=where, temperature=temperature, reduction="mean", **options
        )
        return jnp.sum(found)

    of_hidden = functools.partial(loss, where=where)
    of_seen = jax.jit(mode(loss, (0, 1)))(x[:, :4], 0.7)
    of_all = jax.jit(mode(of_hidden, (0, 1)))(np.where(seen, x, hidden), 0.7)
    np.testing.assert_allclose(of_all[0][:, :4], of_seen[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(of_all[0][:, 4:], 0)
    np.testing.assert_allclose(of_all[1], of_seen[1], rtol=1e-5, atol=1e-6)


def kernels_in(function, *arguments):
    text = str(jax.make_jaxpr(function)(*arguments))
    names = ("fwd", "fwd_grad", "grad", "jvp")
    return {name: text.count(f"jaxkernels_cross_entropy_{name}[") for name in names}


def test_programs_that_make_no_gradient_with_their_loss():
    """The gradient of float16 would be rounded before it is scaled; weights alone need none."""
    assert kernels_in(jax.grad(mean), X.astype(np.float16))["fwd_grad"] == 0
    counts = kernels_in(jax.grad(lambda w: mean(X, weights=w)), jnp.ones(LABEL.shape))
    assert counts == {"fwd": 1, "fwd_grad": 0, "grad": 0, "jvp": 0}


OPTIONS = {"weights": np.linspace(0.5, 2, LABEL.size).reshape(LABEL.shape), "temperature": 0.7}
OPTIONS |= {"label_smoothing": 0.1, "z_loss": 0.01}


def beside(cross_entropy, names, differentiates, reduction, x, weights):
    """A loss and its other results; the sum includes these if it `differentiates` them."""
    options = OPTIONS | {"weights": weights} | {f"return_{name}": True for name in names}
    loss, *others = cross_entropy(x, LABEL, reduction=reduction, **options)
    moving = others if differentiates else []
    return loss + sum(jnp.sum(jnp.sin(y)) for y in moving), others


def plain(x, label, *, reduction, return_lse=False, return_entropy=False, **options):
    """The same, operation by operation."""
    options["e"], options["z"] = options.pop("label_smoothing"), options.pop("z_loss")
    losses, lse, entropy = plain_losses(x, label, **options)
    total = jnp.sum(options["weights"] * (label >= 0)) if reduction == "mean" else 1
    return jnp.sum(losses) / total, *[lse] * return_lse, *[entropy] * return_entropy


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("differentiates", [False, True])
@pytest.mark.parametrize("names", [["lse"], ["entropy"], ["lse", "entropy"]])
def test_results_beside_a_loss(names, differentiates, reduction, dtype):
    """Its gradient comes from one read; from two if they have a cotangent too, by the kernel of "none"."""
    arguments = (names, differentiates, reduction)
    ours = functools.partial(beside, jk.cross_entropy, *arguments)
    both = lambda f: jax.value_and_grad(f, (0, 1), has_aux=True)  # noqa: E731
    x = X.astype(dtype)
    with jax.enable_x64(True):
        truth = both(functools.partial(beside, plain, *arguments))
        want = jax.device_get(truth(x.astype(np.float64), OPTIONS["weights"]))
    wide = oracle.compute(dtype)
    tolerance = 64 * np.finfo(wide).eps
    with cases.x64(dtype):
        weights = OPTIONS["weights"].astype(wide)
        program = jax.jit(both(ours)).trace(x, weights)
        platform = "cuda" if registry.has_cuda_module() else "cpu"
        text = program.lower(lowering_platforms=(platform,)).as_text()
        compiled = program.lower().compile()
        # A function outside of jit writes the gradient before it knows the cotangents.
        for call in (compiled, both(ours)):
            got = jax.device_get(call(x, weights))
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                rounding = 2 * float(jnp.finfo(a.dtype).eps) if a.dtype == dtype else 0
                atol = tolerance * np.max(np.abs(b)) + float(jnp.finfo(a.dtype).tiny)
                np.testing.assert_allclose(a.astype(float), b, rtol=tolerance + rounding, atol=atol)
    from_one_read = not differentiates and dtype != "float16"
    kernels = ["fwd_grad"] if from_one_read else ["fwd", "grad"]
    assert operations(text) == [f"cross_entropy_{name}" for name in kernels]
    assert len(jax.tree.leaves(got)) == 3 + len(names)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"return_lse": True, "return_entropy": True}], ids=len)
def test_a_cotangent_of_one_costs_nothing(options, dtype):
    """XLA multiplies the gradient of a mean by nothing, and converts it to nothing."""
    x = jnp.zeros((4, 6, 70), dtype)
    label = jnp.zeros((4, 6), int)

    def loss(x, label):
        found, *others = jax.tree.leaves(mean(x, label, **options))
        return found, others

    value = jax.jit(jax.value_and_grad(loss, has_aux=True))
    lines = value.lower(x, label).compile().as_text().splitlines()
    made = [line for line in lines if "[4,6,70]" in line.split("=")[-1].split("(")[0]]
    assert sum("custom-call" in line for line in lines) == 1
    assert not [
        line for line in made if "fusion" in line or "multiply" in line or "convert" in line
    ]


def test_a_loss_that_is_infinite_has_a_tangent():
    """Weights that do not vary have a zero tangent, which must not multiply the infinite loss."""
    x = jnp.array([[0.0, -jnp.inf, 1.0], [1.0, 2.0, 3.0]])
    for reduction in ("none", "mean", "sum"):
        loss = functools.partial(jk.cross_entropy, labels=np.array([1, 0]), reduction=reduction)
        y, tangent = jax.jvp(loss, (x,), (jnp.ones_like(x).at[0, 1].set(0),))
        assert np.isinf(y).any()
        assert np.isfinite(tangent).all()


reductions = pytest.mark.parametrize("reduction", ["none", "mean"])
ALL = {"label_smoothing": 0.1, "z_loss": 0.01, "weights": np.linspace(0, 2, 256)}
ALL |= {"return_lse": True, "return_entropy": True}
# Kernels of a GPU apply these; on a CPU plain JAX does, with arrays of the logits' size.
SCALES = {"temperature": np.linspace(0.5, 2, 256), "logit_soft_cap": 30.0}
SCALES = [SCALES, ALL | SCALES] if cases.ON_GPU else []
# Logits that the caller gives away become their gradient. The most temporary memory, relative to the
# logits: a few numbers per row, no second array.
MOST = 0.05


def value_and_gradient(reduction, tier=None, **options):
    def loss(x, label):
        found = jk.cross_entropy(x, label, reduction=reduction, tier=tier, **options)
        return sum(map(jnp.sum, jax.tree.leaves(found)))

    return jax.value_and_grad(loss)


def part_of_logits(x, compiled):
    """The temporary memory of a program, as a part of the bytes of the logits."""
    return compiled.memory_analysis().temp_size_in_bytes / x.nbytes


@pytest.mark.half_on_a_cpu
@reductions
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, ALL, *SCALES], ids=len)
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("donated", [True, False])
def test_no_second_array_of_their_size(donated, dtype, options, reduction):
    """A kernel that had to write over logits that are kept would read a copy; so would one of wider logits."""
    with cases.x64(dtype):
        x, label = jnp.zeros((256, 4096), dtype), jnp.zeros(256, jnp.int32)
        program = jax.jit(value_and_gradient(reduction, **options), donate_argnums=[0] * donated)
        lowered = program.lower(x, label)
        assert ("output_operand_alias" in lowered.as_text()) == donated
        compiled = lowered.compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= donated * x.nbytes
    assert part_of_logits(x, compiled) < MOST


@reductions
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cap", [None, 30.0])
def test_a_mask_and_a_cap_cost_one_copy_of_the_logits_on_a_gpu(cap, dtype, reduction):
    x, label = jnp.zeros((256, 4096), dtype), jnp.zeros(256, jnp.int32)
    options = ALL | {"where": jnp.arange(4096) > 0, "logit_soft_cap": cap}
    program = jax.jit(value_and_gradient(reduction, **options))
    copies = 1 if cap and cases.ON_GPU else 0
    assert part_of_logits(x, program.lower(x, label).compile()) < copies + MOST


@reductions
@pytest.mark.parametrize("how", ["export", "shard_map"])
def test_a_mask_that_rows_share_gathers_no_logits(grid, how, reduction):
    """Python splits no call of an exported program, or of one over some mesh axes."""
    x, label, seen = np.zeros((64, 128), np.float32), np.zeros(64, np.int32), np.arange(128) > 0
    rows, whole = NamedSharding(grid, P(("a", "b"))), NamedSharding(grid, P())

    def gradient(x, label, seen):
        return jax.grad(
            lambda x: jnp.sum(jk.cross_entropy(x, label, where=seen, reduction=reduction))
        )(x)

    if how == "shard_map":
        specs = {"in_specs": (P("a"), P("a"), P()), "out_specs": P("a"), "axis_names": {"a"}}
        gradient = jax.shard_map(gradient, mesh=grid, **specs)
    operands = [
        jax.device_put(*given) for given in zip((x, label, seen), (rows, rows, whole), strict=True)
    ]
    program = jax.jit(gradient, out_shardings=rows)
    if how == "export":
        checks = jk.export_checks()
        export = jax.export.export(program, platforms=["cpu"], disabled_checks=checks)
        program = jax.jit(export(*operands).call, out_shardings=rows)
    assert "all-gather" not in collectives(program.lower(*operands).compile().as_text())


@cases.tiers
@reductions
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_the_same_bits_in_place(dtype, reduction, tier):
    """Rows of every alignment, whose packs neighbours read while they are written. Threads of a CPU share one row."""
    shapes = [(1, 70001), *((40, n) for n in (3, 37, 128, 513, 1030, 4099, 20001))]
    xs = [cases.logits("normal", *s, dtype) for s in shapes if serves(tier, s, dtype)]

    def program(xs):  # labels from -1 to 2
        return [
            value_and_gradient(reduction, tier)(x, np.arange(len(x), 0, -1) % 4 - 1) for x in xs
        ]

    with cases.x64(dtype):
        want = jax.device_get(jax.jit(program)(xs))
        given = [jax.device_put(x, may_alias=False) for x in xs]
        got = jax.device_get(jax.jit(program, donate_argnums=0)(given))
    assert all(x.is_deleted() for x in given)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.usefixtures("on_a_cpu")
@reductions
@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=str)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_on_many_devices(kind, spec, reduction, cpu_devices):
    """Whole rows are overwritten; of spread classes only the values are looked at."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(kind,), devices=cpu_devices)
    x = cases.logits("normal", 256, 1024, "float32")
    whole, label = jax.device_put(x, NamedSharding(mesh, spec)), np.arange(256)
    label = jax.device_put(label, NamedSharding(mesh, P(spec[0])))
    function = value_and_gradient(reduction)
    want = jax.jit(function)(whole, label)
    program = jax.jit(function, donate_argnums=0).lower(whole, label).compile()
    if spec[0]:
        assert part_of_logits(x[:32], program) < MOST
    jax.tree.map(np.testing.assert_array_equal, program(whole, label), want)
    assert whole.is_deleted()


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("several", [False, True])
def test_sharded_classes_send_a_few_numbers_of_each_row(several, line):
    """A maximum, the sums, and a derivative by the temperature, under all options at once."""
    place = lambda a, *spec: jax.device_put(a, NamedSharding(line, P(*spec)))  # noqa: E731
    ids = np.random.default_rng(1).integers(-1, 1024, (256, 3) if several else 256)
    options = {"logit_soft_cap": 3.0, "where": np.arange(1024) % 9 > 0, "return_entropy": True}
    ids[ids % 9 == 0] = -1

    call = jk.token_log_probs if several else functools.partial(jk.cross_entropy, **ALL)

    def loss(x, temperature, where):
        found = call(x, ids, **options | {"temperature": temperature, "where": where})
        return sum(jnp.sum(jnp.where(jnp.isfinite(y), jnp.sin(y), 0)) for y in found)

    program = jax.jit(jax.value_and_grad(loss, (0, 1)))
    given = cases.logits("normal", 256, 1024, "float32"), np.linspace(0.5, 2, 256, dtype=np.float32)
    want = program(*given, options["where"])
    spread = place(given[0], None, "a"), place(given[1]), place(options["where"], "a")
    compiled = program.lower(*spread).compile()
    assert set(collectives(compiled.as_text())) == {"all-reduce"}
    sent = reduced_shapes(compiled.as_text())
    assert {(*shape, 1)[0] for shape in sent} == {256}
    assert max(map(math.prod, sent)) <= 8 * 256
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, compiled(*spread), want)
