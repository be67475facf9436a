"""The page without a browser: its files and sentences."""

import re
from pathlib import Path

import pytest

from rankrise import RankriseError, watch
from rankrise.runs import open
from rankrise.show.report import tracked as tracked_page
from rankrise.show.report import write_pages
from rankrise.watch.types import FoundStage

pytestmark = pytest.mark.slow


def test_each_kind_of_run_has_a_page_that_links_to_the_other(copy_of, tracked, tmp_path):
    going = copy_of("going").folder
    (going / "seed-0" / "full.safetensors").unlink()
    out = tmp_path / "new" / "my page.html"
    with pytest.raises(RankriseError, match=re.escape(str(tmp_path))):
        write_pages(open(going), tmp_path)
    pages = write_pages(open([going, copy_of("done").folder, tracked["unit"]]), out)
    assert [(page.path.name, [run.name for run in page.runs]) for page in pages] == [
        ("my page.html", ["going", "done"]),
        ("my page-tracked.html", ["unit"]),
    ]
    toy, transformer = (page.path.read_text() for page in pages)
    assert '<a href="my%20page-tracked.html">Transformers →</a>' in toy
    assert '<a href="my%20page.html">The toy →</a>' in transformer
    assert "1 pieces missing, such as seed-0/full" in toy
    for page in (toy, transformer):  # it fetches nothing
        assert set(re.findall(r"https?://[^\s\"'<]*", page)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<(link|img|iframe)\b|@import|url\((?!#)(?!\$)", page)


def test_the_story_begins_with_the_stages(tracked: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tuple(FoundStage(step, (step - 1, step + 1), 1.0, {}) for step in (10, 40, 90))
    found = watch.StagesFound(stages, ("loss", "all KQ stable rank"), 120)
    monkeypatch.setattr(tracked_page, "found_stages", lambda _: found)
    _, (answer,), _ = tracked_page.story(open([tracked["unit"], tracked["again"]]))
    assert answer == "unit: <strong>We found 3 stages, at step 10, 40, 90.</strong>"
