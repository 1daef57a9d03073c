"""``python -m loaderx``."""

import sys

from loaderx.cli import main

if __name__ == "__main__":
    sys.exit(main())
