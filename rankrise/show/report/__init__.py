"""The report: a run, or several side by side, as a page that opens from disk; one for each kind of run."""

from rankrise.show.report.page import Page, write_pages

__all__ = ["Page", "write_pages"]
