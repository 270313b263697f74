"""The examples work, and what they show."""

import functools
import json
import math
import shlex

import pytest
from cases import ON_GPU
from programs import ROOT, module_of, run_programs, run_python

import jaxkernels.flax

EXAMPLES = ROOT / "examples"
# Trains for minutes unless asked for its short form, which its own test runs.
LONG = EXAMPLES / "train_char_lm.py"
# A module that the examples import.
SHARED = EXAMPLES / "comparison.py"
PROGRAMS = sorted(set(EXAMPLES.glob("*.py")) - {LONG, SHARED})
# Other tests train longer.
ARGUMENTS = {
    "equinox_module": ("--length", 16),
    "flax_transformer": ("--length", 16),
    "gaussian_process": ("--points", 50, "--steps", 3),
    "train_digits": ("--epochs", 20),
    "train_without_logits": ("--steps", 2),
}


@pytest.fixture(autouse=True, scope="module")
def what_examples_import():
    for module in ("equinox", "flax", "optax", "rich", "sklearn"):
        pytest.importorskip(module)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Exit code and output of each example."""
    commands = [map(str, (path, *ARGUMENTS.get(path.stem, ()))) for path in PROGRAMS]
    ran = run_programs(map(shlex.join, commands), tmp_path_factory.mktemp("examples"))
    return dict(zip(PROGRAMS, ran, strict=True))


@pytest.mark.xdist_group("examples")  # one process runs all of them
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_example_runs(outcomes, path):
    code, output = outcomes[path]
    assert code == 0, output
    assert output


def example(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)  # some import one another
        return module_of(EXAMPLES / f"{name}.py")


def test_digits_are_learned_by_our_kernels():
    result = example("train_digits").main(["--epochs", "60"])
    assert result.last_loss < result.first_loss / 3
    assert result.accuracy > 0.9
    assert result.largest_difference < 1e-3
    assert result.kernels == ["cross_entropy_fwd_grad"]


def test_a_model_is_trained_without_its_logits():
    """The losses are those of the plain form, in less than half of its memory."""
    plain, lean = example("train_without_logits").main(["--steps", "6"])
    assert lean.temporary_bytes < plain.temporary_bytes / 2
    for theirs, ours in zip(plain.losses, lean.losses, strict=True):
        assert abs(ours - theirs) <= 1e-4 * theirs
    assert lean.losses[-1] < lean.losses[0] - 0.5


ATTENTION = {"masked_softmax_fwd", "masked_softmax_grad"}
# Both modules drop the same weights: their dropout has equal bits.
BLOCK = ["--length", "16", "--dropout", "0.3"]
# An example that compares modules, its arguments, and the operations of each module.
COMPARISONS = [
    *(
        (
            "flax_transformer",
            [*BLOCK, "--dtypes", dtype],
            [{*ATTENTION, "cross_entropy_fwd_grad"}] * 2,
        )
        for dtype in ("float32", "bfloat16")
    ),
    ("equinox_module", ["--length", "16"], [{"softmax_fwd", "softmax_grad"}, ATTENTION]),
]


@pytest.mark.parametrize(("name", "arguments", "operations"), COMPARISONS)
def test_modules_are_equal(name, arguments, operations):
    findings = example(name).main(arguments)
    assert all(finding.is_equal for finding in findings), findings
    assert [set(finding.operations) for finding in findings] == operations
    if name == "flax_transformer":
        # Seven dense layers and two products of attention, each with two in the gradient.
        assert {finding.products for finding in findings} == {27 if "float32" in arguments else 0}


@pytest.mark.parametrize("mistake", ["mask", "NaN"])
def test_comparisons_notice_a_mistake(mistake, monkeypatch):
    """Modules pass arguments by the names that the function's signature has."""
    right = jaxkernels.flax.dot_product_attention

    @functools.wraps(right)
    def wrong(*arguments, **options):
        result = right(*arguments, **{**options, **({"mask": None} if mistake == "mask" else {})})
        return result * float("nan") if mistake == "NaN" else result

    monkeypatch.setattr(jaxkernels.flax, "dot_product_attention", wrong)
    findings = example("flax_transformer").main(BLOCK)
    assert not any(finding.is_equal for finding in findings)


def test_a_gaussian_process_needs_float32():
    ours, tf32 = example("gaussian_process").main(["--points", "200", "--steps", "30"])
    assert ours.steps_before_nan == 30
    assert ours.likelihood_error < 1e-3
    assert ours.least_noise_with_a_factor <= 1e-4
    assert ours.error_at_other_points < 0.2  # of a function between -3 and 3
    ratio = ours.estimate_of_that_error / ours.error_at_other_points
    assert 1 / 3 < ratio < 3
    # TF32's own fit ends in NaN, or keeps to more noise than there is.
    assert tf32.least_noise_with_a_factor > 100 * ours.least_noise_with_a_factor
    assert math.isnan(tf32.likelihood_error)
    assert tf32.smallest_eigenvalue < -1e-4
    assert tf32.estimate_of_that_error > 1.5 * ours.estimate_of_that_error
    assert tf32.largest_error_of_a_covariance > 100 * ours.largest_error_of_a_covariance


def test_what_was_exported_is_served(tmp_path):
    result = example("serve_exported").main(["--folder", str(tmp_path)])
    assert result.is_equal, result
    assert set(result.differences) == {1, 3, 4, 20, 32}
    assert result.platforms == ("cpu", "cuda")
    # Attention's softmax and the last one, for each platform that has kernels.
    assert result.kernels >= 2


# Both tests need the same two trainings, which take longer than any other test.
one_process = pytest.mark.xdist_group("language model")

STEPS = 160 if ON_GPU else 100


@pytest.fixture(scope="module")
def loss_curves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("char_lm")
    curves = {}
    for name, steps in (("flax", 40), ("jaxkernels", STEPS)):
        written = folder / f"{name}.json"
        options = ("--short", "--attention", name, "--steps", steps, "--json", written)
        stdout, _ = run_python(LONG, *options)
        assert "the model writes:\n\ndef " in stdout
        curves[name] = json.loads(written.read_text())["losses"]
    return curves


@one_process
def test_language_model_learns(loss_curves):
    """From a guess, log(128) = 4.85 or worse, to 2.5; counting letters would reach 3.1."""
    losses = loss_curves["jaxkernels"]
    assert len(losses) == STEPS
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
    assert len(flax) == 40
    for step, (theirs, mine) in enumerate(zip(flax, ours[:40], strict=True)):
        assert abs(mine - theirs) <= 1e-5 * theirs, step
