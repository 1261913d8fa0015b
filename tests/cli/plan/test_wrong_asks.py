"""Wrong and impossible asks of ``megads plan``: one line that says what would work, and exit code 2."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from megads.cli import main

H100 = ("--preset", "7B", "--device", "h100")
ONE = (*H100, "--nodes", "1")
LONG = "x" * 3000

# Words of the command, variables, and a part of the line.
ASKS = [
    # Where.
    (("--preset", "7B"), {}, "pass --machine NAME, or --device NAME"),
    (("--preset", "7B", "--nodes", "4"), {}, "pass --machine NAME, or --device NAME"),
    (("--preset", "7B", "--machine", "aurorra", "--nodes", "1"), {}, "no machine and no device 'aurorra'"),
    (("--preset", "7B", "--device", "h1000", "--nodes", "1"), {}, "no device 'h1000'; known devices: v100"),
    (("--preset", "7B", "--machine", "polaris", "--device", "h1000", "--nodes", "1"), {}, "no device 'h1000'"),
    (("--preset", "7B", "--machine", "h100", "--device", "a100", "--nodes", "1"), {}, "h100 is a device"),
    (("--preset", "7B", "--nodes", "1"), {"MACHINE": "nowhere"}, "MACHINE=nowhere is not known"),
    (("--preset", "7B", "--machine", "slurm", "--nodes", "1"), {}, "does not say which device a rank has"),
    (("--preset", "7B", "--machine", "../envs/aurora", "--nodes", "1"), {}, "no machine and no device"),
    # How many.
    ((*H100, "--nodes", "0"), {}, "'--nodes'"),
    ((*H100, "--nodes", "-4"), {}, "'--nodes'"),
    ((*H100, "--nodes", "four"), {}, "'--nodes'"),
    ((*H100, "--nodes", "2.5"), {}, "'--nodes'"),
    ((*H100, "--nodes", "99999999"), {}, "are more than 10,000,000"),
    ((*H100, "--nodes", "2", "--ranks", "16"), {}, "--nodes 2 and --ranks 16: pass one of them"),
    ((*H100, "--ranks", "12"), {}, "use a multiple, e.g. --ranks 16"),
    ((*H100, "--ranks", "0"), {}, "'--ranks'"),
    ((*H100, "--nodes", "2"), {"NHOSTS": "3"}, "--nodes 2 and NHOSTS=3 differ"),
    ((*H100, "--ranks", "8"), {"NHOSTS": "3"}, "--ranks 8 and NHOSTS=3"),
    (("--preset", "7B", "--machine", "aurora", "--nodes", "20000"), {}, "fewer than 20,000"),
    # How much.
    ((*ONE, "--max-memory", "0"), {}, "--max-memory 0: a share"),
    ((*ONE, "--max-memory", "90"), {}, "--max-memory 90: a share"),
    ((*ONE, "--max-memory", "nan"), {}, "--max-memory nan: a share"),
    ((*ONE, "--max-memory", "-0.5"), {}, "--max-memory -0.5: a share"),
    ((*ONE, "--max-memory", "most"), {}, "'--max-memory'"),
    ((*ONE, "--tokens", "1Q"), {}, "--tokens 1Q: a number of tokens"),
    ((*ONE, "--tokens", "-1T"), {}, "--tokens -1T: a number of tokens"),
    ((*ONE, "--tokens", "0"), {}, "--tokens 0: a number of tokens"),
    ((*ONE, "--tokens", "1e30"), {}, "at most 2**53"),
    ((*ONE, "--tokens", "1T1T"), {}, "--tokens 1T1T: a number of tokens"),
    ((*ONE, "--tokens", "1T"), {"TRAIN_TOKENS": "5"}, "--tokens 1T and TRAIN_TOKENS=5"),
    ((*ONE, "--tokens", "1T"), {"TRAIN_ITERS": "5"}, "set only one of them"),
    ((*ONE, "--tokens", "1"), {}, "--tokens 1 is less than one batch"),
    ((*H100, "--tokens", "1"), {}, "--tokens 1 is less than one batch"),
    ((*ONE, "--top", "0"), {}, "'--top'"),
    # Files and parts.
    ((*ONE, "--json", "/no/such/folder/plan.json"), {}, "its folder does not exist"),
    ((*ONE, "--json", "/tmp"), {}, "--json /tmp is a folder"),
    ((*ONE, "--png", "/no/such/folder/plan.png"), {}, "its folder does not exist"),
    ((*ONE, "--html", "-"), {}, "--html -: a picture is a file"),
    ((*ONE, "--png", "-"), {}, "--png -: a picture is a file"),
    ((*ONE, "--apply", "--json", "-"), {}, "both print to stdout"),
    ((*ONE, "--rank", "3"), {}, "--rank 3 is for --trace"),
    ((*ONE, "--world", "8"), {}, "--world 8 is for --trace"),
    ((*H100, "--trace", "--rank", "8", "--world", "8"), {}, "are 0 to 7"),
    ((*H100, "--trace", "--rank", "-1", "--world", "8"), {}, "are 0 to 7"),
    ((*H100, "--trace"), {}, "--trace needs the number of ranks"),
    ((*H100, "--trace", "--world", "8", "--apply"), {}, "--apply is for a search"),
    ((*H100, "--trace", "--world", "8", "--tokens", "1T"), {}, "--tokens is for a search"),
    ((*H100, "--trace", "--world", "8", "--png", "a.png"), {}, "--png is for a search"),
    ((*ONE, "--anchor", "/no/such/run"), {}, "/no/such/run"),
    ((*H100, "--apply"), {}, "--apply needs --nodes N"),
    ((*H100, "--png", "/tmp"), {}, "--png /tmp is a folder"),
    ((*H100, "--html", "/tmp"), {}, "--html /tmp is a folder"),
    ((*ONE, "--json", ""), {}, "--json is empty"),
    ((*ONE, "--png", ""), {}, "--png is empty"),
    # Long values: their beginning.
    ((*H100, "--nodes", LONG), {}, f"{LONG[:56]}... (3,002 characters) is not a valid integer range"),
    (("--preset", LONG, "--device", "h100", "--nodes", "1"), {}, f"no preset '{LONG[:56]}... (3,0"),
    (("--preset", "7B", "--device", LONG, "--nodes", "1"), {}, f"no device '{LONG[:56]}... (3,0"),
    (("--preset", "7B", "--nodes", "1"), {"MACHINE": LONG}, f"MACHINE={LONG[:49]}... (3,0"),
    ((*ONE, "--anchor", LONG), {}, "File name too long; use a shorter one"),
    ((*ONE, "--json", LONG), {}, "File name too long; use a shorter one"),
    ((*ONE, "--set", f"{LONG}=1"), {}, f"--set {LONG[:57]}... (3,0"),
    # Settings.
    (("--preset", "8B", "--device", "h100", "--nodes", "1"), {}, "8B"),
    (("--preset", "7B", "--device", "h100", "--nodes", "1"), {"MODEL_ARCH": "70B"}, "name different presets"),
    ((*ONE, "--set", "parallel.tenser=2"), {}, "did you mean parallel.tensor"),
    ((*ONE, "--set", "parallel.tensor"), {}, "expected SECTION.KEY=VALUE"),
    ((*ONE, "--bogus"), {}, "--bogus"),
    ((*ONE, "TP=2"), {}, "settings are variables"),
    (ONE, {"TP": "0"}, "TP"),
    (ONE, {"TP": "two"}, "TP"),
    (ONE, {"TP": "3"}, "8 ranks cannot be split into TP=3"),
    ((*H100, "--nodes", "3"), {"TP": "3"}, "HEADS=32 cannot be split over TP=3 ranks"),
    (ONE, {"TP": "16"}, "16"),
    (ONE, {"PP": "5"}, "cannot be split into"),
    (ONE, {"SP": "64"}, "cannot be split into"),
    (ONE, {"DP": "3"}, "DP=3"),
    (ONE, {"TP": "4", "PP": "4"}, "cannot be split into"),
    (ONE, {"ZERO_STAGE": "4"}, "ZERO_STAGE"),
    (ONE, {"GLOBAL_BATCH": "7", "MICRO_BATCH": "2"}, "GLOBAL_BATCH=7"),
    (ONE, {"PIPELINE_SCHEDULE": "zb-h1", "PP": "1"}, "PP=1"),
    (ONE, {"NLAYERS": "0"}, "NLAYERS"),
    (ONE, {"DTYPE": "fp8"}, "DTYPE"),
    (ONE, {"WALLTIME": "soon"}, "WALLTIME"),
    # What does not fit.
    (("--preset", "gpt-1T", "--device", "h100", "--nodes", "1"), {}, "no layout of gpt-1T fits 1 host x 8 of h100"),
    (("--preset", "70B", "--device", "h100", "--nodes", "1"), {}, "would: TP="),
    (ONE, {"RECOMPUTE": "none", "SEQ": "1048576", "MICRO_BATCH": "1", "SP": "1", "TP": "1"}, "no layout of 7B fits"),
    ((*ONE, "--max-memory", "0.01"), {}, "no layout of 7B fits"),
    (("--preset", "retro-843M", "--device", "h100", "--nodes", "1"), {"PP": "2"}, "on one stage"),
]


@pytest.mark.parametrize(("words", "env", "part"), ASKS, ids=range(len(ASKS)))
def test_a_wrong_ask_is_one_line(words, env, part):
    done = CliRunner().invoke(main, ["plan", *words], env={"MACHINE": "", **env})
    assert done.exit_code == 2, done.output or done.exception
    assert part in done.output
    lines = [line for line in done.output.splitlines() if line]
    assert sum(part in line for line in lines) == 1
    assert lines[-1].startswith("megads: ")
    assert len(lines[-1]) < 1000
    assert done.stdout == ""
