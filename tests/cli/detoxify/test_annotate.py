"""`megads detoxify annotate`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest

from tests.cli.detoxify.conftest import one_line
from tests.detoxify.service import KEY, failure, good, served


def _scores(path):
    return [json.loads(line)["score"] for line in path.read_text().splitlines()]


def test_the_stub_by_hand_under_megatrons_names(megads, folder):
    code, out, _ = megads("annotate --data-path texts.jsonl --scorer stub --workers 3 --total 4")
    target = folder / "texts.jsonl-annotated.jsonl"
    assert (code, out) == (0, f"{target}: 4 texts, 1 empty: no score\n")
    assert _scores(target) == [{"toxicity": 0}, {"toxicity": 0.5}, {"toxicity": 0.75}, None]
    assert megads("annotate texts.jsonl --scorer stub")[1] == f"{target}: 4 texts, all by an earlier call\n"
    (folder / "words").write_text("fine")
    one_line(megads("annotate texts.jsonl --scorer stub --words words"), "already exists, made with words")
    assert megads("annotate texts.jsonl --scorer stub --words words --overwrite --out-path b")[0] == 0
    assert _scores(folder / "b") == [{"toxicity": 0.5}, {"toxicity": 0}, {"toxicity": 0}, None]


@pytest.mark.parametrize("where", ["PERSPECTIVE_API_KEY", "--key-env MINE", "--key-file key"])
def test_the_key_reaches_the_server_and_nothing_else(megads, folder, monkeypatch, where):
    (folder / "key").write_text(KEY + "\n")
    if "file" not in where:
        monkeypatch.setenv(where.split()[-1], KEY)
    with served() as service:
        words = where if where.startswith("--") else ""
        code, out, err = megads(f"annotate texts.jsonl --url {service.url} --qps 1000 {words}")
        assert code == 0, err
        assert set(service.keys) == {KEY}
    with served(lambda text, number: failure(403, f"{KEY} may not")) as service:
        one_line(megads(f"annotate texts.jsonl --url {service.url} --out-path c {words}"), "HTTP 403: *** may not")
    assert KEY not in out + err
    assert not [path for path in folder.iterdir() if path.is_file() and path.name != "key" and KEY in path.read_text()]


WRONG = {
    "annotate": "pass the file once, as the first word",
    "annotate texts.jsonl --data-path texts.jsonl": "pass the file once",
    "annotate none.jsonl --scorer stub": "none.jsonl: no such file",
    "annotate bad.jsonl --scorer stub": "bad.jsonl:2: is not JSON",
    "annotate prompts.jsonl --scorer stub": 'prompts.jsonl:1: has no "text"',
    "annotate model --scorer stub": "model: is a folder",
    "annotate texts.jsonl --scorer toxic": "--scorer toxic: not one of perspective: Google's service",
    "annotate texts.jsonl": "needs a key of the API; set PERSPECTIVE_API_KEY, or pass --key-file FILE",
    "annotate texts.jsonl --key-env MINE": "--key-env MINE: the variable is not set",
    "annotate texts.jsonl --key-file none": "none: No such file or directory",
    "annotate texts.jsonl --key-file key --key-env MINE": "--key-file and --key-env: pass one of them",
    "annotate texts.jsonl --key-file key --url http://example.org": "would be sent unencrypted; use https",
    "annotate texts.jsonl --key-file key --qps 0": "--qps",
    "annotate texts.jsonl --key-file key --qps nan": "--qps",
    "annotate texts.jsonl --workers 0": "--workers",
    "annotate texts.jsonl --scorer hf": "--scorer hf needs --model DIR",
    "annotate texts.jsonl --scorer hf --model model": "model: has no config.json",
    "annotate texts.jsonl --scorer stub --words none": "none: No such file or directory",
    "annotate texts.jsonl --scorer stub --output texts.jsonl": "texts.jsonl: is the input; pass another file",
    "annotate texts.jsonl --scorer stub --output no/where": "its folder does not exist",
    "annotate texts.jsonl --scorer stub --output key": "key: already exists; pass another file, or --overwrite",
    "annotate texts.jsonl --scorer stub --atributes x": "--atributes",
    "anotate texts.jsonl": "did you mean annotate?",
}


@pytest.mark.parametrize("line", list(WRONG))
def test_wrong_words_are_one_line(megads, line):
    one_line(megads(line), WRONG[line])


def test_a_signal_ends_the_command_and_the_same_one_resumes(megads, folder):
    """A process of its own: a second signal would end it."""

    started = threading.Event()

    def reply(text, number):
        assert started.wait(120)
        if text == "you idiot" and not number:
            process.send_signal(signal.SIGTERM)
        return good(text)

    with served(reply) as service:
        line = f"annotate texts.jsonl --key-file key --qps 1000 --workers 1 --url {service.url}"
        process = subprocess.Popen(
            [sys.executable, "-m", "megads", "detoxify", *line.split()], stderr=subprocess.PIPE, text=True
        )
        started.set()
        _, err = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGTERM, err
        done = len((folder / "texts.jsonl-annotated.jsonl.part").read_text().splitlines())
        assert f"megads: stopped by a signal, {done} of 4 texts scored; rerun the same command to resume\n" == err
        code, out, _ = megads(line)
        assert code == 0
        assert f"4 texts, {done} of them by an earlier call" in out
        asked = [text for text in service.seen if text]
        assert sorted(asked) == sorted(["fine", "you idiot", "hate hate"])
