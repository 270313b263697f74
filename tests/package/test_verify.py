"""python -m jaxkernels.verify: it passes on right results, notices planted mistakes, and repeats what it found."""

import json
import shlex

import numpy as np
import oracle
import pytest

from jaxkernels.verify import __main__ as command
from jaxkernels.verify import delivery, draw, mistakes, run
from jaxkernels.verify.families import OPERATIONS, family_of
from jaxkernels.verify.problem import Problem, WrongTypeError, from_spec, to_spec
from jaxkernels.verify.truth import compare, products, rows


def test_right_results_pass(tmp_path, capsys):
    record = tmp_path / "summary.json"
    assert command.main(["--programs", "8", "--seed", "1", "--json", str(record)]) == 0
    summary = json.loads(record.read_text())
    assert summary["programs"] == 8
    assert summary["checks"] > 8
    assert summary["failures"] == []
    assert summary["worst"] <= 1
    text = capsys.readouterr().out
    assert "8 programs, 0 failed" in text
    assert all(name in OPERATIONS for name, *_ in (x["of"] for x in summary["kernels"]))


def test_every_planted_mistake_is_noticed(capsys):
    assert command.main(["--self-test"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in mistakes.MISTAKES)
    assert "FAIL" not in text


def test_a_mistake_that_nobody_notices_fails_the_self_test(monkeypatch, capsys):
    harmless = mistakes.Mistake(lambda problem, operands, y: y)
    monkeypatch.setattr(mistakes, "MISTAKES", {"none at all": harmless})
    assert command.main(["--self-test"]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_failure_is_printed_with_a_line_that_repeats_it(capsys):
    planted = ["--plant", "last element not stored"]
    arguments = ["--programs", "2", "--only", "softmax", *planted]
    assert command.main(arguments) == 1
    text = capsys.readouterr().out
    (first, *_) = [line for line in text.splitlines() if "--repeat" in line]
    _, _, module, option, spec = shlex.split(first)
    assert (module, option) == ("jaxkernels.verify", "--repeat")
    # The same failure with the mistake, none without it.
    assert command.main(["--repeat", spec, *planted]) == 1
    assert first in capsys.readouterr().out
    assert command.main(["--repeat", spec]) == 0


def test_what_cannot_be_repeated_or_drawn_is_a_usage_error(capsys):
    for arguments in (
        ["--repeat", "nonsense"],
        ["--repeat", "{}"],
        ["--seed", "-1"],
        ["--programs", "0"],
        ["--only", "cosine"],
    ):
        with pytest.raises(SystemExit) as raised:
            command.main(arguments)
        assert raised.value.code == 2
    assert "cosine" in capsys.readouterr().err


def test_the_same_seed_draws_the_same_problems_and_numbers():
    first, second = (draw.bundle(7, 3) for _ in range(2))
    assert first == second
    assert first != draw.bundle(8, 3)
    for problem in first[:3]:
        (some, _), (others, _) = (draw.numbers(problem, 1) for _ in range(2))
        assert all(x.tobytes() == others[name].tobytes() for name, x in some.items())


def test_a_line_determines_its_problem():
    for index in range(40):
        for problem in draw.bundle(5, index):
            assert from_spec(to_spec(problem, 3)) == (problem, 3)


def test_everything_is_drawn():
    """Operations, dtypes, deliveries and derivatives; float64 and eager bundles stand alone."""
    bundles = [draw.bundle(0, index) for index in range(150)]
    problems = [p for some in bundles for p in some]
    assert {p.operation for p in problems} == set(OPERATIONS)
    assert {p.delivery for p in problems} == set(delivery.DELIVERIES)
    assert {p.derivative for p in problems} == {"value", "vjp", "jvp", "remat"}
    assert {p.operation for p in problems if p.how == "xla"} == set(draw.IN_PLAIN_JAX)
    nested = [p for p in problems if p.delivery == "nested"]
    assert {p.outer_maps for p in nested} == {0, 1, 2}
    levels = {(name, p.mapped(name)) for p in nested for name in draw.numbers(p, 0)[0]}
    both = (True, False), (False, True)
    for name in ("x", "label", "mask", "where"):
        assert {(name, x) for x in both} <= levels
    dtypes = {(x, dtype) for x in OPERATIONS for dtype in family_of(x).dtypes(x)}
    assert {(p.operation, p.dtype) for p in problems} == dtypes
    for some in bundles:
        assert len({p.wide for p in some}) == 1
        assert len({p.delivery in delivery.EAGER for p in some}) == 1


def test_what_raises_is_a_failure_of_its_own_program(monkeypatch):
    problems = draw.bundle(1, 0, ("log_softmax",))[:2]
    right = family_of("log_softmax").core

    def core(self, problem):
        if problem == problems[1]:
            raise ValueError("broken on purpose")
        return right(problem)

    monkeypatch.setattr(type(family_of("log_softmax")), "core", core)
    fine, broken = run.outcomes(problems, 1, draws=[0])
    assert not fine.failures
    assert "broken on purpose" in broken.failures[0][1]


def test_overflow_near_the_end_of_the_range_may_round_either_way():
    largest = float(np.finfo(np.float32).max)
    want = np.array([largest * (1 + 1e-8)] * 2)
    got = np.array([largest, np.inf], np.float32)
    assert (compare.ratios(got, want, largest * 1e-6) <= 1).all()
    assert (compare.ratios(got, 2 * want, largest * 1e-6) == [np.inf, 0]).all()
    assert (compare.ratios(got, want / 2, largest * 1e-6) == [np.inf, np.inf])[1]


def test_sums_of_terms_that_are_alike_get_the_worst_case():
    """A single chain that starts with 1 rounds up every further term by almost a unit."""
    x = np.zeros((1, 41), np.float32)
    x[0, 0] = 16.6
    terms = np.exp(x - x.max())
    total = np.float32(0)
    for term in terms[0]:
        total += np.float32(term)
    wrong = (terms / np.float64(total)).astype(np.float32)
    wanted = (rows.bounded("softmax_fwd", x, accumulators=1, alike=a) for a in (False, True))
    ratio = [compare.ratios(wrong, *want).max() for want in wanted]
    assert ratio[1] <= 1 < ratio[0]


def test_whole_numbers_leave_no_error():
    """Each member by itself."""
    a, b = (np.random.default_rng(i).standard_normal((2, 3, 3)) for i in range(2))
    a[1], b[1] = np.rint(9 * a[1]), np.rint(9 * b[1])
    got = products.contraction("Zmk,Zkn->Zmn", products.known(a), products.known(b))
    assert (got.limit[0] > 0).all()
    assert (got.limit[1] == 0).all()


def test_members_are_judged_apart_and_shapes_and_dtypes_count():
    options = {"shape": [2], "axis": -1, "where": None}
    problem = Problem("softmax", "float32", None, "value", "plain", 2, 1, [0], options)
    x, right = np.zeros((2, 2), np.float32), np.full((2, 2), 0.5, np.float32)
    judge = family_of("softmax").judge
    wrong = right + np.float32([[0, 0], [0, 1e-3]])
    worst = judge(problem, {"x": x}, {"y": wrong}, np.zeros(2, bool))["y"]
    assert worst[0] <= 1 < worst[1]
    for y in (right[:, :1], right.astype(np.float16)):
        with pytest.raises(WrongTypeError, match="float32"):
            judge(problem, {"x": x}, {"y": y}, np.zeros(2, bool))


def test_nan_and_infinity_have_to_stand_where_the_truth_has_them():
    x = np.zeros((4, 16), np.float32)
    x[1, 3] = np.nan
    got = oracle.truth("softmax_fwd", x).astype(np.float32)
    assert np.isnan(got[1]).all()
    oracle.check(got, "softmax_fwd", x, accumulators=8)
    for place, wrong in (((1, 3), 0.0), ((1, 3), np.inf), ((0, 0), np.nan)):
        spoiled = got.copy()
        spoiled[place] = wrong
        with pytest.raises(AssertionError, match="inf times the bound"):
            oracle.check(spoiled, "softmax_fwd", x, accumulators=8)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_ulps_counts_units_in_the_last_place(dtype):
    one = np.ones(3, oracle.storage(dtype))
    step = {"float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10, "float64": 2**-52}[dtype]
    assert oracle.ulps(one, oracle.widen(one)) == 0
    assert oracle.ulps(one, oracle.widen(one) + step) == 1
