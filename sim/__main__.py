"""``python -m sim`` is the command ``sim``."""

from sim.cli import main

main()
