"""The commands in the documents, as a reader would paste them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import commands
from tests.forks.popen import server

ROOT = Path(__file__).parents[2]
SMALL = {"DEMO_VOCAB_SIZE": "512", "DEMO_BYTES": "300000", "SEQ": "32", "GLOBAL_BATCH": "8", "MICRO_BATCH": "4"}

NEW = ("data",)


def test_there_are_commands_to_try():
    assert len(commands(ROOT / "docs/running.md")) >= 6


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize(
    "document",
    [
        "running",
        "data",
        "corpus",
        "bert-t5",
        "checkpoints",
        "inference",
        "evaluation",
        "detoxify",
        "retro",
        "finetune",
        "parallelism",
        "pipeline",
        "hangs",
        "gpu",
        "clusters",
        "tracking",
        "numbers",
        "times",
        "schedules",
        "looking",
        "engine",
        "optimizers",
        "stability",
        "megatron-options",
        "planner",
        "campaigns",
        "migrating",
    ],
)
def test_the_commands_of_a_document_work(document, tmp_path, cache):
    _run(commands(ROOT / f"docs/{document}.md"), document, tmp_path, cache)


@pytest.mark.slow
@pytest.mark.parametrize("document", ["api"])
def test_the_examples_of_a_document_work(document, tmp_path, cache):
    """Its commands, and then its Python, one program in the folder of the commands."""
    page = ROOT / f"docs/{document}.md"
    _run(commands(page), document, tmp_path, cache)
    text = page.read_text().partition("## Public names")[0]
    examples = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(examples) >= 7
    words = [sys.executable, "-W", "error", "-c", "\n".join(examples)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    # What a comment says is printed.
    said = re.findall(r"print\(.*  # (.*)$", text, re.MULTILINE)
    assert said
    assert set(said) <= set(done.stdout.splitlines())


def _run(lines, document, tmp_path, cache):
    """Run commands as a reader of a document would, and return what the last one prints."""
    for name in ("train_7B.sh", "launchers", "ALCF", "envs"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    # Forked, also what train_7B.sh starts; that script starts new interpreters in the documents of NEW.
    client = f'"{sys.executable}" -I -S "{ROOT}/tests/forks/client.py" "{server().address}"'
    python = f'#!/bin/sh\n[ "$1 $2" = "-m megads" ] || exec "{sys.executable}" "$@"\nshift 2\nexec {client} "$@"\n'
    for name, text in (("megads", f'#!/bin/sh\nexec {client} "$@"\n'), ("forked-python", python)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    env = {
        **kept,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "MEGADS_PYTHON": sys.executable if document in NEW else str(programs / "forked-python"),
        "MEGADS_ROOT": str(ROOT),
        "DATA_CACHE_PATH": str(cache),
        "MACHINE": "cpu",
        **({} if document == "planner" else SMALL),  # whose batches are those of a plan
    }
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, f"$ {line}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_readme_finetunes_an_exported_llama_on_chats_with_one_command(tmp_path, cache):
    """Its commands as they stand there, behind a run that is shorter than the README's."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    written = re.findall(r"^(megads .*?)(?:  +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    begins = ("megads checkpoint export-hf", "megads finetune --task chat", "megads generate runs/hf-chat")
    (export,), (finetune,), (ask,) = ([line for line in written if line.startswith(begin)] for begin in begins)
    shape = "RUN_NAME=7B NLAYERS=2 HIDDEN=64 HEADS=4 TRAIN_ITERS=2 EVAL_ITERS=0"
    lines = [f"SEQ=64 {line}" for line in (f"{shape} megads train", export, f"{finetune} --lr 1e-2", ask)]
    assert _run(lines, "README", tmp_path, cache).strip() == "I am a small language model, trained with megads."
