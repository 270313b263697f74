"""Problems drawn at random, run, and held to float64 under derived bounds: `python -m jaxkernels.verify --help`.

A program is one public function with its options and a derivative (`families`), and a way in which its operands come
(`delivery`): alone, mapped, in a loop, as slices of larger arrays. Eight programs are one compilation (`draw`), which runs
with many sets of numbers (`values`, in rows of lengths at which plans change: `row_layout`), and a part of them again, bit for
bit, from several threads (`run`). `truth` says what is right, and how far right arithmetic may be from it. `mistakes` are
planted to show that they are noticed.
"""
