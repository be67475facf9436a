"""The report: a run, or several side by side, as a page that opens from disk."""

from rankrise.show.report.page import write_page

__all__ = ["write_page"]
