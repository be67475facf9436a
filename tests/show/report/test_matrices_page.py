"""The page of a history of matrices that belong to no head."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pages import Open
from safetensors.torch import save_file

from rankrise import watch
from rankrise.commands import main
from rankrise.runs import open
from rankrise.show.report import write_report


def test_a_history_of_matrices_alone_has_a_page_and_no_claims(
    open_page: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Changes below the spacing of bfloat16 at first, and larger ones later."""
    torch.manual_seed(0)
    weights = {name: 0.02 * torch.randn(40, 30) for name in ("mlp.up", "mlp.down", "embed")}
    for step in (0, 1, 2, 100, 200):
        for weight in weights.values():
            weight += 2e-5 * step * torch.outer(torch.randn(40), torch.randn(30))
        place = tmp_path / "series" / f"step{step}"
        place.mkdir(parents=True)
        save_file({name: one.bfloat16() for name, one in weights.items()}, place / "model.safetensors")
    run = watch.history(tmp_path / "series", tmp_path / "run", matrices="*")
    assert run.noisy_steps.tolist() == [1, 2]
    assert run.notes == [
        "at 2 of 4 measured steps, up to step 2, the change of most matrices is rounding noise"
    ]
    page = open_page(write_report(open(run.folder), tmp_path / "page.html"))
    mean = np.mean([run.stable_rank(name)[-1] for name in run.matrices])
    clear = np.mean([run.stable_rank(name)[run.measured == 100] for name in run.matrices])
    assert (
        f"goes from {clear:.2f} to {mean:.2f} (mean over matrices)" in page.locator(".came-out").inner_text()
    )
    glance = page.locator("#glance-here figcaption").inner_text()
    assert f"{mean:.3g} (change of matrices); mean and standard deviation over matrices." in glance
    assert "Grey: rounding explains half of the change or more in most matrices." in glance
    assert page.locator("#ranks .greyed rect").count() == 2
    assert page.locator("#ranks .lines path").count() == 3
    assert not page.locator("#layer").is_visible()
    assert page.locator("#heads-here").inner_text() == "This run has no heads."
    assert page.locator("#leading").is_hidden()
    spectra = page.locator("#spectra figcaption").first
    assert spectra.inner_text().startswith("3 matrices at step 200;")
    page.locator("#step").focus()
    page.keyboard.press("Home")
    assert spectra.inner_text().startswith("3 matrices at step 1;")
    assert "No claim is about these runs" in page.locator("#claims").inner_text()
    with pytest.raises(SystemExit):
        main(["claims", str(run.folder)])
    assert "no attention heads, which every claim on tracked runs is about" in capsys.readouterr().err
    main(["watch", str(run.folder)])
    assert "cannot be told, since no loss was recorded, and no heads were tracked" in " ".join(
        capsys.readouterr().out.split()
    )
