"""Start the application: put its own root on the import path, then hand over to ``cli``."""

import sys
from importlib.resources import files
from pathlib import Path


def main() -> int:
    """Run the command line and return its exit code."""
    here = Path(__file__).parent
    bundled = files("twinlog").joinpath("_app").is_dir()  # in a wheel; not in a checkout
    sys.path.insert(0, str(here / "_app" if bundled else here.parent))
    from cli.app import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
