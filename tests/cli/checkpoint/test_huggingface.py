"""``megads checkpoint export-hf`` and ``import-hf``, with the tokenizer, up to text that is generated."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from megads.cli import main
from megads.comm.grid import Grid
from megads.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from tests.checkpoint.convert.huggingface.models import (
    OURS,
    assert_same_logits,
    our_module,
    their_module,
    write_checkpoint,
)
from tests.checkpoint.made import find_latest
from tests.data.tokenizers import vocabularies


@pytest.fixture(scope="module")
def bpe(tmp_path_factory) -> Path:
    """Give a folder with tokenizer.json, vocab.json and merges.txt."""
    folder = tmp_path_factory.mktemp("bpe")
    vocabularies.gpt2(folder)
    return folder / "gpt2"


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory) -> str:
    return vocabularies.sentence_piece(tmp_path_factory.mktemp("sp"))


def run(capsys, *words: object) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of ``megads checkpoint``."""
    code = 0
    capsys.readouterr()
    try:
        main(["checkpoint", *map(str, words)])
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def trained(folder: Path, model: ModelConfig, data: DataConfig, dtype: str = "bf16") -> Path:
    """Write checkpoints of a run with a tokenizer into a run folder, and return it."""
    run = RunConfig(model=model, data=data, train=TrainConfig(dtype=dtype))
    for iteration in (10, 20):
        write_checkpoint(
            folder / "checkpoints", model, Grid(tensor=2), iteration=iteration, about={}, settings=run.model_dump()
        )
    return folder


def sized(kind: str, vocab_size: int) -> ModelConfig:
    return OURS[kind].model_copy(update={"vocab_size": vocab_size, "seq_length": 64, "max_positions": 64})


TOKENIZERS = ("HFTokenizer", "GPT2BPETokenizer", "Llama2Tokenizer")


@pytest.mark.parametrize("kind", ["llama-gqa", "gpt2-tanh"])
@pytest.mark.parametrize("type_", TOKENIZERS)
def test_text_is_generated_from_an_export_with_its_tokenizer(tmp_path, capsys, bpe, sentence_piece, kind, type_):
    name = sentence_piece if type_ == "Llama2Tokenizer" else str(bpe)
    ours = make_tokenizer(TokenizerSpec(type_, name))
    model = sized(kind, ours.vocab_size)
    source = trained(tmp_path / "run", model, DataConfig(tokenizer_type=type_, tokenizer_model=name), dtype="fp32")
    code, out, err = run(capsys, "export-hf", source, tmp_path / "out")
    assert (code, err) == (0, "")
    assert f"in fp32, model.safetensors, tokenizer {name}" in out
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The value of an expression"
    ids = tokenizer(text).input_ids
    assert ids == ours.encode(text)
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == ours.eod

    generate = pipeline("text-generation", model=str(tmp_path / "out"), device="cpu")
    assert generate(text, max_new_tokens=8, do_sample=False)[0]["generated_text"].startswith(text)
    made = generate(text, max_new_tokens=8, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
    module, expected = our_module(source / "checkpoints" / "iter_0000020", model), list(ids)
    with torch.no_grad():
        while len(expected) < len(ids) + 8 and (expected[-1] != ours.eod or len(expected) == len(ids)):
            logits = module(torch.tensor([expected]))[0, -1, : model.vocab_size]
            expected.append(int(logits.argmax()))
    assert made == expected


def test_the_newest_whole_checkpoint_is_taken_unless_a_step_is_given(tmp_path, capsys):
    source = trained(tmp_path / "run", OURS["llama-gqa"], DataConfig(tokenizer_type="NullTokenizer"))
    (source / "checkpoints" / "iter_0000020" / "rank-00000.safetensors").write_bytes(b"short")
    code, out, err = run(capsys, "export-hf", source, tmp_path / "out")
    assert code == 0
    assert err.startswith("megads: skipped: ")
    assert "5 bytes, the manifest says" in err
    assert "LlamaForCausalLM" in out
    assert "in bf16" in out
    code, _, err = run(capsys, "export-hf", source, tmp_path / "other", "--step", 20)
    assert code == 2
    assert err.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_a_run_without_tokenizer_is_told(tmp_path, capsys):
    source = trained(tmp_path / "run", OURS["gpt2-tanh"], DataConfig(tokenizer_type="NullTokenizer"))
    code, out, err = run(capsys, "export-hf", source, tmp_path / "out", "--dtype", "fp16", "--max-shard-size", "20KB")
    assert (code, err) == (0, "")
    assert "in fp16, 2 files, no tokenizer, the run had none (NullTokenizer)" in out
    names = {each.name for each in (tmp_path / "out").iterdir() if not each.name.startswith("model-")}
    assert names == {"config.json", "generation_config.json", "model.safetensors.index.json"}


def test_a_tokenizer_that_is_gone_is_told_with_what_to_do(tmp_path, capsys, bpe):
    source = trained(tmp_path / "run", OURS["gpt2-tanh"], DataConfig(tokenizer_model=str(tmp_path / "gone")))
    code, _, err = run(capsys, "export-hf", source, tmp_path / "out")
    assert code == 2
    assert err.count("\n") == 1
    assert "gone: no such file or folder" in err
    assert "--tokenizer names another, --no-tokenizer skips it" in err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]
    assert run(capsys, "export-hf", source, tmp_path / "out", "--tokenizer", bpe)[0] == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<|endoftext|>"
    assert run(capsys, "export-hf", source, tmp_path / "bare", "--no-tokenizer")[0] == 0
    assert not (tmp_path / "bare" / "tokenizer.json").exists()


