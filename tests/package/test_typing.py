"""The types of the public functions name every choice, and nothing but what the checks at run time accept."""

import ast
import inspect
import pathlib
import types
import typing

import pytest
from jax.typing import DTypeLike
from programs import ROOT

import jaxkernels as jk
import jaxkernels.flax
import jaxkernels.typing as choices
from jaxkernels import _cpu
from jaxkernels._core import validate
from jaxkernels._linear_loss import cross_entropy as linear_cross_entropy
from jaxkernels._rows import contract, cross_entropy

FUNCTIONS = {
    **{f"jk.{name}": getattr(jk, name) for name in jk.__all__},
    "jaxkernels.flax.dot_product_attention": jaxkernels.flax.dot_product_attention,
}
FUNCTIONS = {name: f for name, f in FUNCTIONS.items() if inspect.isfunction(f)}
# The arguments that are choices, and the types that list them.
CHOICES = {
    "tier": (choices.Tier,),
    "algorithm": (choices.Algorithm,),
    "implementation": (choices.Implementation, choices.AttentionImplementation),
    "empty_rows": (choices.EmptyRows,),
    "operation": (choices.Operation,),
    "device": (choices.DeviceName,),
    "reduction": (choices.Reduction,),
    "logits_dtype": typing.get_args(choices.LogitsDtype),
    "other_dtypes": (choices.OtherDtypes,),
    "platform": (choices.PlanPlatform,),
}


def members(hint):
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [part for item in typing.get_args(hint) for part in members(item)]
    return [hint]


def test_every_type_has_words():
    """The reference shows the text below an alias, and no comment."""
    tree = ast.parse(pathlib.Path(choices.__file__).read_text())
    aliases = [(i, line) for i, line in enumerate(tree.body) if isinstance(line, ast.AnnAssign)]
    assert aliases
    for i, alias in aliases:
        match tree.body[i + 1 : i + 2]:
            case [ast.Expr(ast.Constant(str(text)))]:
                assert text.endswith("."), ast.unparse(alias.target)
            case _:
                pytest.fail(f"{ast.unparse(alias.target)} has no words")


@pytest.mark.parametrize("module", [cross_entropy, linear_cross_entropy])
def test_overloads_of_losses_list_every_option(module):
    """Type checkers read the options of the overloads, and users those of the function."""
    losses, tokens = (f for name, f in vars(module).items() if name in jk.__all__)
    for function, options in ((losses, module._LossOptions), (tokens, module._Options)):
        parameters = inspect.signature(function).parameters.values()
        names = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert options.__optional_keys__ == names, function.__name__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hints_can_be_read_and_no_choice_is_any_text(name):
    hints = typing.get_type_hints(FUNCTIONS[name])
    for argument, hint in hints.items():
        if hint == DTypeLike | None:  # jax.numpy's own argument, `preferred_element_type`
            continue
        assert str not in members(hint), argument
        if argument in CHOICES:
            literals = [m for m in members(hint) if typing.get_origin(m) is typing.Literal]
            assert literals, argument
            assert all(literal in CHOICES[argument] for literal in literals), argument
        else:
            assert not any(typing.get_origin(m) is typing.Literal for m in members(hint)) or (
                argument in ("dtype", "of_dtype", "bias")  # a bias is one by its dtype, in plans
            ), argument


def test_tables_of_the_checks_are_these_types():
    """`validate` makes its own from the types."""
    args = typing.get_args
    assert args(choices.AttentionImplementation) == (
        *validate.IMPLEMENTATIONS,
        "cudnn",
        "ffi_flash",
    )
    assert args(choices.Operation) == tuple(contract.OPERATIONS)


def test_tables_of_the_extension_module_are_these_types():
    h200 = _cpu.named_devices()["h200"]
    assert set(typing.get_args(choices.DeviceName)) == set(_cpu.named_devices())
    rungs = typing.get_args(choices.Algorithm)
    assert ("auto", *rungs) == tuple(_cpu.sgemm_algorithms())
    for dtype in validate.DTYPES:
        for operation, traits in contract.OPERATIONS.items():
            if traits.takes_label:
                continue  # not all tiers serve them
            for tier in validate.TIERS:
                assert _cpu.plan_softmax(1, 8, dtype, operation, h200, tier).tier == tier


def test_the_stub_has_the_fields_of_plans():
    stub = ast.parse((ROOT / "jaxkernels" / "_cpu.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    for plan in (_cpu.SgemmPlan, _cpu.SoftmaxPlan, _cpu.AttentionKernelPlan, _cpu.DeviceLimits):
        body = classes[plan.__name__].body
        in_stub = {ast.unparse(x.target) for x in body if isinstance(x, ast.AnnAssign)}
        in_stub |= {x.name for x in body if isinstance(x, ast.FunctionDef)}
        public = {name for name in dir(plan) if not name.startswith("_")}
        assert public == {name for name in in_stub if not name.startswith("_")}, plan
