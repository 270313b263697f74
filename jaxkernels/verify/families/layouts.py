"""Sizes and layouts of products: batches in which either operand broadcasts, vectors, dimensions in any order, pairs of axes.

Each layout is a dict of shapes (of a and b) and labels, as for einsum; a dimension that broadcasts has its label in
capitals.
"""

import functools
import itertools
import math
from typing import Any

import jaxkernels as jk
from jaxkernels.verify.problem import Rng
from jaxkernels.verify.row_layout import changes

_SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 257, 1000)


def sizes(most: int, rng: Rng) -> tuple[int, int, int]:
    """Draws sizes with at most `most` elements per operand and result, and not too many products."""

    def fits(m: int, n: int, k: int) -> bool:
        return max(m * n, n * k, m * k) <= most and m * n * k <= 60 * most

    if rng.random() < 0.4:
        some = [sizes for sizes in product_boundaries() if fits(*sizes)]
        if some:
            return some[rng.integers(len(some))]
    while True:
        m, n, k = (int(x) for x in rng.choice(_SIZES, 3))
        if rng.random() < 0.02:
            m, n, k = (0 if place == rng.integers(3) else x for place, x in enumerate((m, n, k)))
        if fits(m, n, k):
            return m, n, k


@functools.cache
def product_boundaries() -> tuple[tuple[int, int, int], ...]:
    """(m, n, k) at which the plan of a product changes as one of them grows, and their neighbours."""

    def sizes(fixed: tuple[int, int], place: int, size: int) -> tuple[int, int, int]:
        m, n, k = *fixed[:place], size, *fixed[place:]
        return m, n, k

    def layout(fixed: tuple[int, int], place: int, size: int) -> Any:
        p = jk.plan_sgemm(*sizes(fixed, place, size))
        shares = p.cluster_blocks, p.split_k
        return p.algorithm, p.block_m, p.block_n, *shares, p.pad_a > 0, p.pad_b > 0

    found = set()
    pairs = (64, 48), (33, 260), (256, 64), (130, 1000), (512, 512), (5, 700)
    for fixed, place in itertools.product(pairs, range(3)):
        for edge in changes(functools.partial(layout, fixed, place), 1, 4096):
            found |= {sizes(fixed, place, edge + d) for d in (-1, 0, 1)}
    return tuple(sorted(found))


def batch_of(room: int, rng: Rng) -> list[int]:
    """Batch dimensions of at most `room` members."""
    sizes: list[int] = []
    for _ in range(int(rng.choice([0, 0, 1, 2, 3]))):
        size = int(rng.choice([1, 2, 3, 5]))
        if math.prod(sizes) * size <= room:
            sizes.append(size)
    return sizes


def matrices(
    m: int, n: int, k: int, batch: list[int], flags: list[bool], rng: Rng
) -> dict[str, Any]:
    """Batches whose dimensions either operand may broadcast or lack; a flag says that an operand is transposed."""
    names = "defghij"[: len(batch)]
    shapes, labels = [], []
    whole = rng.integers(2) if rng.random() < 0.5 else None
    for place, (matrix, sizes) in enumerate((("mk", [m, k]), ("kn", [k, n]))):
        one = [place != whole and rng.random() < 0.4 for _ in batch]
        lead = [1 if x else size for x, size in zip(one, batch, strict=True)]
        name = [x.upper() if o else x for x, o in zip(names, one, strict=True)]
        while lead and lead[0] == 1 and rng.random() < 0.5:
            lead, name = lead[1:], name[1:]
        turn = slice(None, None, -1) if flags[place] else slice(None)
        shapes.append([*lead, *sizes[turn]])
        labels.append("".join(name) + matrix[turn])
    present = labels[0] + labels[1]
    out = "".join(x if x in present else x.upper() for x in names if x in present.lower())
    return {"shapes": shapes, "labels": f"{labels[0]},{labels[1]}->{out}mn", "flags": flags}


