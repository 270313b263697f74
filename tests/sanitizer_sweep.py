"""Runs every tier on short, odd and long rows; test_sanitizer.py runs it under compute-sanitizer.

Only our kernels run: inputs come from the host and every program is one custom call, or two for a gradient.
"""

import cases
import jax
import oracle


def main():
    assert jax.default_backend() == "gpu"
    count = 0
    for dtype in oracle.DTYPES:
        for tier in ("warp", "block_smem", "block_uncached"):
            shapes = ((70, 3), (35, 37), (9, 128), (5, 513), (3, 1030), (2, 4099), (2, 70001))
            pairs = [
                (cases.logits("normal", *shape, dtype), cases.cotangents(*shape, dtype))
                for shape in shapes
                if cases.serves(tier, shape, dtype)
            ]
            cases.check_all(pairs, dtype, tier)
            count += len(pairs)
    print(f"{count} shapes right")


if __name__ == "__main__":
    main()
