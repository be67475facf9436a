"""The report: a run, or several side by side, as one page that opens from disk."""

from rankrise.show.report.page import write_report

__all__ = ["write_report"]