BAD = {
    "nothing-there": (["export-hf", "none", "out"], "none: No such file or directory"),
    "no-checkpoint": (["export-hf", ".", "out"], "holds no checkpoint"),
    "shard-size": (["export-hf", "run", "out", "--max-shard-size", "big"], "--max-shard-size big: not a size"),
    "no-step": (["export-hf", "run", "out", "--step", "7"], "no checkpoint of iteration 7"),
    "dtype": (["export-hf", "run", "out", "--dtype", "int8"], "'int8' is not one of"),
    "tokenizer": (["export-hf", "run", "out", "--tokenizer", "run"], "--tokenizer run: pass a tokenizer.json"),
    "own-checkpoint": (["import-hf", "run", "out"], "has no config.json"),
    "one-word": (["import-hf", "run"], "Missing argument 'DST'"),
    "there": (["export-hf", "run", "run"], "already exists"),
    "here": (["export-hf", "run", "."], "already exists"),
    "the-root": (["export-hf", "run", "/"], "/: already exists; use a new folder"),
    "import-the-root": (["import-hf", "theirs", "/"], "/: already exists; use a new folder"),
}


@pytest.mark.parametrize(("words", "message"), BAD.values(), ids=BAD)
def test_bad_commands_are_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "run", OURS["llama-gqa"], DataConfig(tokenizer_type="NullTokenizer"))
    their_module("llama3").save_pretrained(tmp_path / "theirs")
    capsys.readouterr()
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert not (tmp_path / "out").exists()


def test_an_import_says_how_it_is_trained_and_goes_out_again(tmp_path, capsys, bpe):
    source = tmp_path / "theirs"
    their_module("mistral-window").save_pretrained(source)
    (source / "tokenizer.json").write_bytes((bpe / "tokenizer.json").read_bytes())
    code, out, err = run(capsys, "import-hf", source, tmp_path / "ours")
    assert (code, err) == (0, "")
    first, window, tokenizer, surplus, _, command = out.splitlines()
    assert first.startswith(f"{tmp_path / 'ours' / 'iter_0000000'}: MistralForCausalLM of ")
    assert "75 rows of zeros pad its vocabulary of 53" in first
    assert "a context of 32 tokens; train it with SEQ=32 or less" in window
    assert f"tokenizer {tmp_path / 'ours' / 'tokenizer'} (HFTokenizer), 1500 tokens" in tokenizer
    assert "has 1447 tokens more than the model" in surplus
    words = shlex.split(command)
    assert words[:3] == [f"LOAD={tmp_path / 'ours'}", "USE_CHECKPOINT_ARGS=1", "SEQ=32"]
    assert words[-3:] == ["TOKENIZER_MODEL=my-tokenizer", "megads", "train"], "its own is refused, as said above"

    # Moved, so that the tokenizer is found next to the checkpoint.
    (tmp_path / "ours").rename(tmp_path / "moved")
    code, out, _ = run(capsys, "export-hf", tmp_path / "moved", tmp_path / "again")
    assert code == 0
    assert "MistralForCausalLM" in out
    assert (tmp_path / "again" / "tokenizer.json").is_file()
    found = find_latest(tmp_path / "moved")
    model = their_module("mistral-window")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert found is not None


