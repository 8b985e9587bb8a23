"""Command line of the hunt; see `tests.sim.mutants.hunt`."""

from __future__ import annotations

import sys

from tests.sim.mutants.hunt import main

if __name__ == "__main__":
    sys.exit(main())
