"""The commands `predict` and `flow`, and what all commands share."""

import contextlib
import errno
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rankrise
from rankrise.commands import COMMANDS, command_of, main
from rankrise.commands.arguments import arguments_of, parsed
from rankrise.recipes import files as recipe_files

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


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP tells how it waits")
@pytest.mark.parametrize(("asked", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(asked, policy):
    words = [sys.executable, "-m", "rankrise", "predict", *SMALL, "--until", "0.1"]
    plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = plain | {"OMP_DISPLAY_ENV": "true"} | asked
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr


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
        (["predict", "--dimension", "1000000"], "are 2e+09 numbers: pass fewer, at most 2e+08."),
        (["predict", *SMALL, "--device", "nowhere"], "the device 'nowhere' cannot be used"),
        (["predict", "--dimension", "many"], "--dimension is many: pass a whole number"),
        (["predict", "--network", "tree"], "--network is tree: pass one of head, transformer, linear; see"),
        (["predict", "--network", "haed"], "--network is haed: did you mean head? See 'rankrise predict"),
        (["predict", "--dimension"], "--dimension is given without a value; see 'rankrise predict --help'."),
        (["predict", "8"], "unexpected argument '8'; see 'rankrise predict --help'."),
        (["figures", "no-such-run", "--dpi", "4"], "--dpi is not a flag of 'rankrise figures': see"),
        (["train", "r", "--epoch", "3"], "--epoch is not a flag of 'rankrise train': did you mean --epochs?"),
        (["claims", "no-such-run", "--whi"], "--whi is not a flag of 'rankrise claims': did you mean --why?"),
        (["toy", "n\udcff"], r"RUN is 'n\udcff', which is not UTF-8: pass another name; see"),
        (
            ["claims", "run", "n\udcff"],
            r"RUNS is ['run', 'n\udcff'], which is not UTF-8: pass another name; see",
        ),
        (["toy"], "RUN is missing; see 'rankrise toy --help'."),
        (["toy", "--out", "x"], "--out is not a flag of 'rankrise toy': pass RUN without a flag."),
        (["train", "r", "--out", "x"], "--out is not a flag of 'rankrise train': did you mean --run?"),
        (
            ["train", "r", "--lr", "1"],
            "--lr is not a flag of 'rankrise train': did you mean --learning_rate?",
        ),
        (["train", "r", "--out-dir", "x"], "did you mean --run?"),
        (["predict", "--run", "x"], "--run is not a flag of 'rankrise predict': did you mean --out?"),
        (["figures", "--run", "x"], "--run is not a flag of 'rankrise figures': pass RUNS without a flag."),
        (["help", "trian"], "'trian' is not a command: did you mean 'rankrise train'?"),
        (["recipes", "vit-digit"], "'vit-digit' is not a recipe: did you mean vit-digits?"),
        (["xyzw"], "'xyzw' is not a command: pass one of predict, flow"),
        (["trian"], "'trian' is not a command: did you mean 'rankrise train'?"),
        (["--versoin"], "--versoin is not a flag of 'rankrise': did you mean --version?"),
        (["sweep", "vit-digits", "--data_folder", "x"], "pass --set data_folder=VALUE."),
        (["train", "vit-digit"], "'vit-digit' is not a recipe: did you mean vit-digits?"),
        (["train", "vit-digits", "--layers", "many"], "--layers is many: pass a whole number; see"),
        (["train", "vit-digits", "--layers", "100000"], "layers is 100000: pass a whole number of 1 or more"),
        (["train", "vit\x1b[2J"], r"vit\x1b[2J"),
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
    shown = " ".join(capsys.readouterr().out.split())
    for argument in arguments_of(command_of(command)):
        assert argument.text, argument
        assert argument.spelling in shown
        assert argument.help[:40].replace("%%", "%") in shown.replace("- ", "-")
        if argument.is_setting:
            assert argument.heading in shown or "Each replaces the recipe's value." in shown
    assert "--json" in shown
    assert not re.search(r"<class|ITEM|\bnull\b", shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_flag_of_any_command_is_told_with_the_right_one(capsys, command):
    flags = [one.spelling for one in arguments_of(command_of(command)) if not one.is_word]
    for flag in flags:
        others = [other for other in flags if other != flag]
        wrong = f"{flag}{flag[-1]}"  # a letter twice
        if wrong in others:
            continue
        with pytest.raises(SystemExit, match="2"):
            main([command, wrong])
        assert (
            f"{wrong} is not a flag of 'rankrise {command}': did you mean {flag}?" in capsys.readouterr().err
        )


def test_the_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"rankrise {rankrise.__version__}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_alone_it_lists_its_commands(capsys, words):
    with contextlib.suppress(SystemExit):
        main(words)
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in (*COMMANDS, "--version") if name in COMMANDS)
    assert "--version" in shown


def test_help_of_a_command_is_what_its_flag_shows(capsys):
    shown = []
    for words in (["help", "toy"], ["toy", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0].startswith("usage: rankrise toy RUN [flags]")


def test_a_recipe_is_shown_with_what_it_says_of_itself_and_its_settings(capsys):
    main(["recipes", "vit-digits", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["settings"] == recipe_files.settings_in("vit-digits")
    main(["recipes", "vit-digits"])
    shown = capsys.readouterr().out
    assert f"reaches: {row['reaches']}" in " ".join(shown.split())
    assert "\n    qkv_bias: no\n" in shown
    assert "vit-cifar10\n" not in shown


def test_flags_are_read_in_any_order_and_with_dashes(capsys):
    main(["predict", *SMALL, "--until=1e-9", "--network", "head", "--json"])
    assert json.loads(capsys.readouterr().out)["stages"] == []
    given = parsed("flow", command_of("flow"), ["--log10-alpha", "-1e3", "--json"])
    assert given == {"settings": {}, "log10_alpha": -1000.0, "json": True}
    given = parsed("report", command_of("report"), ["a", "--out", "x.html", "b"])
    assert given == {"runs": ["a", "b"], "out": Path("x.html")}


FLAGS = [f"--{one.name}" for name in COMMANDS for one in arguments_of(command_of(name)) if not one.is_word]


@settings(deadline=None, max_examples=200)
@given(
    command=st.sampled_from(COMMANDS),
    words=st.lists(
        st.sampled_from([*FLAGS, "--", "-1", "-1e3", "yes", "1e-4", "0.5,1", "=", "--=", "-x", "\x1b[2J"])
        | st.builds("{}={}".format, st.sampled_from(FLAGS), st.text(max_size=5))
        | st.text(max_size=8)
    ),
)
def test_any_words_are_read_or_refused_in_a_sentence(command, words):
    words = [word for word in words if word not in ("-h", "--help")]
    given, refused = {}, "."
    try:
        given = parsed(command, command_of(command), words)
    except rankrise.RankriseError as error:
        refused = str(error)
    assert refused.endswith((".", "?"))
    assert given.keys() <= inspect.signature(command_of(command)).parameters.keys()


def test_a_closed_pipe_ends_it_quietly():
    command = f"{sys.executable} -m rankrise train --help | head -c 10"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.stdout == "usage: ran"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "ends", "code"),
    [
        ("recipes", ">&-", 0),
        ("recipes", "2>&-", 0),
        ("recipes", "<&- >&- 2>&-", 0),
        ("recipes", ">/dev/full", 2),
        ("nosuch", "2>&-", 2),
        ("nosuch", "2>/dev/full", 2),
    ],
)
def test_outputs_that_are_closed_or_full(words, ends, code):
    command = f"set -o pipefail; {sys.executable} -m rankrise {words} {ends}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path):
    """What a library prints would be written into it."""
    script = """
import os, sys
from rankrise import commands
def call(*_):
    with open(sys.argv[1], "wb"):
        os.write(1, b"of a library")
        os.write(2, b"of another")
commands.call = call
commands.main(["recipes"])
"""
    command = f"{sys.executable} -c '{script}' {tmp_path}/file <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command]).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_is_gone_ends_it_quietly(stream):
    """Rich's tables end as prints do."""
    script = """
import sys
from rankrise import commands
real = commands.call
commands.call = lambda *given: print("progress", file=sys.stderr, flush=True) or real(*given)
commands.main(["recipes"])
"""
    reading, writing = os.pipe()
    os.close(reading)
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: writing}
    ended = subprocess.run([sys.executable, "-c", script], text=True, **given)
    os.close(writing)
    assert ended.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in (ended.stderr or "")


def test_an_interrupted_command_does_not_say_that_anything_was_kept(capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankrise.commands.call", stop)
    with pytest.raises(SystemExit, match="130"):
        main(["predict"])
    assert capsys.readouterr().err == "rankrise: interrupted.\n"


def test_a_full_disk_is_one_sentence(capsys, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rankrise.commands.call", fail)
    with pytest.raises(SystemExit, match="2"):
        main(["predict"])
    printed = capsys.readouterr().err
    assert printed == "rankrise: the disk cannot be used (No space left on device): pass another path.\n"
