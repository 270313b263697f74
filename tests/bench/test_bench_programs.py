"""The programs of contenders, where their results alone do not show what is measured."""

import re
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensor_families

from jaxkernels.bench import (
    attention,
    attention_sizes,
    float32,
    linear_loss,
    losses,
    programs,
    row_map,
    rows,
    scaling,
    sgemm,
    sgemm_products,
    timing,
    traffic,
)
from jaxkernels.bench.families import FAMILIES, MEASURED
from jaxkernels.bench.programs import chain, compiled_text
from jaxkernels.bench.rows import row_case

ON_CPU = jax.default_backend() == "cpu"


def prepared(program):
    """The function of a program as it is timed, and its first arguments."""
    function = jax.jit(program.function) if program.jit else program.function
    return function, program.draw()[0]


@pytest.mark.parametrize("operation", ["softmax", "log_softmax", "logsumexp"])
def test_our_backward_pass_runs_no_forward(operation):
    """From one array that the forward keeps, and the cotangent. A forward has a maximum in it."""
    case = row_case(operation, "grad", "float32", 4, 33)
    function, (kept, dy) = prepared(rows.program(case, "auto"))
    assert kept.shape == (4, 33)
    text = function.lower(kept, dy).as_text()
    assert "maximum" not in text
    assert ("_grad" in text) or operation == "logsumexp"
    if operation == "logsumexp":
        wanted = jax.nn.softmax(kept) * dy[:, None]
        np.testing.assert_allclose(function(kept, dy), wanted, rtol=1e-5, atol=1e-6)


def test_reads_read_everything():
    case = row_case("logsumexp", "fwd", "float32", 9, 1000)
    x = np.random.default_rng(0).standard_normal((9, 1000), np.float32)
    found = {name: rows.function_of(case, name)[0](x) for name in traffic.CEILINGS["read"]}
    np.testing.assert_array_equal(found["row_max"], x.max(axis=-1))
    np.testing.assert_allclose(found["sum"], x.sum(), rtol=1e-5, atol=1e-3)
    pieces = x.ravel()[:8192].reshape(2, 4096)
    np.testing.assert_array_equal(found["piece_max"], pieces.max(axis=-1))


def test_a_chain_hands_each_result_on():
    add = jax.jit(chain(lambda a, x: a + x, rounds=3))
    found = add((jnp.ones(4), jnp.zeros(4)), (2 * jnp.ones(4), jnp.ones(4)))
    assert [list(x) for x in found] == [[3.0] * 4, [7.0] * 4]


# XLA of JAX 0.10 fuses across the barriers of a chain on a CPU; the number of kernels shows it.
KEPT_APART = ["copy", "xla", "auto"] if jax.__version_info__ >= (0, 11) else ["auto"]


@pytest.mark.parametrize("name", KEPT_APART)
def test_calls_of_a_chain_stay_apart(name, monkeypatch):
    def found():
        program = row_map.program(row_case("softmax", "fwd", "float32", 4, 33, "few_rows"), name)
        function, arguments = prepared(program)
        text = compiled_text(function, arguments)
        return len(re.findall(r" (?:fusion|custom-call|copy)\(", text)), program.operations

    kernels, calls = found()
    assert kernels >= calls == 16 * 8
    assert kernels % calls == 0
    if name == "copy":  # without the barrier XLA takes two negations for none
        monkeypatch.setattr(jax.lax, "optimization_barrier", lambda arrays: arrays)
        assert found()[0] < calls


@pytest.mark.parametrize("direction", ["loss", "mean"])
def test_every_link_of_a_chain_computes_its_loss(direction, monkeypatch):
    """XLA would take the log-sum-exp of logits that do not change once for all links."""
    monkeypatch.setattr(losses, "chain", lambda link: chain(link, 3))
    case = row_case("losses", direction, "float32", 6, 133, "few_rows")
    function, ((label, x),) = prepared(losses.program(case, "xla"))
    compiled = function.lower((label, x)).compile()
    assert compiled.as_text().count(" exponential(") >= 3
    same = np.asarray(compiled((label, x))[0] == x)
    assert not same[0, 0]
    assert same.sum() == (same.size - 1 if direction == "loss" else 0)


@pytest.mark.parametrize(
    ("name", "direction", "reduction"), [("compiled", "none", "none"), ("torch", "loss", "mean")]
)
def test_torch_is_compared_where_it_is(name, direction, reduction, monkeypatch):
    """A stand-in gets JAX's arrays, is asked for its loss and its gradient, and is waited for."""
    torch = mock.MagicMock()
    torch.compile.side_effect = lambda function: function
    loss, tensor = torch.nn.functional.cross_entropy, torch.from_dlpack.return_value
    monkeypatch.setattr(losses.importlib.util, "find_spec", lambda name: name == "torch")
    monkeypatch.setattr(losses.importlib, "import_module", lambda name: torch)
    case = row_case("losses", direction, "float32", 6, 133)
    assert losses.names(case, types.SimpleNamespace(drawn=0))[-2:] == ["torch", "compiled"]
    function, arguments = prepared(losses.program(case, name))
    jax.block_until_ready(function(*arguments))
    assert [x.args for x in torch.from_dlpack.call_args_list] == [(x,) for x in arguments]
    assert torch.compile.called == (name == "compiled")
    x = tensor.requires_grad_.return_value
    assert tensor.requires_grad_.call_args == mock.call(direction != "loss")
    assert loss.call_args == mock.call(x, tensor.long.return_value, reduction=reduction)
    gradients = [] if direction == "loss" else [mock.call(tensor)]
    assert loss.return_value.backward.call_args_list == gradients
    torch.cuda.synchronize.assert_called_once_with()


