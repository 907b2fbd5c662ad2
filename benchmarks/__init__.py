"""Benchmarks: `python -m benchmarks.engine` and `python -m benchmarks.images`.

They print medians and ratios of contestants that run interleaved in one process, because ratios
travel between machines and absolute numbers do not. `peers.txt` lists what else can be installed
to compare with; what is missing is named in the table and skipped.
"""
