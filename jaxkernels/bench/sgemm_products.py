"""The products of the suite ``sgemm``: listed shapes, and random ones.

`drawn` takes m, n and k from 1 to 65536, log-uniform, and drops products that are too large. Most of
these shapes are ones that nobody tunes for.
"""

from collections.abc import Sequence

import numpy as np

from jaxkernels.bench.families import MEASURED
from jaxkernels.bench.records import Case

LISTED = ("square", "other", "transposed", "ladder")
GROUPS = (*LISTED, "drawn", "families", "peers")
_KINDS = ("NN", "NT", "TN", "TT")
_LONGEST = 2**16
_MOST_MEMBERS = 2**12
_ONE_MEMBER = 0.75  # the probability of a product without a batch
# Limits of a random product: operations, and bytes of operands and result.
_MOST = {"gpu": (2**40, 8 * 10**9), "cpu": (2**24, 2**24)}


def product(group: str, batch: int, m: int, n: int, k: int, transposes: str = "NN") -> Case:
    """The case C[m, n] = A[m, k] B[k, n], `batch` times; a "T" in `transposes` is stored transposed."""
    case = {"group": group, "batch": batch, "m": m, "n": n, "k": k}
    return {**case, "transposes": transposes}


def of_shapes(group: str, *shapes: tuple[int, ...], kinds: Sequence[str] = ("NN",)) -> list[Case]:
    """Cases of shapes (n,), (m, n, k) or (batch, m, n, k)."""
    found = []
    for shape in shapes:
        batch, m, n, k = (1, *shape * 3) if len(shape) == 1 else (1, *shape)[-4:]
        found += [product(group, batch, m, n, k, kind) for kind in kinds]
    return found


def _families(n: int) -> list[Case]:
    return [{**case, "family": name} for case in of_shapes("families", (n,)) for name in MEASURED]


_SQUARES = ((256,), (512,), (1024,), (2048,), (4096,), (8192,), (16384,))
GPU_PRODUCTS = (
    *of_shapes("square", *_SQUARES),
    *of_shapes("other", (4096, 4096, 64), (64, 4096, 4096), (128, 128, 65536), (4097, 4095, 4093)),
    *of_shapes("other", (50257, 768, 1024), (64, 512, 512, 64), (512, 128, 128, 128)),
    *of_shapes("other", (8192, 128, 8192), (1000,), (16384, 1280, 5120), (16, 1024, 1024, 1024)),
    *of_shapes("transposed", (1024,), (4096,), (8192, 4096, 1024), kinds=_KINDS),
    *of_shapes("ladder", (4096,)),
    *_families(4096),
    *of_shapes("peers", *_SQUARES[2:]),
)
CPU_PRODUCTS = (
    *(*of_shapes("square", *_SQUARES[:2]), *of_shapes("other", (4, 96, 80, 64))),
    *(*_families(128), *of_shapes("peers", (128,), (256,))),
)


def drawn(count: int, seed: int, platform: str) -> list[Case]:
    """Random products; a larger count of the same seed starts with the same products."""
    most_operations, most_bytes = _MOST["cpu" if platform == "cpu" else "gpu"]
    rng = np.random.default_rng(seed)

    def size(most: int) -> int:
        """Log-uniform from 1 to `most`."""
        return round(2 ** rng.uniform(0, np.log2(most)))

    found: list[Case] = []
    while len(found) < count:
        m, n, k = (size(_LONGEST) for _ in range(3))
        batch = 1 if rng.uniform() < _ONE_MEMBER else size(_MOST_MEMBERS)
        case = product("drawn", batch, m, n, k, _KINDS[rng.integers(len(_KINDS))])
        fits = flops(case) <= most_operations and touched_bytes(case) <= most_bytes
        if fits and case not in found:
            found.append(case)
    return found


def is_square(case: Case) -> bool:
    """Whether m, n and k are equal, without a batch."""
    return case["m"] == case["n"] == case["k"] and case["batch"] == 1


def is_chain(case: Case) -> bool:
    """Whether each result is the next product's b; families and peers need their own operands."""
    return is_square(case) and case["group"] in LISTED


def is_transposed(case: Case) -> tuple[bool, bool]:
    """Whether a and b are stored transposed."""
    return case["transposes"][0] == "T", case["transposes"][1] == "T"


def is_sliced(case: Case) -> bool:
    """Whether the operands are x[1:] of stored arrays."""
    return case.get("operands") == "sliced"


def flops(case: Case) -> float:
    """Operations of the product: 2 batch m n k."""
    return 2.0 * case["batch"] * case["m"] * case["n"] * case["k"]


def touched_bytes(case: Case) -> int:
    """Bytes of the operands and the result."""
    batch, m, n, k = (case[name] for name in ("batch", "m", "n", "k"))
    return 4 * batch * (m * k + k * n + m * n)


def size(case: Case) -> str:
    """The product's name in tables."""
    text = f"{case['m']}^3" if is_square(case) else f"({case['m']}, {case['n']}, {case['k']})"
    batch = f"{case['batch']} x " if case["batch"] > 1 else ""
    kind = case["transposes"].replace("NN", "")
    return " ".join(filter(None, (batch + text, kind, case.get("family"), case.get("operands"))))
