"""``python -m lit_fednas``."""

import sys

from lit_fednas.cli import main

sys.exit(main())