@pytest.mark.parametrize("kind", attention_sizes.KINDS)
def test_every_kind_of_drawn_layer_runs(kind):
    sizes = dict(zip(attention_sizes.DRAWN_SIZES, (2, 16, 32, 4, 2, 8), strict=True))
    case = {"group": "drawn", "dtype": "bfloat16", "direction": "both", "kind": kind, **sizes}
    function, arguments = prepared(attention.program(case, "ffi"))
    found = jax.tree.leaves(function(*arguments))
    assert len(found) == 4
    assert all(bool(jnp.isfinite(x).all()) for x in found)


@pytest.mark.parametrize("k", [32, 16])
@pytest.mark.parametrize("name", ["xla", "auto"])
def test_a_program_computes_every_product(name, k):
    """Neither merged nor left out: it has the number that times are divided by."""
    if not ON_CPU:
        pytest.skip("on a GPU the calls have other names")
    case = sgemm_products.product("square" if k == 32 else "other", 1, 32, 32, k)
    assert sgemm_products.is_chain(case) == (k == 32)
    program = sgemm.program(case, name)
    function, arguments = prepared(program)
    text = function.lower(*arguments).compile().as_text()
    assert text.count(" dot(") == program.operations > 1


def test_a_chain_of_products_stays_finite():
    """Its results keep their size, so that a GPU's switching power is that of any numbers."""
    case = sgemm_products.product("square", 1, 64, 64, 64, "NT")
    function = jax.jit(sgemm.program(case, "auto").function)
    result = function(*sgemm.draw(case, 200)[0])
    assert 1e-3 < float(jnp.linalg.norm(result)) / 64 < 10


@pytest.mark.parametrize("transposes", ["NN", "NT", "TN", "TT"])
def test_an_error_of_a_product_is_seen(transposes, monkeypatch):
    """An element of a sampled row, column and member that is wrong by a tenth of itself."""
    monkeypatch.setattr(sgemm, "_SAMPLED_ROWS", 5)
    monkeypatch.setattr(sgemm, "_SAMPLED_COLS", 4)
    case = sgemm_products.product("other", 3, 40, 30, 20, transposes)
    (pair,) = sgemm.operands(case, 1)
    c = jax.jit(sgemm._function(case, "xla"))(*pair)
    assert sgemm.errors(case, pair, c)["of_bound"] < 1
    wrong = sgemm.errors(case, pair, c.at[1, 39, 29].mul(1.1))
    assert wrong["of_bound"] > 100
    assert wrong["relF"] > 1e-3


def test_an_error_of_a_linear_loss_is_seen(monkeypatch):
    """The oracle takes rows in parts; a gradient that is wrong by a tenth has a relF of a tenth."""
    monkeypatch.setattr(linear_loss, "_ROWS_OF_ORACLE", 32)
    case = linear_loss.linear_case(70, 24, 300, "float32", 60_000)
    function, arguments = prepared(linear_loss.program(case, "ours"))
    assert max(linear_loss._errors(function, arguments).values()) < 2e-6

    def wrong(*arguments):
        loss, (dx, dw) = function(*arguments)
        return loss, (1.1 * dx, dw)

    assert linear_loss._errors(wrong, arguments)["dx"] == pytest.approx(0.1, rel=1e-3)
    assert linear_loss.program(case, "bounded").inspect["chunks"](None, arguments) > 1


# Products of a forward program and of a step. A linear layer has one, and two more for its gradients (one if its
# input is that of the model). Attention has two, and four more.
PRODUCTS = {"attention": (6, 15), "triangle": (8, 24), "mlp": (2, 5), "char_lm": (9, 27)}


@pytest.mark.parametrize("direction", [0, 1], ids=float32.DIRECTIONS)
@pytest.mark.parametrize("model", float32.MODELS)
def test_products_of_models(model, direction):
    """Ours are ours, none of XLA's; those are at their precisions."""
    case = {"model": model, "direction": float32.DIRECTIONS[direction], **float32.CPU_SIZES[model]}
    arguments = float32.program(case, "ours").draw()[0]
    programs = {name: float32.program(case, name).function for name in float32.NAMES}
    texts = {name: str(jax.make_jaxpr(f)(*arguments)) for name, f in programs.items()}
    number = PRODUCTS[model][direction]
    for name, text in texts.items():
        counts = text.count("jaxkernels_sgemm["), text.count("dot_general[")
        of_xla = name in ("highest", "default")
        assert counts == ((0, number) if of_xla else (number, 0)), name
    for name, rung in {"ours": "auto", "pipelined": "pipelined"}.items():
        assert set(re.findall(r"algorithm='(\w+)'", texts[name])) == {rung}
    assert [("HIGHEST" in texts[name]) for name in ("highest", "default")] == [True, False]


