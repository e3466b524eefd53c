"""A run as one HTML page that needs nothing else."""

from lit_fednas.analysis.report.page import write_report

__all__ = ["write_report"]
