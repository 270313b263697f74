"""Runs random problems, and compares results with float64 under derived bounds: `python -m jaxkernels.verify --help`.

A program, or problem (`problem`), is a public function with options and a derivative (`families`), and a `delivery`: how
operands reach it, such as mapped, in a loop, or as slices of larger arrays. `draw` makes bundles of eight programs. `run`
compiles a bundle as one, runs it with many sets of numbers (`values`), and runs a part again from several threads, which
must give the same bits. `row_layout` has lengths of rows, at which plans change. `truth` defines the right results, and
bounds the errors of right arithmetic. `mistakes` has mistakes to plant into results; each must be noticed.
"""
