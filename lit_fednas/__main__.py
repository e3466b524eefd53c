"""``python -m lit_fednas``, and the command ``lit-fednas``."""

import sys

from lit_fednas.cli import main

if __name__ == "__main__":
    sys.exit(main())
