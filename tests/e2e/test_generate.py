"""``megads generate`` on a trained run: equal to transformers on its export, and the same on several ranks."""

from __future__ import annotations

import json

import pytest
import torch


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    from tests.e2e.conftest import Command

    command = Command(tmp_path_factory.mktemp("generate"), cache)
    done = command.train("run", TRAIN_ITERS="4", EVAL_INTERVAL="0", SAVE_INTERVAL="4")
    assert done.returncode == 0, done.stderr
    return command


def _records(command, *words, **settings):
    done = command("generate", "run", *words, **settings)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_greedy_text_equals_transformers_on_the_exported_run(run):
    import transformers

    done = run("checkpoint", "export-hf", "run", "hf")
    assert done.returncode == 0, done.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "hf")
    module = transformers.AutoModelForCausalLM.from_pretrained(run.folder / "hf", dtype=torch.float32)
    (run.folder / "in.txt").write_text("import os\ndef main():\n")
    made = _records(run, "--input", "in.txt", "--greedy", "--max-tokens", "12", "--logprobs", "1")
    for record in made:
        tokens = tokenizer(record["prompt"], return_tensors="pt")["input_ids"]
        text = module.generate(tokens, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)[0]
        assert [each["token"] for each in record["logprobs"]] == text.tolist()
        with torch.no_grad():
            scores = module(text[None]).logits[0].log_softmax(dim=-1)
        wanted = [float(scores[place, token]) for place, token in enumerate(text[1:].tolist())]
        assert [each["logprob"] for each in record["logprobs"][1:]] == pytest.approx(wanted, abs=1e-5)


def test_two_ranks_give_the_texts_of_one(run):
    words = ("--num-samples", "3", "--max-tokens", "8", "--seed", "5")
    alone = _records(run, *words)
    assert len({each["text"] for each in alone}) == 3
    assert _records(run, *words, "--tp", "2") == alone
    assert _records(run, *words, PP="2") == alone
    run("generate", "run", *words, "--output", "out.jsonl")
    assert [json.loads(line) for line in (run.folder / "out.jsonl").read_text().splitlines()] == alone


def test_replicas_share_the_prompts(run):
    words = ("--num-samples", "3", "--max-tokens", "8", "--seed", "5")
    alone = _records(run, *words)
    ranks = ["launch", "-n", "2", "--", "python", "-m", "megads", "generate", "run", *words]
    done = run(*ranks)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == alone


