"""Settings: the recipes, the flags, and what is refused."""

import pytest

from rankrise import RankriseError
from rankrise.recipes.scale import log10_of, scale_name
from rankrise.toy import QUICK, ToySettings, read_recipe


def test_recipes_are_what_the_command_runs() -> None:
    assert read_recipe("toy-paper") == ToySettings()
    assert read_recipe("toy-quick") == QUICK != ToySettings()
    assert read_recipe("toy-limit").smallest_alpha == "1e-1000"


def test_settings_survive_json() -> None:
    assert ToySettings().changed(QUICK.to_dict(), "a test") == QUICK


@pytest.mark.parametrize(
    ("alpha", "name", "log10"),
    [
        ("0.1", "1e-1", -1.0),
        (1e-32, "1e-32", -32.0),
        ("5e-324", "5e-324", -323.30103),
        ("1E-1000", "1e-1000", -1000.0),
    ],
)
def test_a_scale_has_one_name(alpha: str | float, name: str, log10: float) -> None:
    assert scale_name(alpha) == name
    assert log10_of(name) == pytest.approx(log10)


def test_scales_go_from_large_to_small() -> None:
    assert ToySettings(alphas=("1e-8", "0.1", "1e-4")).alphas == ("1e-1", "1e-4", "1e-8")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"alphas": "2"}, "alpha"),
        ({"alphas": "tiny"}, "tiny"),
        ({"alphas": "0.99999999999999999999"}, "between 0 and 1"),
        ({"alphas": "1e-4,1e-04"}, "each once"),
        ({"seeds": "1.5"}, "seeds"),
        ({"seeds": "-1"}, "seeds"),
        ({"seeds": ""}, "seeds"),
        ({"dimension": 0}, "dimension"),
        ({"dimension": 2.5}, "dimension"),
        ({"until": float("nan")}, "until"),
        ({"step": True}, "step"),
        ({"step": 1e-320}, "pass a larger step"),
        ({"until": 1e308}, "pass a larger step"),
        ({"full_until": 1e308, "other_steps": []}, "pass a larger step"),
        ({"other_steps": "0.005"}, "other_steps"),
        ({"objective": "cubic"}, "cubic"),
        ({"experiments": "flow,vit"}, "vit"),
        ({"colour": "red"}, "colour"),
        ({"strict_minima_std": 0}, "strict_minima_std"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(given: dict[str, object], word: str) -> None:
    with pytest.raises(RankriseError, match=word) as error:
        ToySettings().changed(given, "a test")
    assert "\n" not in str(error.value)
