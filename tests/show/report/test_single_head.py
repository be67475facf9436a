"""The page of a run with one head, whose epochs are steps."""

from pathlib import Path

import torch
from pages import Open
from torch import nn

from rankrise import watch
from rankrise.runs import open
from rankrise.show.report import write_report


def test_a_single_head_is_told_in_words_and_an_epoch_of_one_step_as_a_step(
    open_page: Open, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 1, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    with watch.RankTracker(model, tmp_path / "run", extra={"epoch_steps": 1}) as tracker:
        for step in range(1, 6):
            for parameter in model.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            tracker.step(step, loss=1.0 / step)
    run = watch.load(tmp_path / "run")
    page = open_page(write_report(open(tmp_path / "run"), tmp_path / "page.html"))
    assert page.locator(".heat").count() == 0
    assert not page.locator("#heads-note").is_visible()
    page.locator("#step").focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    kq, vo = (float(run.stable_rank(product)[2].item()) for product in ("KQ", "VO"))
    assert page.locator("#heads-here").inner_text() == (
        "One head was tracked, in layer 1. Its stable rank at step 3: "
        f"{kq:.3g} (change of KQ), {vo:.3g} (change of VO)."
    )
    assert "epoch" not in page.locator("main").inner_text()
    for place in ("#glance-here", "#ranks-here", "#spectra-here", ".story"):
        assert "over heads" not in page.locator(place).inner_text()
