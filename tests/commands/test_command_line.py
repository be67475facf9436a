"""What all commands share: words, flags and settings, help, errors, and how a command ends."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

import rankrise
from rankrise.commands import COMMANDS, command_of, main
from rankrise.commands.flags import parsed, parser_of
from rankrise.foundations.settings import in_words
from rankrise.recipes import toy_settings, train_settings
from rankrise.recipes.files import names, settings_in


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("trian", "'trian'"),
        ("train", "RECIPE"),
        ("train vit-digits --epoch 3", "--epoch"),
        ("train vit-digits --layers many", "--layers is many"),
        ("train vit-digits --layers 0", "layers is 0"),
        ("predict --network tree", "head, transformer, linear"),
        ("predict --network transformer --weights full", "transformer"),
        ("flow --dimension 2 --tokens 3 --samples 9 --until 1e300", "1e+300"),
        ("recipes vit-digit", "vit-digit"),
        ("compare nowhere/before nowhere/after", "nowhere/"),
        ("watch results/toy-paper", "results/toy-paper is a toy run"),
        ("claims results/toy-paper --only luck", "'luck'"),
        ("claims rankrise", "rankrise is not a run"),
        ("history results", "--run"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it_and_exit_code_2(words, named, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    message = capsys.readouterr().err.strip()
    assert caught.value.code == 2
    assert message.startswith("rankrise: ")
    assert named in message
    assert "\n" not in message


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_parameter_and_setting(name: str) -> None:
    command = command_of(name)
    parser = parser_of(name, command)
    explained = {action.dest: action for action in parser._actions}
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        if get_origin(hint) is Annotated:
            for field in fields(get_args(hint)[1]):
                assert explained[field.name].help
                assert in_words(field.default) in str(explained[field.name].help) or field.default is None
        elif parameter != "return":
            assert explained[parameter].help
    assert "json" in explained
    assert len(parser.format_help()) > 300


@pytest.mark.parametrize("name", names())
def test_a_recipe_s_settings_can_all_be_typed_as_flags(name: str) -> None:
    command, module = ("toy", toy_settings) if name.startswith("toy-") else ("train", train_settings)
    recipe = module.read_recipe(name)
    words = [
        word for setting, value in settings_in(name).items() for word in (f"--{setting}", in_words(value))
    ]
    given = parsed(command, command_of(command), ["anywhere", *words])["settings"]
    assert given.keys() == settings_in(name).keys()
    assert type(recipe)().changed(given, "a test") == recipe


def test_flags_stand_anywhere_with_dashes_and_negative_numbers() -> None:
    given = parsed("flow", command_of("flow"), ["--log10-alpha", "-300", "--json"])
    assert given == {"settings": {}, "log10_alpha": -300.0, "json": True}
    given = parsed("report", command_of("report"), ["a", "--out", "x.html", "b"])
    assert given == {"runs": ["a", "b"], "out": Path("x.html")}
    assert parsed("train", command_of("train"), ["r", "--qkv_bias", "no"])["settings"] == {"qkv_bias": False}
    assert parsed("sweep", command_of("sweep"), ["r", "--set", "a=1,2", "--set", "b=3"])["set"] == [
        "a=1,2",
        "b=3",
    ]


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    alone = capsys.readouterr().out
    main(["--help"])
    assert capsys.readouterr().out == alone
    assert all(f"  {name} " in alone for name in COMMANDS)
    with pytest.raises(SystemExit, match="0"):
        main(["toy", "--help"])
    assert capsys.readouterr().out.startswith("usage: rankrise toy RUN [flags]")
    main(["--version"])
    assert capsys.readouterr().out == f"rankrise {rankrise.__version__}\n"


def test_a_closed_pipe_ends_it_quietly() -> None:
    command = f"{sys.executable} -m rankrise recipes | head -c 3"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert len(done.stdout) == 3
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (PermissionError(13, "Permission denied", "a/b"), 2, "a/b")],
)
def test_what_stops_a_command_is_one_sentence(raised, code, said, capsys, monkeypatch):
    def stop(*_: object) -> None:
        raise raised

    monkeypatch.setattr("rankrise.commands.parsed", stop)
    with pytest.raises(SystemExit, match=str(code)):
        main(["predict"])
    assert said in capsys.readouterr().err
