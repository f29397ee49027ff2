"""`python -m kernel.cli`, the same as `linckia`."""

import sys

from kernel.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
