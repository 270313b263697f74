"""What we show to users works: examples, docstrings, README's blocks and commands."""

import doctest
import functools
import importlib
import importlib.util
import json
import pkgutil
import re
import sys

import pytest
from programs import ROOT, run_python

import jaxkernels

# Trains for minutes unless asked for its short form, which its own test runs.
LONG = ROOT / "examples" / "train_char_lm.py"
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {LONG})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path):
    pytest.importorskip("sklearn")
    stdout, _ = run_python(path)
    assert stdout


def example(name):
    """The example as a module; flax wants to find it among the modules that are loaded."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digits_are_learned_by_our_kernels():
    pytest.importorskip("sklearn")
    result = example("train_digits").main(["--epochs", "60"])
    assert result.last_loss < result.first_loss / 3
    assert result.accuracy > 0.9
    assert result.largest_difference < 1e-3
    text = "\n".join(result.custom_calls)
    assert "jaxkernels_log_softmax_fwd" in text
    assert "jaxkernels_log_softmax_grad" in text


def test_flax_layers_with_our_products():
    pytest.importorskip("flax")
    result = example("flax_dense").main(["--steps", "40"])
    assert result.last_loss < result.first_loss / 1.5
    assert result.largest_difference < 1e-4
    assert result.nnx_difference < 1e-5
    assert result.products >= 4


def test_flax_attention_layers_with_our_softmax():
    pytest.importorskip("flax")
    layers = example("flax_attention").main([])
    assert [layer.name for layer in layers] == ["flax.linen", "flax.nnx"]
    for layer in layers:
        assert layer.is_equal, layer
        wanted = {"jaxkernels_masked_softmax_fwd", "jaxkernels_masked_softmax_grad"}
        assert wanted <= set(layer.targets), layer


@pytest.mark.parametrize("mistake", ["no mask", "NaN"])
def test_flax_attention_notices(mistake, monkeypatch):
    """Both modules pass arguments by the names that the function's signature has."""
    pytest.importorskip("flax")
    import jaxkernels.flax

    right = jaxkernels.flax.dot_product_attention

    @functools.wraps(right)
    def wrong(*arguments, **options):
        if mistake == "no mask":
            return right(*arguments, **{**options, "mask": None})
        return right(*arguments, **options) * float("nan")

    monkeypatch.setattr(jaxkernels.flax, "dot_product_attention", wrong)
    assert not any(layer.is_equal for layer in example("flax_attention").main(["--length", "16"]))


# Both tests need the same two trainings, which take longer than any other test.
one_process = pytest.mark.xdist_group("language model")


@pytest.fixture(scope="module")
def loss_curves(tmp_path_factory):
    for module in ("flax", "optax", "rich"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("char_lm")
    curves = {}
    for name in ("flax", "jaxkernels"):
        written = folder / f"{name}.json"
        stdout, _ = run_python(LONG, "--short", "--attention", name, "--json", written)
        assert "the model writes:\n\ndef " in stdout
        curves[name] = json.loads(written.read_text())["losses"]
    return curves


@one_process
def test_language_model_learns(loss_curves):
    """From a guess, log(128) = 4.85 or worse, to 2.3; counting letters would reach 3.1."""
    for losses in loss_curves.values():
        assert losses[0] > 4.85
        assert sum(losses[-20:]) / 20 < 2.6


@one_process
def test_language_model_learns_the_same_with_our_attention(loss_curves):
    """Roundings grow as the training goes on.

    How fast was measured on a CPU with Flax's attention alone: all initial weights changed by
    6e-8 of themselves, up or down at random, changed the losses of 600 steps by at most 9e-7 of
    themselves (three draws). Ten times that is allowed. Planted mistakes pass it: weights rounded
    to bfloat16 within 3 steps, a product in TF32 within 30.
    """
    flax, ours = loss_curves["flax"], loss_curves["jaxkernels"]
    assert len(flax) == len(ours) == 500
    for step, (theirs, mine) in enumerate(zip(flax, ours, strict=True)):
        assert abs(mine - theirs) <= 1e-5 * theirs, step


MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(jaxkernels.__path__, "jaxkernels.")
    if not name.endswith(("__main__", "._cuda", "._cpu"))
]


def test_docstring_examples():
    attempted = 0
    for name in ["jaxkernels", *MODULES]:
        if ".bench" in name:
            pytest.importorskip("matplotlib")
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        attempted += result.attempted
    assert attempted >= 10


def test_every_public_name_has_a_docstring():
    for name in jaxkernels.__all__:
        if name != "__version__":
            assert getattr(jaxkernels, name).__doc__, name


def blocks(language):
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_readme_python_blocks_run():
    """One after the other, as somebody would who reads from top to bottom."""
    found = blocks("python")
    assert found
    namespace = {"__name__": "readme"}
    for number, block in enumerate(found):
        exec(compile(block, f"README.md, Python block {number + 1}", "exec"), namespace)


def test_readme_begins_with_the_two_commands_that_ci_runs():
    """.ci/run takes the first two bash blocks of README as they stand; each is one command line."""
    install, test = blocks("bash")[:2]
    assert len(install.strip().splitlines()) == 1
    assert len(test.strip().splitlines()) == 1
    assert "pip install '.[examples,test]'" in install
    assert "examples/train_digits.py" in install
    assert test.startswith("pytest")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "readme_command 1" in ci
    assert "readme_command 2" in ci


def test_readme_numbers_name_their_machine():
    text = (ROOT / "README.md").read_text()
    assert "H200" in text
    assert re.search(r"20\d\d-\d\d-\d\d", text), "README's table has no date"
    assert "python -m jaxkernels.bench" in text


@pytest.mark.parametrize(("name", "programs"), [("attention", 1), ("sharding", 3)])
def test_python_blocks_of_documents(name, programs):
    """They run as they stand: one after the other, or each as a program of its own."""
    pytest.importorskip("flax")
    text = (ROOT / "docs" / f"{name}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if programs == 1:
        blocks = ["".join(blocks)]
    assert len(blocks) == programs
    for block in blocks:
        run_python("-c", block, JAX_PLATFORMS="cpu", XLA_FLAGS=None)


def test_what_the_guide_says_is_sent():
    """The collectives that docs/sharding.md names beside its programs."""
    text = (ROOT / "docs" / "sharding.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    calls = [
        [("jax.grad(loss)", "weights, x", ["all-reduce"])],
        [
            ("jk.dot_product_attention", "heads, heads, heads", []),
            ("block", "x, up, down", ["all-reduce"]),
        ],
        [("jax.grad(loss)", "table", ["all-reduce"] * 3)],
    ]
    for block, programs in zip(blocks, calls, strict=True):
        shown = "".join(
            f"print('found', hlo.collectives(jax.jit({function}).lower({operands}).compile().as_text()))\n"
            for function, operands, _ in programs
        )
        stdout, _ = run_python(
            "-c", f"import hlo\n{block}\n{shown}", JAX_PLATFORMS="cpu", XLA_FLAGS=None
        )
        found = [line for line in stdout.splitlines() if line.startswith("found")]
        assert found == [f"found {expected}" for _, _, expected in programs]
