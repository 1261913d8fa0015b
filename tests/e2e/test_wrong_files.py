"""Wrong data, folders, disks and checkpoints: one line that says what would work, exit 2, nothing half-written."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.factory import write_dataset, write_list
from tests.e2e.conftest import Command
from tests.e2e.refused import DATA, TINY, limit_files, one_line, refused, run, tree

WIDER = {"HIDDEN": "32"}
"""Of the runs that are continued: a rank's tensors take more room than the settings."""


@pytest.fixture(scope="session")
def tokens(tmp_path_factory) -> Path:
    """A folder with one tokenised dataset: 40 documents of 50 tokens below 100."""
    folder = tmp_path_factory.mktemp("tokens")
    write_dataset(folder, [50] * 40)
    return folder


@pytest.fixture
def data(megads, tokens) -> dict[str, str]:
    """Settings of a run on a copy of that dataset, through the list ``list.txt``."""
    for name in ("data.bin", "data.idx"):
        shutil.copy(tokens / name, megads.folder)
    write_list(megads.folder / "list.txt", "1 data text")
    return {**TINY, **DATA, "DATA_FILE_LIST": "list.txt"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "list.txt: lists no data; write 'WEIGHT PREFIX CORPUS' on each line"),
        (b"# nothing\n\n", "list.txt: lists no data"),
        (b"0 data text\n", "list.txt: all weights are 0; at least one must be positive"),
        (b"-1 data text\n", "list.txt:1: weight -1 must be a finite number, 0 or larger"),
        (b"inf data text\r\n", "list.txt:1: weight inf must be a finite number"),
        (b"data\n", "list.txt:1: expected 'WEIGHT PREFIX CORPUS', got 'data'"),
        (b"1 data text\nmuch data text\n", "list.txt:2: expected 'WEIGHT PREFIX CORPUS', but 'much' is not a number"),
        (b"1 my data text\n", "list.txt:1: expected 'WEIGHT PREFIX CORPUS', got '1 my data text'"),
        (b"1 data \xff\xfe\n", "list.txt: not UTF-8 text (byte 7)"),
        (b"1 gone text\n", "gone.idx: no such file; a data prefix is the common part of a .bin and a .idx file"),
    ],
    ids=lambda each: repr(each)[:30] if isinstance(each, bytes) else "",
)
def test_a_bad_list(megads, data, content, told):
    (megads.folder / "list.txt").write_bytes(content)
    refused(megads, told=[told], **data)


def change(name: str, start: int, content: bytes) -> Callable[[Path], object]:
    """Return what writes ``content`` over the bytes of a file from ``start`` on."""

    def apply(folder: Path) -> None:
        old = (folder / name).read_bytes()
        (folder / name).write_bytes(old[:start] + content + old[start + len(content) :])

    return apply


