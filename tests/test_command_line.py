"""The commands `predict` and `flow`, and what all commands share."""

import json

import pytest

import rankrise
from rankrise.commands import COMMANDS, main

SMALL = ["--dimension", "2", "--tokens", "3", "--samples", "20"]


def test_predict_prints_its_stages_as_json(capsys):
    main(["predict", *SMALL, "--check", "--json"])
    result = json.loads(capsys.readouterr().out)
    times = [stage["time"] for stage in result["stages"]]
    assert times == sorted(times)
    assert times[0] > 0
    assert set(result["assumptions"]) == {"nondegeneracy", "strict_minima", "noise_robustness"}


@pytest.mark.parametrize("network", ["transformer", "linear"])
def test_predict_takes_every_network(capsys, network):
    main(["predict", "--network", network, "--layers", "1", "--heads", "1", *SMALL])
    assert "Algorithm 1" in capsys.readouterr().out


def test_flow_agrees_with_what_it_writes(capsys, tmp_path):
    main(["flow", *SMALL, "--until", "1.5", "--log10-alpha", "-100", "--out", str(tmp_path / "new")])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "new" / "flow.json").read_text())
    assert record["ending"] == "reached"
    assert record["times"][-1] == 1.5
    assert len(record["values"]) == len(record["times"])
    assert f"{record['gradients']} gradients" in printed
    for picture in ("flow.png", "flow.svg"):
        assert (tmp_path / "new" / picture).stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flow", *SMALL, "--log10_alpha", "0"], "log10_alpha"),
        (["flow", *SMALL, "--until", "-1"], "until"),
        (["predict", "--dimension", "0"], "dimension"),
        (["predict", *SMALL, "--device", "nowhere"], "--device nowhere"),
        (["predict", "--dimension", "many"], "--dimension is many: pass a whole number"),
        (["predict", "--network", "tree"], "--network is tree: pass one of 'head'"),
        (["figures", "no-such-run", "--dpi", "4"], "--dpi is no flag of 'rankrise figures': see"),
        (
            ["train", "r.yaml", "--epoch", "3"],
            "--epoch is no flag of 'rankrise train': did you mean --epochs?",
        ),
        (["claims", "no-such-run", "--whi"], "--whi is no flag of 'rankrise claims': did you mean --why?"),
        (["toy"], "required: out"),
        (["xyzw"], "xyzw is no command: pass one of predict, flow"),
        (["trian"], "trian is no command: did you mean 'rankrise train'?"),
        (["sweep", "recipe.yaml", "--data_folder", "x"], "pass --set data_folder=VALUE"),
        (["flow", *SMALL, "--out", f"{__file__}/pictures"], "cannot be used (Not a directory)"),
        (["figures", "no-such-run"], "no-such-run"),
        (["claims", "no-such-run"], "no-such-run"),
        (["report", "no-such-run"], "no-such-run"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, arguments, words):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith("rankrise: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_for_every_argument(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert len(shown) > 500


def test_the_version_is_the_package_s(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"rankrise {rankrise.__version__}\n"


def test_a_switch_takes_yes_or_no_too(capsys):
    main(["predict", *SMALL, "--json", "false"])
    assert "Algorithm 1" in capsys.readouterr().out
