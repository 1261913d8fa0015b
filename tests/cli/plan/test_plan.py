"""``megads plan``: what it prints, and wrong or impossible asks in one line."""

from __future__ import annotations

import json
import os
import shlex

from click.testing import CliRunner

from megads.cli import main
from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.search.ask import VOCABULARY

SMALL = ("--preset", "7B", "--device", "h100", "--nodes", "1")
FEW = {"TP": "1", "PP": "1", "SP": "1", "ZERO_STAGE": "1", "MICRO_BATCH": "1", "RECOMPUTE": "full"}


def run(*words, **env):
    return CliRunner().invoke(main, ["plan", *words], env={"MACHINE": "", **env})


def test_the_table_the_cost_and_the_losers():
    done = run("--preset", "70B", "--machine", "aurora", "--nodes", "16", "--tokens", "1T", "--top", "3")
    assert done.exit_code == 0, done.output
    text = done.output
    assert text.startswith("ESTIMATED, not measured: 70B, 69B parameters, on aurora: 16 hosts x 12 = 192 ranks")
    for part in (
        "tokens/s",
        "MFU",
        "causal",
        "run      1T tokens",
        "node-hours",
        "checkpoints of",
        "of at most",
        "error    predicted",
        "         predicted peaks of memory were",
        "shortest run with SAVE_INTERVAL=",
    ):
        assert part in text
    assert "error    predicted step times were" in text
    assert "TP=3, 6, 12, 24, 48: HEADS=64 cannot be split over TP=N ranks" in text


def test_the_command_of_a_part_of_a_host_says_how_many_ranks():
    done = run("--preset", "2B", "--device", "h100", "--ranks", "4", "--top", "1", "--apply")
    assert done.exit_code == 0, done.output
    assert {"NGPU_PER_HOST=4", "NHOSTS=1"} <= set(done.output.split())


def test_what_is_pasted_gives_the_settings_that_were_planned(tmp_path):
    user = {"SEQ": "2048", "LR": "1e-4"}
    done = run(*SMALL, "--tokens", "10B", "--apply", "--json", str(tmp_path / "plan.json"), **user)
    assert done.exit_code == 0, done.output
    words = shlex.split(done.output)
    assert words[-2:] == ["bash", "train_7B.sh"]
    env = dict(word.split("=", 1) for word in words[:-2])
    assert user.items() <= env.items()
    resolved = resolve("7B", env=env, machine="generic", num_hosts=1)
    found = derive(resolved, num_hosts=1, ranks_per_host=8, vocab_size=VOCABULARY).run
    best = json.loads((tmp_path / "plan.json").read_text())["best"][0]
    assert {**found.parallel.model_dump(), "micro_batch": found.train.micro_batch} == best["layout"]
    assert found.train.grad_acc_steps == best["grad_acc_steps"]
    assert found.optim.lr == 1e-4
    assert abs(found.train.train_tokens - 10e9) <= found.train.global_batch * 2048


def test_what_is_pasted_outside_a_checkout_needs_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(run(*SMALL, "--apply", **FEW).output)
    assert words[-4:] == ["megads", "train", "--preset", "7B"]
    (tmp_path / "launchers").mkdir()
    (tmp_path / "launchers/train.sh").touch()
    assert shlex.split(run(*SMALL, "--apply", **FEW).output) == [*words[:-4], "bash", "launchers/train.sh", *words[-2:]]


def test_pictures_of_layouts_and_of_hosts(tmp_path):
    png, page = tmp_path / "plan.png", tmp_path / "plan.html"
    files = ("--png", str(png), "--html", str(page))
    done = run(*SMALL, "--tokens", "10B", *files, PP="2")
    assert done.exit_code == 0, done.output
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<h1>7B on h100: 1 host x 8</h1>" in text
    assert [f'id="chart-{name}"' in text for name in ("memory", "time", "speed", "timeline", "hosts")] == [
        *(True, True, True, True, False)
    ]
    done = run("--preset", "7B", "--machine", "sophia", "--tokens", "10B", *files)
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "<h1>7B on sophia</h1>" in text
    assert 'id="chart-hosts"' in text
    assert text.count("<circle") >= 3


def test_json_to_a_pipe_needs_a_reader(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = run(*SMALL, "--top", "1", "--json", str(pipe), **FEW)
    assert done.exit_code == 2
    assert "start the reader of this pipe first" in done.stderr
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run(*SMALL, "--top", "1", "--json", str(pipe), **FEW).exit_code == 0
    assert json.loads(os.read(reader, 1 << 20))["best"]
    os.close(reader)


def test_a_cpu_has_no_error_of_memory_that_was_published():
    done = run("--preset", "2B", "--device", "cpu", "--nodes", "1", "--top", "1", **FEW)
    assert done.exit_code == 0, done.output
    assert "predicted step times were" in done.stdout
    assert "peaks of memory" not in done.stdout
