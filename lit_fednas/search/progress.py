"""Progress of a search: a bar per tier, or plain lines without a terminal."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from tqdm.auto import tqdm

from lit_fednas.search.run import Progress


class SearchProgress:
    """Shows evaluations, the best accuracy of the tier and its hypervolume.

    Args:
        evaluations: Per tier.
        enabled: False shows nothing.
        refresh_seconds: Without a terminal, a line is printed at most this often.
    """

    def __init__(self, evaluations: int, enabled: bool = True, refresh_seconds: float = 10.0) -> None:
        self.evaluations = evaluations
        self.enabled = enabled
        self.refresh_seconds = refresh_seconds
        self._tier: str | None = None
        self._bar: Any = None
        self._last: Progress | None = None
        self._printed = perf_counter()

    def __call__(self, progress: Progress) -> None:
        """One evaluation further."""
        if not self.enabled:
            return
        if progress.tier != self._tier:
            self.close()
            self._tier = progress.tier
            if sys.stderr.isatty() or "ipykernel" in sys.modules:
                self._bar = tqdm(total=self.evaluations, desc=progress.tier, unit="architecture")
        self._last = progress
        if self._bar is not None:
            self._bar.set_postfix(_figures(progress), refresh=False)
            self._bar.update(progress.evaluations - self._bar.n)
        elif perf_counter() - self._printed >= self.refresh_seconds:
            self._print()

    def close(self) -> None:
        """Ends the tier's bar, or prints its last line."""
        if self._bar is not None:
            self._bar.close()
        elif self._last is not None:
            self._print()
        self._bar = self._last = None

    def _print(self) -> None:
        last = self._last
        assert last is not None
        figures = "  ".join(f"{name} {value}" for name, value in _figures(last).items())
        print(
            f"{last.tier}: {last.evaluations}/{self.evaluations} architectures  {figures}",
            file=sys.stderr,
            flush=True,
        )
        self._printed = perf_counter()
        self._last = None


def _figures(progress: Progress) -> dict[str, str]:
    volume = {} if progress.hypervolume is None else {"hypervolume": f"{progress.hypervolume:.4f}"}
    return {"best": f"{progress.best:.4f}", **volume}