def vectors(m: int, n: int, k: int, rng: Rng) -> dict[str, Any]:
    """Products with an operand of one dimension."""
    shapes, labels = (
        ([[k], [k, n]], "k,kn->n"),
        ([[m, k], [k]], "mk,k->m"),
        ([[k], [k]], "k,k->"),
        ([[2, m, k], [k]], "dmk,k->dm"),
        ([[k], [3, k, n]], "k,dkn->dn"),
    )[rng.integers(5)]
    return {"shapes": shapes, "labels": labels}


def _parts(size: int, names: str, rng: Rng) -> dict[str, int]:
    """A size as one dimension, or as two."""
    inner = next((d for d in (3, 2, 5) if size % d == 0 and size > d), None)
    if inner is None or rng.random() < 0.5:
        return {names[0]: size}
    return {names[0]: inner, names[1]: size // inner}


def _shuffled(items: Any, rng: Rng) -> list[Any]:
    items = list(items)
    return [items[i] for i in rng.permutation(len(items))]


def _layout(sizes: dict[str, int], left: str, right: str, out: str) -> dict[str, Any]:
    shapes = [[sizes[x] for x in labels] for labels in (left, right)]
    return {"shapes": shapes, "labels": f"{left},{right}->{out}"}


def general(m: int, n: int, k: int, rng: Rng) -> dict[str, Any]:
    """Dimensions in any order; rows, columns and the sum may have two each."""
    rows, cols, summed = _parts(m, "mp", rng), _parts(n, "nq", rng), _parts(k, "kl", rng)
    common = {"d": int(rng.choice([1, 2, 3]))} if rng.random() < 0.5 else {}
    left, right = ("".join(_shuffled(common | own | summed, rng)) for own in (rows, cols))
    pairs = _shuffled(summed, rng), list(common)
    numbers = [[[x.index(name) for name in some] for x in (left, right)] for some in pairs]
    out = "".join([*common, *(x for x in left if x in rows), *(x for x in right if x in cols)])
    return _layout(common | rows | cols | summed, left, right, out) | {"numbers": numbers}


def einsum(m: int, n: int, k: int, sums_lone: bool, rng: Rng) -> dict[str, Any]:
    """Labels in any order, also in the result; an ellipsis may replace the label that all arrays have.

    One operand may have a label that no other array has, if `sums_lone`.
    """
    found = general(m, n, k, rng)
    shapes, (left, right, out) = found["shapes"], found["labels"].replace("->", ",").split(",")
    labels = [left, right, "".join(_shuffled(out, rng))]
    if sums_lone and rng.random() < 0.3:
        whose, place = rng.integers(2), int(rng.integers(3))
        shapes[whose].insert(place, int(rng.choice([2, 3])))
        labels[whose] = f"{labels[whose][:place]}s{labels[whose][place:]}"
    written = labels
    if "d" in out and rng.random() < 0.5:
        for x, text in zip(shapes, labels, strict=False):
            x.insert(0, x.pop(text.index("d")))
        labels = ["d" + text.replace("d", "") for text in labels]
        written = [text.replace("d", "...") for text in labels]
    subscripts, labels = ("{},{}->{}".format(*x) for x in (written, labels))
    return {"shapes": shapes, "labels": labels, "subscripts": subscripts}


def tensordot(m: int, n: int, k: int, rng: Rng) -> dict[str, Any]:
    """Axes as the number of neighbouring dimensions to sum over, which may be 0, or as pairs in any order."""
    rows, cols, summed = _parts(m, "mp", rng), _parts(n, "nq", rng), _parts(k, "kl", rng)
    form = rng.choice(["neighbours", "pairs", "outer"], p=[0.4, 0.5, 0.1])
    summed = {} if form == "outer" else summed
    orders = [*rows, *summed], [*summed, *cols]
    axes: Any = len(summed)
    if form == "pairs":
        orders = tuple(_shuffled(x, rng) for x in orders)
        pairs = _shuffled(summed, rng)
        axes = [[x.index(name) - len(x) * int(rng.integers(2)) for name in pairs] for x in orders]
        axes = [x for (x,) in axes] if len(pairs) == 1 and rng.random() < 0.5 else axes
    left, right = map("".join, orders)
    out = "".join(x for x in left + right if x not in summed)
    return _layout(rows | cols | summed, left, right, out) | {"axes": axes}
