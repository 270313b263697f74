"""``python -m jaxkernels.bench sgemm``: every rung of the ladder beside XLA's float32 product.

* ``cases``: which products are measured, and the record of one.
* ``measure``: times them, and measures their errors.
* ``report``, ``plot``, ``command``: tables, the picture, the command line.
"""
