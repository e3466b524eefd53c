"""Signals wait until the run's state is consistent."""

from __future__ import annotations

import os
import signal

import pytest

from lit_fednas.federation.process import Interrupted, Interrupts

BOTH = (signal.SIGINT, signal.SIGTERM)


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.fixture(autouse=True)
def handlers():
    """Installs handlers that a test recognises, so that an error does not end the test process."""
    received: list[int] = []

    def record(signum, frame):
        received.append(signum)

    previous = {signum: signal.signal(signum, record) for signum in BOTH}
    yield record, received
    for signum, handler in previous.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", BOTH)
def test_the_first_signal_waits_for_a_check(signum, handlers):
    interrupts = Interrupts()
    with interrupts.listening():
        interrupts.check()
        send(signum)
        with pytest.raises(Interrupted, match=f"stopped by {signal.Signals(signum).name}") as caught:
            interrupts.check()
        assert caught.value.signum == signum
        interrupts.check()  # the signal is reported only once
    assert handlers[1] == []


@pytest.mark.parametrize("first", BOTH)
def test_the_second_stops_at_once(first):
    with Interrupts().listening():
        send(first)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_handlers_are_restored(handlers):
    with Interrupts().listening():
        assert signal.getsignal(signal.SIGINT) is not handlers[0]
    assert [signal.getsignal(signum) for signum in BOTH] == [handlers[0]] * 2
    with pytest.raises(ZeroDivisionError), Interrupts().listening():
        raise ZeroDivisionError
    assert [signal.getsignal(signum) for signum in BOTH] == [handlers[0]] * 2
