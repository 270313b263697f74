"""The true results, and bounds on the rounding errors of correct kernels.

`rows`, `products`, `masked` and `attention` compute results and derivatives in float64 (long double for float64
storage) from operands that are already rounded. The bounds are derived from the arithmetic of the kernels, never fitted;
`compare` holds a result to them. The tests and `python -m jaxkernels.verify` share this package.
"""
