"""Many runs from one file: the commands ``lit-fednas sweep`` and ``lit-fednas arena``.

A sweep file is one of Weights & Biases, with every combination of some settings; an arena file lists methods, which
are trained on the same data with the same seeds, and then compared at the same device tiers. Every run is a process
of its own in a folder of its own; ``sweep.json`` says how each stands, and the same command goes on where it was
stopped.
"""
