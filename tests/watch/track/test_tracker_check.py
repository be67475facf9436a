"""A tracker that is given a batch proves the layout first; without one it announces what it guessed."""

import pytest
import torch
from torch import nn

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.show.report.tracked_story import chapters


class PerHead(nn.Module):
    """`qkv(x).view(b, t, h, 3, d)`: not what is guessed."""

    def __init__(self):
        super().__init__()
        self.n_heads, self.qkv, self.proj = 2, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (2, 3, 4)).permute(3, 0, 2, 1, 4)
        return self.proj((torch.softmax(query @ key.mT / 2, -1) @ value).transpose(1, 2).flatten(2))


class Thirds(PerHead):
    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.proj((torch.softmax(query @ key.mT / 2, -1) @ value).transpose(1, 2).flatten(2))


def test_a_wrong_layout_stops_before_training_and_writes_nothing(tmp_path):
    with pytest.raises(RankriseError, match="is not read as its forward pass works"):
        watch.RankTracker(nn.Sequential(PerHead()), tmp_path / "run", check=torch.randn(1, 5, 8))
    assert not (tmp_path / "run").exists()


def test_a_guess_is_announced_and_stays_visible(tmp_path, capsys):
    class Unproved(Thirds):
        pass

    with pytest.warns(UserWarning, match="is a GUESS"):
        tracker = watch.RankTracker(nn.Sequential(Unproved()), tmp_path)
    for text in told(tracker, tmp_path, capsys):
        assert "all queries, all keys, all values (not checked, see watch.check)" in text


def told(tracker, folder, capsys):
    """What is said of a run in its repr, in `watch`, in the page and in its record."""
    with tracker:
        tracker.step(1, loss=1.0)
    yield from (repr(tracker), repr(watch.load(folder)), (folder / "run.json").read_text())
    for flags in ([], ["--json"]):
        main(["watch", str(folder), *flags])
        yield " ".join(capsys.readouterr().out.split())
    yield chapters([watch.load(folder)])[0]


class Gated(Thirds):
    """It has a weight in its path that is not read."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 8)

    def forward(self, x):
        return super().forward(x) * self.gate(x).sigmoid()


class Convolved(Thirds):
    """Tokens are mixed before they are projected, by what no family reads."""

    def __init__(self):
        super().__init__()
        self.mixer = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        return super().forward(self.mixer(x.mT).mT)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            Gated,
            "in its path and not read: gate",
        ),
        (Convolved, "not proved: mixer acts between the tokens and what is read"),
    ],
)
def test_the_limits_of_a_proof_are_told_everywhere(kind, words, tmp_path, capsys):
    with pytest.warns(UserWarning, match=". of 1 layouts proved"):
        tracker = watch.RankTracker(nn.Sequential(kind()), tmp_path, check=torch.randn(1, 5, 8))
    for text in told(tracker, tmp_path, capsys):
        assert words in text


def test_what_is_proved_is_not_announced(tmp_path, recwarn):
    model = nn.Sequential(Thirds())
    with watch.RankTracker(model, tmp_path, check=(torch.randn(2, 5, 8), torch.zeros(2))) as tracker:
        tracker.step(1, loss=1.0)
    assert watch.load(tmp_path).notes == []
    assert not [warning for warning in recwarn if "GUESS" in str(warning.message)]
