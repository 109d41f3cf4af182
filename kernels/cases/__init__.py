"""Named uses of every operator: the shapes that are compiled for each architecture, checked and timed on a device.

One list serves the offline compiler, the interpreter and the benchmark, so that all three speak of the same launches.
"""
