"""The examples, and the examples in docstrings, work."""

import doctest
import importlib
import json
import pkgutil

import hlo
import pytest
from example_modules import EXAMPLES, example
from programs import run_python

import jaxkernels

# Trains for minutes unless asked for its short form, which its own test runs.
LONG = EXAMPLES / "train_char_lm.py"
# A module that the examples import.
SHARED = EXAMPLES / "comparison.py"
PROGRAMS = sorted(set(EXAMPLES.glob("*.py")) - {LONG, SHARED})
ARGUMENTS = {"train_without_logits": ("--steps", 2)}  # another test trains longer


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_example_runs(path):
    for module in ("equinox", "flax", "optax", "rich", "sklearn"):
        pytest.importorskip(module)
    stdout, _ = run_python(path, *ARGUMENTS.get(path.stem, ()))
    assert stdout


def test_digits_are_learned_by_our_kernels():
    pytest.importorskip("sklearn")
    result = example("train_digits").main(["--epochs", "60"])
    assert result.last_loss < result.first_loss / 3
    assert result.accuracy > 0.9
    assert result.largest_difference < 1e-3
    text = "\n".join(result.custom_calls)
    assert set(hlo.operations(text)) == {"cross_entropy_fwd_grad"}


def test_a_model_is_trained_without_its_logits():
    """The losses are those of the plain form, in less than half of its memory."""
    for module in ("flax", "optax", "rich"):
        pytest.importorskip(module)
    plain, lean = example("train_without_logits").main(["--steps", "6"])
    assert lean.temporary_bytes < plain.temporary_bytes / 2
    for theirs, ours in zip(plain.losses, lean.losses, strict=True):
        assert abs(ours - theirs) <= 1e-4 * theirs
    assert lean.losses[-1] < lean.losses[0] - 0.5


# Both tests need the same two trainings, which take longer than any other test.
one_process = pytest.mark.xdist_group("language model")


@pytest.fixture(scope="module")
def loss_curves(tmp_path_factory):
    for module in ("flax", "optax", "rich"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("char_lm")
    curves = {}
    for name, steps in (("flax", 80), ("jaxkernels", 160)):
        written = folder / f"{name}.json"
        options = ("--short", "--attention", name, "--steps", steps, "--json", written)
        stdout, _ = run_python(LONG, *options, JAX_DISABLE_MOST_OPTIMIZATIONS=None)
        assert "the model writes:\n\ndef " in stdout
        curves[name] = json.loads(written.read_text())["losses"]
    return curves


@one_process
def test_language_model_learns(loss_curves):
    """From a guess, log(128) = 4.85 or worse, to 2.5; counting letters would reach 3.1."""
    losses = loss_curves["jaxkernels"]
    assert len(losses) == 160
    assert losses[0] > 4.85
    assert sum(losses[-20:]) / 20 < 2.7


@one_process
def test_language_model_learns_the_same_with_our_attention(loss_curves):
    """Roundings grow as the training goes on.

    How fast was measured on a CPU with Flax's attention alone: all initial weights changed by
    6e-8 of themselves, up or down at random, changed the losses of 600 steps by at most 9e-7 of
    themselves (three draws). Ten times that is allowed. Planted mistakes pass it: weights rounded
    to bfloat16 within 3 steps, a product in TF32 within 30.
    """
    flax, ours = loss_curves["flax"], loss_curves["jaxkernels"]
    assert len(flax) == 80
    for step, (theirs, mine) in enumerate(zip(flax, ours[:80], strict=True)):
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
