"""`python -m jaxcomp`: the same as the `jaxcomp` command."""

import sys

from jaxcomp.cli import main

if __name__ == "__main__":
    sys.exit(main())