def cut(name: str, size: int) -> Callable[[Path], object]:
    """Return what leaves ``size`` bytes of a file; all but ``-size`` when negative."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(lambda folder: (folder / "data.bin").unlink(), "data.bin: no such file", id="no bin"),
        pytest.param(lambda folder: (folder / "data.idx").unlink(), "data.idx: no such file", id="no idx"),
        pytest.param(cut("data.idx", -8), "the copy is truncated or damaged", id="short idx"),
        pytest.param(cut("data.idx", 20), "data.idx: truncated, 20 bytes, expected at least the 34", id="no header"),
        pytest.param(cut("data.idx", 0), "data.idx: is empty, expected token data; write the files", id="empty idx"),
        pytest.param(cut("data.bin", -2), "data.bin: has 3998 bytes, expected 4000 from data.idx", id="short bin"),
        pytest.param(change("data.idx", 0, b"PK\3\4"), "Megatron's mmap format", id="bad magic"),
        pytest.param(change("data.idx", 0, b"TNTIDX\0\0"), "data.idx: format version 256, expected 1", id="other"),
        pytest.param(change("data.idx", 9, b"\2"), "data.idx: format version 2, expected 1", id="version"),
        pytest.param(change("data.idx", 17, b"\x09"), "dtype code 9 is unknown; expected one of 1, 2", id="dtype"),
        pytest.param(change("data.idx", 17, b"\7"), "dtype code 7 is floats, not tokens", id="float dtype"),
        pytest.param(change("data.idx", 17, b"\4"), "the two files do not belong together", id="other dtype"),
        pytest.param(change("data.idx", 18, b"\xff" * 8), "18446744073709551615 sequences", id="huge count"),
        pytest.param(change("data.bin", 0, b"\x90\1"), "holds token 400 but the model knows 100", id="token"),
    ],
)
def test_a_damaged_file(megads, data, damage, told):
    damage(megads.folder)
    refused(megads, told=[told], **data)


def test_tokens_of_a_larger_vocabulary(megads, data):
    told = ["data: holds token", "but the model knows 50; use the tokenizer the file was made with"]
    refused(megads, told=told, **data | {"VOCAB_SIZE": "50"})


def test_a_split_without_a_document(megads, data):
    told = ["valid: ", "leaves no document of 40 documents; raise VAL_SPLIT, or EVAL_INTERVAL=0"]
    refused(megads, told=told, **data | {"VAL_SPLIT": "0.001", "EVAL_INTERVAL": "6"})


def test_less_data_than_one_sample(megads, data):
    refused(megads, told=["tokens are less than one sample of SEQ + 1 = 4097", "lower SEQ"], **data | {"SEQ": "4096"})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "tokenizer.json: is not JSON; expected a tokenizer.json of the tokenizers library"),
        ("[" * 100_000, "tokenizer.json: is not JSON"),
        ("[]", "tokenizer.json: expected a JSON object"),
        ('{"model": {}}', "tokenizer.json: holds no vocabulary"),
        (
            json.dumps({"model": {"vocab": {str(i): i for i in range(101)}}}),
            "VOCAB_SIZE=100 is smaller than the tokenizer's 101 tokens; use VOCAB_SIZE=101 or more",
        ),
    ],
    ids=["half", "deep", "list", "no vocabulary", "too large"],
)
def test_a_bad_tokenizer(megads, data, content, told):
    (megads.folder / "tokenizer.json").write_text(content)
    settings = data | {"TOKENIZER_TYPE": "HFTokenizer", "TOKENIZER_MODEL": "tokenizer.json"}
    refused(megads, told=[told], **settings)


def test_a_folder_without_a_tokenizer(megads):
    refused(megads, told=["TOKENIZER_MODEL .: the folder has no tokenizer.json; transformers writes one"],
            TOKENIZER_MODEL=".")  # fmt: skip


# Folders and disks


def test_a_folder_that_is_a_file(megads):
    (megads.folder / "runs").write_text("")
    refused(megads, told=["run folder runs/llama: Not a directory; set RUN_DIR"])


def test_a_file_in_place_of_the_checkpoints(megads, data):
    (megads.folder / "r").mkdir()
    (megads.folder / "r/checkpoints").write_text("")
    done = run(megads, "train", RUN_DIR="r", **data)
    one_line(done, "checkpoints in r/checkpoints: File exists; set CKPT_DIR to a folder you can write")


def test_a_link_to_itself(megads):
    (megads.folder / "r").symlink_to("r")
    refused(megads, told=["r/checkpoints: Too many levels of symbolic links; set RUN_DIR or"], RUN_DIR="r")


def test_a_folder_without_write_permission(megads):
    # Not even root makes folders in /sys.
    told = ["run folder /sys/megads-run: ", "set RUN_DIR to a folder you can write"]
    refused(megads, told=told, RUN_DIR="/sys/megads-run")


def test_a_working_folder_that_is_gone(megads):
    done = run(megads, "train", before_exec=lambda: os.rmdir(megads.folder))
    one_line(done, "run folder runs/llama: No such file or directory; set RUN_DIR to a folder you can write")
    megads.folder.mkdir()
    done = run(megads, "train", before_exec=lambda: os.rmdir(megads.folder), DATA_CACHE_PATH="cache")
    one_line(done, "the working folder no longer exists; call megads in one that does")


def test_a_folder_that_another_run_uses(megads):
    (megads.folder / "r/log").mkdir(parents=True)
    with open(megads.folder / "r/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(megads, told=["run folder r: another run is using it; `megads stop r` ends that one"], RUN_DIR="r")


def test_a_full_disk_for_the_settings(megads, data):
    told_of = ["run folder runs/llama: File too large; free some space or set RUN_DIR to a folder you can write"]
    refused(megads, told=told_of, before_exec=limit_files(0), **data)  # not even for who holds it
    told = ["runs/llama/config.yaml: cannot be written: File too large; free some space or use another RUN_DIR"]
    refused(megads, told=told, before_exec=limit_files(9000), **data)


@pytest.mark.parametrize("size", [9000, 60_000])
def test_a_full_disk_for_the_demo_corpus(megads, size):
    (megads.folder / "cache").mkdir()
    refused(megads, told=["/cache/", "file too large; free some space"], before_exec=limit_files(size),
            DATA_CACHE_PATH="cache")  # fmt: skip


# Checkpoints


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tokens) -> Path:
    """The folder of a run that stopped after one step on one rank."""
    megads = Command(tmp_path_factory.mktemp("trained"), tokens)
    settings = {**TINY, **DATA, "DATA_FILE_LIST": str(write_list(tokens / "list.txt", "1 data text"))}
    done = run(megads, "train", RUN_DIR="r", EXIT_INTERVAL="1", **settings | WIDER)
    assert done.returncode == 75, done.stderr
    return megads.folder / "r"


@pytest.fixture
def stopped(megads, trained, data) -> dict[str, str]:
    """Settings of a run that continues in a copy of ``trained``."""
    shutil.copytree(trained, megads.folder / "r")
    return {**data, **WIDER, "RUN_DIR": "r"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"NLAYERS": "2"}, "the checkpoint's model has num_layers=1, this run asks for 2"),
        ({"NO_LLAMA": "1"}, "the checkpoint's model has normalization=rmsnorm and activation=swiglu and "),
    ],
)
def test_a_checkpoint_of_another_run(megads, stopped, changed, told):
    told = ["r/checkpoints/iter_0000001: ", told, "another RUN_NAME or RUN_DIR"]
    refused(megads, told=told, **stopped | changed)


def test_every_checkpoint_damaged(megads, stopped):
    shard = next((megads.folder / "r/checkpoints").glob("*/*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    told = ["r/checkpoints: no checkpoint can be read", "the manifest says", "another RUN_NAME or RUN_DIR"]
    refused(megads, told=told, **stopped)


@pytest.mark.parametrize("layout", [{}, {"DP": "2"}], ids=["1 rank", "2 ranks"])
def test_a_full_disk_for_a_checkpoint_keeps_the_older_ones(megads, stopped, layout):
    """The one wrong input that only the ranks can find."""
    older = tree(megads.folder / "r/checkpoints")
    # Room for the files that come before it, the longest of which are the settings; not for a rank's tensors.
    limit = (megads.folder / "r/config.yaml").stat().st_size + 2000
    assert limit < min(size for name, size in older.items() if name.endswith(".safetensors"))
    done = run(megads, "train", before_exec=limit_files(limit), **stopped, **layout)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("megads: ")]
    assert len(lines) == 1, done.stderr
    assert "the checkpoint was not saved: rank 0: r/checkpoints/iter_0000012.tmp: " in lines[0]
    assert "free some space or set CKPT_DIR, then rerun the same command" in lines[0]
    assert tree(megads.folder / "r/checkpoints") == older
    assert json.loads((megads.folder / "r/outcome.json").read_text())["exit_code"] == 2


# Not wrong, only unusual


def test_two_runs_at_the_same_moment_share_one_demo_corpus(megads):
    few = {**TINY, "TRAIN_ITERS": "1", "DEMO_BYTES": "100000", "DATA_CACHE_PATH": "fresh"}
    both = [megads.start("train", RUN_DIR=name, **few) for name in ("a", "b")]
    for process in both:
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    assert len(list((megads.folder / "fresh").glob("*demo*"))) == 1


def test_odd_but_sound_surroundings(megads, data):
    odd = megads.folder / "a folder"
    odd.mkdir()
    (odd / "link.txt").symlink_to(megads.folder / "list.txt")
    for name in ("data.bin", "data.idx"):
        (megads.folder / name).rename(odd / name)
    (megads.folder / "list.txt").write_bytes(b"\xef\xbb\xbf1  data.bin\ttext  # one\r\n\r\n")
    settings = {"HOME": "unset", "LANG": "C", "PATH": "", "DATA_FILE_LIST": "a folder/link.txt", "TP": " 1 "}
    done = run(megads, "train", "--dry-run", RUN_DIR="my r\N{LATIN SMALL LETTER U WITH DIAERESIS}n", **data | settings)
    assert done.returncode == 0, done.stderr
    assert not list(megads.folder.glob("my*"))
