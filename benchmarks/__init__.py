"""Benchmarks: qframe against its peers, as ratios measured in one run. `python -m benchmarks`."""
