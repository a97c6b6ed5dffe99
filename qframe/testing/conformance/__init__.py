"""The conformance suite: tests each sentence of the contracts on a backend of anybody's.

`pytest --pyargs qframe.testing.conformance --backend my_package.conformance:MyBench`

`MyBench` derives `Bench` and opens the backend. It needs pytest, and nothing else.
"""

from qframe.testing.conformance.bench import Bench as Bench