def test_weights_trained_on_since_an_import_keep_its_class(tmp_path, capsys):
    source = tmp_path / "theirs"
    their_module("mistral").save_pretrained(source)
    (source / "generation_config.json").write_text('{"temperature": 0.7, "eos_token_id": [2, 5]}')
    assert run(capsys, "import-hf", source, tmp_path / "ours")[0] == 0
    manifest = find_latest(tmp_path / "ours").manifest
    settings = RunConfig(data=DataConfig(tokenizer_type="NullTokenizer")).model_dump()
    settings["model"] |= {**manifest.model, "seq_length": 48}
    about = {"hf": dict(manifest.about["hf"])}  # as train/resume.py hands it on
    model = ModelConfig(**settings["model"])
    path = write_checkpoint(tmp_path / "run" / "checkpoints", model, Grid(data=2), about=about, settings=settings)
    code, out, _ = run(capsys, "export-hf", tmp_path / "run", tmp_path / "again", "--dtype", "fp32")
    assert code == 0
    assert "MistralForCausalLM" in out
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (config["max_position_embeddings"], config["sliding_window"]) == (64, None)
    generation = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert (generation["temperature"], generation["eos_token_id"]) == (0.7, [2, 5])
    assert_same_logits(our_module(path, model), AutoModelForCausalLM.from_pretrained(tmp_path / "again"))


@pytest.mark.parametrize(("kind", "length", "positions"), [("mistral", 80, 80), ("mistral-window", 48, 48)])
def test_a_run_on_longer_samples_or_without_the_window_has_its_own_positions(tmp_path, capsys, kind, length, positions):
    """Attention was to the whole of its samples: the 64 positions that were imported count only without a window."""
    their_module(kind).save_pretrained(tmp_path / "theirs")
    assert run(capsys, "import-hf", tmp_path / "theirs", tmp_path / "ours")[0] == 0
    manifest = find_latest(tmp_path / "ours").manifest
    settings = RunConfig(data=DataConfig(tokenizer_type="NullTokenizer")).model_dump()
    settings["model"] |= {**manifest.model, "seq_length": length}
    about = {"hf": dict(manifest.about["hf"])}
    model = ModelConfig(**settings["model"])
    write_checkpoint(tmp_path / "run" / "checkpoints", model, Grid(), about=about, settings=settings)
    assert run(capsys, "export-hf", tmp_path / "run", tmp_path / "again", "--dtype", "fp32")[0] == 0
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (config["max_position_embeddings"], config["sliding_window"]) == (positions, None)


def test_help_says_what_comes_out(capsys):
    for command, word in {"export-hf": "generation_config.json", "import-hf": "iteration 0"}.items():
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert word in out


LIMITED = """
import resource, sys
sys.modules["torch"] = None  # as where it is not installed
from megads.cli import main
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
main(sys.argv[2:])
assert sys.modules["torch"] is None
"""


def limited(size: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that may write files of ``size`` bytes (0: any); it must not need torch."""
    given = [sys.executable, "-c", LIMITED, str(size), "checkpoint", *map(str, words)]
    return subprocess.run(given, capture_output=True, text=True, timeout=120)


def test_neither_needs_torch_and_a_full_disk_leaves_nothing(tmp_path, bpe):
    source = trained(tmp_path / "run", OURS["llama-gqa"], DataConfig(tokenizer_model=str(bpe)))
    full = limited(20_000, "export-hf", source, tmp_path / "out", "--no-tokenizer")
    assert (full.returncode, full.stderr.count("\n")) == (2, 1), full.stderr
    assert "File too large; free some space or use another folder" in full.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
    whole = limited(0, "export-hf", source, tmp_path / "out")
    assert whole.returncode == 0, whole.stderr

    full = limited(20_000, "import-hf", tmp_path / "out", tmp_path / "ours")
    assert (full.returncode, full.stderr.count("\n")) == (2, 1), full.stderr
    assert "File too large" in full.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "run"]
    whole = limited(0, "import-hf", tmp_path / "out", tmp_path / "ours")
    assert whole.returncode == 0, whole.stderr