@pytest.mark.parametrize("direction", scaling.OF_VOCABULARY)
def test_a_cut_vocabulary(direction, cpu_devices, monkeypatch):
    """Results and gradients are cut like the input, and only `gathered` gathers."""
    monkeypatch.setattr(scaling.jax, "devices", lambda *_: cpu_devices)
    case = {"group": "vocabulary", "dtype": "float32", "direction": direction, "shape": [8, 256]}
    for name in scaling.CONTENDERS:
        program = scaling.program(case | {"devices": 4}, name)
        function, arguments = prepared(program)
        found = jax.tree.leaves(jax.block_until_ready(function(*arguments)))
        assert {x.sharding for x in found} == {scaling.cut(4, 1)}
        collectives = program.inspect["collectives"](function, arguments)
        # Each operand once: a residual that is gathered again would flatter ours.
        assert collectives.get("all-gather", 0) == (len(arguments) if name == "gathered" else 0)


def test_numbers_of_devices_double(monkeypatch):
    options = types.SimpleNamespace(devices=None)
    for visible, expected in ((8, [1, 2, 4, 8]), (6, [1, 2, 4]), (1, [1])):
        monkeypatch.setattr(scaling.jax, "devices", lambda visible=visible: [None] * visible)
        assert scaling.counts(options) == expected
    assert scaling.counts(types.SimpleNamespace(devices=[4, 4])) == [1, 4]


# A property of the operand a (96, 64) of each measured family, which normal numbers lack.
PROMISES = {
    "softmax": lambda a: np.allclose(a.sum(1), 1) and a.min() > 0,
    "p_minus_y": lambda a: np.allclose(a.sum(1), 0, atol=1e-6) and ((a < 0).sum(1) == 1).all(),
    "gelu": lambda a: -0.2 < a.min() < 0,
    "relu": lambda a: a.min() == 0 < (a == 0).mean() < 0.7,
    "outliers": lambda a: 0 < (abs(a) > 1e3).mean() < 0.01,
    "wide": lambda a: abs(np.log(abs(a)).std() - 4) < 0.4 and 0.4 < (a < 0).mean() < 0.6,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_of_a_family(name):
    """On the device, where they are measured, and on the host, for tests of products."""
    n = 64 if name.endswith("permutation") else 80
    case = {**sgemm_products.product("families", 1, 96, n, 64), "family": name}
    (a, b), (other, others) = sgemm.operands(case, 2)
    assert not (a == other).all()
    assert not (b == others).all()
    for left, right in ((a, b), tensor_families.operands(name, 96, 80, 64)):
        assert (left.shape, right.shape) == ((96, 64), (64, n))
        assert left.dtype == right.dtype == jnp.float32
        of_family = PROMISES.get(name, lambda x: np.isfinite(x).all())
        assert of_family(np.asarray(left, np.float64))
    assert {*MEASURED} == {*PROMISES}


@pytest.fixture
def draws_numbers(monkeypatch):
    """`sgemm.draw` as on a GPU, where an operand is its number."""
    cache = timing.last_level_cache_bytes("gpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(programs, "last_level_cache_bytes", lambda _: cache)
    monkeypatch.setattr(sgemm, "operands", lambda case, count, *_: [(i, -1) for i in range(count)])


def test_inputs_of_products_do_not_stay_in_the_cache(draws_numbers):
    """Data of twice the largest L2 lies between two uses of an input."""
    for case in sgemm_products.GPU_PRODUCTS:
        count = sgemm.products_per_call(case, "gpu")
        calls = sgemm.draw(case, count)
        if sgemm_products.is_chain(case):  # the first b, and every a once
            (call,) = calls
            assert len(set(call[1:])) == len(call) - 1 == count
            assert count * 4 * case["m"] * case["k"] >= 2 * 126 * 2**20
            continue
        inputs = [pair for call in calls for pair in call]
        assert {len(call) for call in calls} == {count}
        assert len(set(inputs)) == len(inputs)
        assert len(inputs) * sgemm_products.touched_bytes(case) >= 2 * 126 * 2**20


def test_inputs_of_short_products_are_used_again(draws_numbers, monkeypatch):
    """Otherwise the time of a short product would be that of updating a CUDA graph for other inputs."""
    monkeypatch.setattr(sgemm, "rotations", lambda _: 3)
    short, long = (sgemm_products.product("drawn", 1, 100, 100, k) for k in (2**8, 2**16))
    assert [len(sgemm.draw(case, 5)) for case in (short, long)] == [1, 3]
