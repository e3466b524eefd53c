"""``python -m lit_fednas``, and the command ``lit-fednas``."""

import os
import signal
import sys


def main() -> int:
    """Runs a command; Ctrl-C while its parts are imported, which takes seconds, ends it at once.

    Returns:
        The exit status.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not one that is ignored, as in the background
        signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    from lit_fednas import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
