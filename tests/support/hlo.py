"""Finds in compiled HLO the collectives, and the calls of this package's kernels."""

import re

_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|(?:ragged-)?all-to-all|collective-[a-z]+|reduce-scatter)(?:-start)?\("
)


def collectives(text):
    """Names of the collectives in HLO, as often as they occur."""
    return _COLLECTIVE.findall(text)


def reduced_shapes(text, collective="all-reduce", dropped="(?:,1)?"):
    """Shapes of the results of all-reduces in HLO, without a last dimension that matches `dropped`."""
    results = re.findall(rf"= (.*?) {collective}(?:-start)?\(", text)
    shapes = [shape for of in results for shape in re.findall(rf"\w\[([\d,]*?){dropped}\]", of)]
    return [tuple(int(size) for size in shape.split(",") if size) for shape in shapes]


def operations(text):
    """Names of the row operations that a program calls, in HLO or StableHLO."""
    lines = [line for line in text.splitlines() if re.search(r'[@"]jaxkernels_row', line)]
    return [re.search(r' operation = \\*"(\w+?)\\*"', line)[1] for line in lines]


def custom_calls(text):
    """Shapes of the results of our custom calls in HLO."""
    lines = [line for line in text.splitlines() if 'custom_call_target="jaxkernels_' in line]
    return [re.search(r"= \(?(\w+\[[\d,]*\])", line)[1] for line in lines]
