"""What a user of an installed megads does first, in a folder of its own: python tour.py MEGADS.

MEGADS is the command. Needs nothing but the standard library, so that any Python can run it anywhere.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

TEXTS, FEW = 400, 8
MINUTES = 8
SETTINGS = {"TP": "2", "DATA_PATH": "mine_text_document", "TOKENIZER_MODEL": "tok.json", "OMP_NUM_THREADS": "1"}
SHORT = {"TRAIN_ITERS": "4", "EVAL_INTERVAL": "4", "EVAL_ITERS": "1", "SAVE_INTERVAL": "0", "VAL_SPLIT": "100"}

COMMANDS = {
    "tokenizer": "data train-tokenizer --input mine.jsonl --vocab-size 300 --output tok.json",
    "preprocess": "data preprocess --input mine.jsonl --output-prefix mine --tokenizer-model tok.json",
    "train": "train --preset tiny",
    "plot": "plot runs/tiny",
    "evaluate": "evaluate runs/tiny --data few.jsonl --json score.json",
    "plan": "plan --preset 7B --device h100 --nodes 1",
}


def run(megads: str, *words: str, **settings: str) -> str:
    """Return what a command prints.

    Raises:
        RuntimeError: it failed; with all that it printed.
    """
    done = subprocess.run(
        [megads, *words],
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
    )
    if done.returncode:
        raise RuntimeError(f"megads {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def ask_server(megads: str) -> str:
    """Serve the run, return what it answers to one request, and end it as Ctrl-C does."""
    command = [megads, "serve", "runs/tiny", "--port", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        shown = []
        try:
            for line in server.stderr:  # type: ignore[union-attr]
                shown.append(line)
                if "http://127.0.0.1:" in line:
                    break
            else:
                raise RuntimeError(f"megads serve ended with {server.wait()}:\n{''.join(shown)}")
            port = int(line.split("http://127.0.0.1:")[1].split()[0].rstrip("/"))
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60 * MINUTES)
            body = json.dumps({"model": "tiny", "prompt": "def f", "max_tokens": 4, "ignore_eos": True})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}: {text}")
            return text
        finally:
            server.terminate()


def tour(megads: str) -> None:
    """Make data, train, look, evaluate, serve and plan; every output is in a file of this folder."""
    texts = [f"def f{i}(x):\n    return x + {i}  # the sum of x and {i}\n" for i in range(TEXTS)]
    lines = [f"{json.dumps({'text': text})}\n" for text in texts]
    Path("mine.jsonl").write_text("".join(lines))
    Path("few.jsonl").write_text("".join(lines[:FEW]))
    made = {"version": run(megads, "--version")}
    for name, line in COMMANDS.items():
        more = {**SETTINGS, **SHORT} if name == "train" else {}
        made[name] = run(megads, *shlex.split(line), **more)
    made["serve"] = ask_server(megads)
    for name, text in made.items():
        Path(f"{name}.out").write_text(text)


if __name__ == "__main__":
    tour(sys.argv[1])
