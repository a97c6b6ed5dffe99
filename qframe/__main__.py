"""`python -m qframe` is the `qframe` command."""

from qframe.console.app import main

main()
