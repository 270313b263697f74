"""The true results, and bounds on the rounding errors of correct kernels.

`rows`, `losses`, `products`, `masked` and `attention` define results and derivatives in float64 (long double for float64
storage) from operands that are already rounded. Their numbers carry their bounds (`bounded`), which follow from the
arithmetic of the kernels and are never fitted; `compare` compares results with them. The tests and
`python -m jaxkernels.verify` share this package.
"""