def test_a_prompt_is_printed_with_its_continuation(run):
    done = run("generate", "run", "--prompt", "import ", "--greedy", "--max-tokens", "4")
    assert done.stdout.startswith("import ")
    assert len(done.stdout) > len("import \n")
    assert "context 32" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pass the model once"),
        (["run", "--prompt", "a", "--num-samples", "2"], "--prompt and --num-samples: pass one of them"),
        (["run", "--prompt", "a", "--greedy", "--temperature", "0.5"], "--greedy and --temperature 0.5"),
        (["run", "--prompt", "a", "--output", "nowhere/x"], "--output nowhere/x: its folder does not exist"),
        (["run", "--prompt", "a", "--top-p", "2"], "top_p=2 is out of range; use from 0 to 1"),
        (["nothing", "--prompt", "a"], "No such file or directory"),
        (["run", "--prompt", "a " * 60], "a context of 32"),
        (["run", "--tp", "2"], "prompts from the terminal need one rank"),
    ],
)
def test_wrong_words_are_one_line(run, words, message):
    done = run("generate", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_evaluation_is_the_same_on_two_ranks(run):
    (run.folder / "texts.jsonl").write_text('{"text": "import os"}\n{"text": "def main(): return 1"}\n')
    words = ("evaluate", "run", "--data", "texts.jsonl", "--json")
    for name, settings in (("one.json", {}), ("two.json", {"TP": "2"})):
        done = run(*words, name, **settings)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("loss texts.jsonl: loss ")
    one, two = (json.loads((run.folder / name).read_text()) for name in ("one.json", "two.json"))
    assert one.pop("task") == two.pop("task") == "loss"
    assert one.pop("data") == two.pop("data")
    assert two == pytest.approx(one, rel=1e-6)


def _served(run, **settings):
    """Return a server that listens, and its address."""
    import re

    server = run.start("serve", "run", "--port", "0", "--batch", "2", **settings)
    lines = []
    while not lines or not (found := re.search(r"http://127\.0\.0\.1:\d+", lines[-1])):
        lines.append(server.stderr.readline())
        assert lines[-1], "".join(lines)
    return server, found[0]


def test_an_idle_server_outlives_the_time_out_and_names_a_rank_that_is_killed(run):
    import socket
    import time

    import httpx
    import psutil

    wait_s = 6.0
    server, url = _served(run, TP="2", DIST_TIMEOUT=str(wait_s))
    time.sleep(wait_s + 1)
    body = {"prompt": "import os", "max_tokens": 2}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
    processes = psutil.Process(server.pid).children(recursive=True)
    ranks = _by_rank(processes)
    assert len(ranks) == 2
    ranks[1].kill()
    _, err = server.communicate(timeout=60)
    assert server.returncode not in (0, 2), err
    assert f"megads: rank 1 on {socket.gethostname()} is gone (" in err
    assert len(err.splitlines()) == 1, err


def test_an_idle_server_of_two_ranks_ends_with_0(run):
    import signal

    server, _ = _served(run, TP="2")
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert "stopped: 0 tokens generated" in err


@pytest.mark.parametrize("tensor", ["1", "2"])
def test_a_server_finishes_what_has_begun_and_exits_with_0(run, tensor):
    import signal

    import httpx

    server, url = _served(run, TP=tensor)
    body = {"prompt": "import os", "max_tokens": 20, "stream": True, "n": 6, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        text = answer.iter_lines()
        first = next(text)
        server.send_signal(signal.SIGTERM)
        rest = [line for line in text if line]
    assert first.startswith("data: {")
    assert rest[-1] == "data: [DONE]"
    assert sum('"finish_reason":"length"' in line for line in rest) == 6
    out, err = server.communicate(timeout=60)
    assert (server.returncode, out) == (0, ""), err
    assert "stopped: 120 tokens generated" in err


def test_a_server_that_cannot_listen_says_so(run):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "run", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "Address already in use; use another one, --port 0 for a free one" in done.stderr


def test_the_load_benchmark_checks_every_answer(run):
    import subprocess
    import sys

    words = [sys.executable, "-m", "benchmarks.serving", "run", "--clients", "4", "--seconds", "1"]
    done = subprocess.run(words, cwd=run.folder, env=run.env(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong answers" in done.stdout
    assert "exit code 0" in done.stdout


@pytest.mark.parametrize(
    "words", [("generate", "run", "--input", "many.txt"), ("evaluate", "run", "--data", "many.txt")]
)
def test_a_rank_that_is_killed_is_named_in_one_line(run, words):
    import socket

    (run.folder / "many.txt").write_text("import os and sys\n" * 20_000)
    command = run.start(*words, "--batch", "1", TP="2")
    ranks = _ranks(command)
    ranks[1].kill()
    out, err = command.communicate(timeout=120)
    assert command.returncode not in (0, 2), err
    assert (out, err) == (
        "",
        f"megads: rank 1 on {socket.gethostname()} is gone (killed, failed, or the host is down); start it again\n",
    )


def test_ranks_that_are_asked_to_end_do_so_silently(run):
    import signal

    (run.folder / "many.txt").write_text("import os and sys\n" * 20_000)
    command = run.start("generate", "run", "--input", "many.txt", "--batch", "1", TP="2")
    _ranks(command)
    command.send_signal(signal.SIGTERM)
    assert command.communicate(timeout=120) == ("", "")
    assert command.returncode == 128 + signal.SIGTERM


def test_an_error_of_rank_0_alone_is_one_line(run):
    done = run("generate", "run", "--num-samples", "2", "--max-tokens", "2", "--output", "/dev/full", TP="2")
    assert done.returncode == 2
    summary, *error = done.stderr.splitlines()
    assert "per rank" in summary
    assert len(error) == 1, done.stderr
    assert error[0].startswith("megads: --output /dev/full: No space left on device")


def _ranks(command):
    """Return the two processes of a command's ranks, once they have loaded the model."""
    import psutil

    while "per rank" not in (line := command.stderr.readline()):
        assert line, "ended early"
    found = _by_rank(psutil.Process(command.pid).children(recursive=True))
    assert len(found) == 2
    return found


def _by_rank(processes):
    """Return those that start no others, as their numbers are: a busy host may start rank 1 first."""
    return sorted((each for each in processes if not each.children()), key=lambda each: each.environ()["MEGADS_RANK"])
