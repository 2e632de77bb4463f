"""`python -m comity.cli`, the same as `comity`."""

import sys

from comity.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
