"""Commands that read finished runs; each is a line of ``lit_fednas.cli.commands.LIGHT``."""

from __future__ import annotations

from pathlib import Path

from lit_fednas.analysis.report import write_report


def report(run: Path, output: Path | None = None) -> None:
    """Writes a finished run's folder as one HTML page that needs no network.

    Args:
        run: A run's folder, as runs/digits/version_0.
        output: The file; report.html in the run's folder if not given.
    """
    print(f"written: {write_report(run, output)}")
