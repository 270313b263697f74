"""Helpers of several examples: the difference of two results, the kernels that a program calls, and a table."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table


def relative_difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two trees of arrays, relative to the largest entry of the second.

    The entry is the largest of the whole tree. The gradient of a key's bias is only rounding noise
    and has no scale, because adding a constant to a row does not change its softmax.
    """
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), ours, theirs)
    sizes = jax.tree.map(lambda b: jnp.max(jnp.abs(b)), theirs)
    return float(jnp.max(jnp.array(jax.tree.leaves(gaps)))) / float(max(jax.tree.leaves(sizes)))


def operations_of(program: str) -> list[str]:
    """Names of our row operations that a compiled program calls."""
    call = r'custom_call_target="jaxkernels_rows".* operation = \\*"(\w+?)\\*"'
    return sorted(set(re.findall(call, program)))


def show(title: str, findings: Sequence[Any]) -> None:
    """Prints named tuples as the columns of a table. The first field is the head of a column."""
    name, *fields = findings[0]._fields
    table = Table("", *(getattr(finding, name) for finding in findings), title=title)
    fields += [field for field in ("is_equal",) if hasattr(findings[0], field)]
    for field in fields:
        values = [getattr(finding, field) for finding in findings]
        texts = (f"{x:.2g}" if isinstance(x, float) else str(x) for x in values)
        table.add_row(field.replace("_", " "), *texts)
    Console().print(table)
