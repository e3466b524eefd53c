"""Ctrl-C and SIGTERM, handled where the run's state is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """The run was asked to stop; its state is that of the last finished round."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)  # with which it is made again in another process
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


@contextmanager
def alarm(seconds: float | None, error: Exception) -> Iterator[None]:
    """Raises an error inside the block after some seconds (``None``: never), also where it waits for something."""
    # only the main thread is interrupted by signals, and some systems have no timers
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(signum: int, frame: FrameType | None) -> None:
        raise error

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, previous)


class Interrupts:
    """Keeps a signal until the loop asks for it; the second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self._received: int | None = None
        # called with SIGTERM, which (other than Ctrl-C) may have been sent to this process alone
        self.pass_on: Callable[[int], None] | None = None

    def check(self) -> None:
        """Raises :class:`Interrupted` if a signal has come."""
        if self._received is not None:
            received, self._received = self._received, None
            raise Interrupted(received)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receives SIGINT and SIGTERM inside the block (in the main thread; elsewhere it does nothing)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._received = None  # an unread one belonged to an earlier run
        previous: dict[int, Any] = {}
        for signum in (signal.SIGINT, signal.SIGTERM):
            previous[signum] = signal.signal(signum, self._receive)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self._received is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        if self.pass_on is not None and signum == signal.SIGTERM and self._received is None:
            self.pass_on(signum)
        self._received = self._received or signum
