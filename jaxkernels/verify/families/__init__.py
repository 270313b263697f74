"""Families of problems: how each is drawn, called, and compared with its truth."""

from jaxkernels.verify.families.attention import Attention
from jaxkernels.verify.families.distillation import Divergences
from jaxkernels.verify.families.losses import TokenLosses
from jaxkernels.verify.families.masked import Masked
from jaxkernels.verify.families.optax import OptaxLosses
from jaxkernels.verify.families.products import Products
from jaxkernels.verify.families.rows import Rows
from jaxkernels.verify.problem import Family

_KINDS = Rows, Masked, TokenLosses, Divergences, OptaxLosses, Attention, Products
FAMILIES: tuple[Family, ...] = tuple(kind() for kind in _KINDS)
OPERATIONS = tuple(operation for family in FAMILIES for operation in family.operations)


def family_of(operation: str) -> Family:
    """The family that an operation belongs to."""
    return next(family for family in FAMILIES if operation in family.operations)
