"""``megads checkpoint import-megatron`` and ``export-megatron``: what they print, and what they refuse in one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from megads.checkpoint.format.folders import checkpoint_name
from megads.cli import main
from megads.comm.grid import Grid
from megads.storage.file_lock import take_lock
from tests.checkpoint.convert.megatron.megatron import arguments, model_tensors, save
from tests.checkpoint.convert.megatron.samples import LLAMA, save_ours, weights
from tests.checkpoint.sources import make_arrays, write_source
from tests.models import shapes


def _run(*words: object) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, words)])


def _said(result: Result) -> str:
    """Return the one line of a refusal."""
    assert result.exit_code == 2, result.output
    lines = result.output.strip().split("\n")
    assert len(lines) == 1, result.output
    assert lines[0].startswith("megads: ")
    return lines[0]


def test_there_and_back(tmp_path):
    ours = save_ours(tmp_path / "ours", LLAMA)
    done = _run("export-megatron", tmp_path / "ours", tmp_path / "theirs", "--tp", 2, "--pp", 2)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().endswith(f"TP=2 x PP=2, legacy names, fp32, of {ours}")
    done = _run("import-megatron", tmp_path / "theirs", tmp_path / "back")
    assert done.exit_code == 0, done.output
    assert "4 layers, hidden 32, 8 heads (4 key/value), rmsnorm, swiglu, rope, 53 tokens" in done.stdout
    before, after = weights(ours), weights(tmp_path / "back" / checkpoint_name(0))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_what_is_printed_of_a_t5_is_the_command_that_trains_it(tmp_path):
    save_ours(tmp_path / "ours", shapes.T5)
    words = ("--pp", 5, "--split-rank", 2)
    done = _run("export-megatron", tmp_path / "ours", tmp_path / "theirs", *words)
    assert done.exit_code == 0, done.output
    done = _run("import-megatron", tmp_path / "theirs", tmp_path / "back")
    assert done.exit_code == 0, done.output
    assert "2 + 3 layers, hidden 32, 8 heads" in done.stdout
    assert done.stdout.endswith(f"; SEQ=16 DECODER_SEQ=8 LOAD={tmp_path}/back USE_CHECKPOINT_ARGS=1 trains it\n")


def test_an_export_to_hugging_face_knows_the_type_and_that_there_was_no_tokenizer(tmp_path):
    chunks = model_tensors(2, 1, groups=2, llama=True)
    halves = [[{name: each.bfloat16() for name, each in rank.items()} for rank in ranks] for ranks in chunks]
    args = arguments(tokenizer_type="NullTokenizer", vocab_size=20)
    save(tmp_path / "src", halves, args=args, checkpoint_version=3.0)
    assert _run("import-megatron", tmp_path / "src", tmp_path / "ours").exit_code == 0
    done = _run("export-hf", tmp_path / "ours", tmp_path / "theirs")
    assert done.exit_code == 0, done.output
    assert "in bf16, model.safetensors, no tokenizer, the run had none (NullTokenizer)" in done.stdout


def test_notes_go_to_the_side(tmp_path):
    save(tmp_path / "src", model_tensors(2, 1), args=None, checkpoint_version=3.0)
    done = _run("import-megatron", tmp_path / "src", tmp_path / "dst", "--num-attention-heads", 4, "--kv-channels", 6)
    assert done.exit_code == 0, done.output
    assert "state --vocab-size" in done.stderr
    assert len(done.stdout.strip().split("\n")) == 1


@pytest.mark.parametrize("name", ["import-megatron", "export-megatron"])
def test_help(name):
    done = _run(name, "--help")
    assert done.exit_code == 0
    assert "DST" in done.stdout


def _edit(path: Path, change: Callable[[dict], None]) -> None:
    content = torch.load(path, weights_only=False)
    change(content)
    torch.save(content, path)


def _file(src: Path, rank: str = "mp_rank_00_000") -> Path:
    return src / "iter_0000040" / rank / "model_optim_rng.pt"


def _no_rank(src: Path) -> None:
    shutil.rmtree(_file(src, "mp_rank_01_001").parent)


def _no_tensor_rank(src: Path) -> None:
    for stage in range(2):
        shutil.rmtree(_file(src, f"mp_rank_01_{stage:03d}").parent)


def _no_stage(src: Path) -> None:
    for rank in range(2):
        shutil.rmtree(_file(src, f"mp_rank_{rank:02d}_001").parent)


def _no_file(src: Path) -> None:
    _file(src, "mp_rank_01_000").unlink()


def _mixed_steps(src: Path) -> None:
    _edit(_file(src, "mp_rank_01_000"), lambda content: content.update(iteration=50))


def _mixed_versions(src: Path) -> None:
    _edit(_file(src, "mp_rank_01_000"), lambda content: content.update(checkpoint_version=2.0))


def _other_shape(src: Path) -> None:
    def change(content: dict) -> None:
        encoder = content["model"]["language_model"]["encoder"]
        encoder["layers.0.mlp.dense_h_to_4h.weight"] = torch.ones(5, 16)

    _edit(_file(src, "mp_rank_01_000"), change)


def _both_of_another_shape(src: Path) -> None:
    def change(content: dict) -> None:
        encoder = content["model"]["language_model"]["encoder"]
        encoder["layers.0.mlp.dense_4h_to_h.bias"] = torch.ones(5)

    for rank in range(2):
        _edit(_file(src, f"mp_rank_{rank:02d}_001"), change)


def _truncated(src: Path) -> None:
    file = _file(src, "mp_rank_01_000")
    file.write_bytes(file.read_bytes()[:2000])


class _Runs:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def _code(src: Path) -> None:
    _edit(_file(src, "mp_rank_01_001"), lambda content: content.update(optimizer=_Runs(src / "ran")))


def _named(name: str) -> Callable[[Path], None]:
    def change(src: Path) -> None:
        def rename(content: dict) -> None:
            content["model"]["language_model"]["encoder"][name] = torch.ones(2)

        for rank in range(2):
            _edit(_file(src, f"mp_rank_{rank:02d}_000"), rename)

    return change


def _t5(src: Path) -> None:
    for rank in range(2):
        _edit(
            _file(src, f"mp_rank_{rank:02d}_000"),
            lambda content: content["model"]["language_model"].update(decoder={"final_layernorm.bias": torch.ones(2)}),
        )


def _bert(src: Path) -> None:
    for rank in range(2):
        _edit(
            _file(src, f"mp_rank_{rank:02d}_001"),
            lambda content: content["model"].update(binary_head={"weight": torch.ones(2, 16)}),
        )


def _no_parameter(src: Path) -> None:
    for rank in range(2):
        _edit(
            _file(src, f"mp_rank_{rank:02d}_001"),
            lambda content: content["model"]["language_model"]["encoder"].pop("final_layernorm.bias"),
        )


def _no_layer(src: Path) -> None:
    def change(content: dict) -> None:
        encoder = content["model"]["language_model"]["encoder"]
        for name in [name for name in encoder if name.startswith("layers.0.")]:
            encoder[name.replace("layers.0", "layers.1")] = encoder.pop(name)

    for rank in range(2):
        _edit(_file(src, f"mp_rank_{rank:02d}_000"), change)


def _no_model(src: Path) -> None:
    _edit(_file(src), lambda content: content.pop("model"))


def _a_list(src: Path) -> None:
    torch.save([1, 2], _file(src, "mp_rank_01_000"))


def _no_tensor(src: Path) -> None:
    for rank in range(2):
        _edit(
            _file(src, f"mp_rank_{rank:02d}_000"),
            lambda content: content["model"]["language_model"]["encoder"].update(
                {"layers.0.input_layernorm.bias": "x"}
            ),
        )


def _tracker(text: str) -> Callable[[Path], None]:
    return lambda src: (src / "latest_checkpointed_iteration.txt").write_text(text) and None


def _torch_dist(src: Path) -> None:
    shutil.rmtree(src / "iter_0000040")
    (src / "iter_0000040").mkdir()
    (src / "iter_0000040" / ".metadata").write_bytes(b"")


def _zero3(src: Path) -> None:
    shutil.rmtree(src)
    (src / "global_step4").mkdir(parents=True)
    (src / "global_step4" / "zero_pp_rank_0_mp_rank_00_model_states.pt").write_bytes(b"")


def _experts(src: Path) -> None:
    path = src / "iter_0000040"
    shutil.copytree(path / "mp_rank_00_000", path / "mp_rank_00_000_001")


def _empty(src: Path) -> None:
    shutil.rmtree(src)
    src.mkdir()


BAD = {
    "no rank": (_no_rank, "mp_rank_01_001/model_optim_rng.pt is missing, of TP=2 x PP=2 ranks"),
    "no tensor rank": (_no_tensor_rank, "mp_rank_01_000/model_optim_rng.pt is missing"),
    "no stage": (_no_stage, "mp_rank_00_001/model_optim_rng.pt is missing"),
    "no file": (_no_file, "mp_rank_01_000/model_optim_rng.pt is missing"),
    "mixed steps": (_mixed_steps, "is of iteration 50"),
    "mixed versions": (_mixed_versions, "is of checkpoint_version 2"),
    "other shape": (_other_shape, "has shape [5, 16]"),
    "other shape on all": (_both_of_another_shape, "layers.0.mlp.dense_4h_to_h.bias has shape [5]"),
    "truncated": (_truncated, "not a readable file of torch.save"),
    "code": (_code, "names posix.mkdir"),
    "unknown name": (_named("layers.0.mlp.surprise.weight"), "layers.0.mlp.surprise.weight is a parameter that no GPT"),
    "experts in it": (_named("layers.0.mlp.local_experts.0.weight"), "mixture of experts"),
    "norm of queries": (_named("layers.0.self_attention.q_norm.weight"), "a norm of queries and keys"),
    "half a T5": (_t5, "holds no final_norm.weight; it is incomplete, or of another kind of model"),
    "half a BERT": (_bert, "holds no lm_head.dense.weight; it is incomplete, or of another kind of model"),
    "no parameter": (_no_parameter, "holds no final_norm.bias"),
    "no layer": (_no_layer, "layer 0 is missing"),
    "no model": (_no_model, "holds no model"),
    "a list": (_a_list, "holds a list"),
    "no tensor": (_no_tensor, "is not a tensor but a str"),
    "tracker of nothing": (_tracker("70"), "names '70'"),
    "tracker outside": (_tracker("../other"), "names '../other'"),
    "tracker empty": (_tracker(""), "names ''"),
    "torch_dist": (_torch_dist, "--ckpt-format torch"),
    "ZeRO 3": (_zero3, "zero_to_fp32.py"),
    "experts": (_experts, "expert-parallel rank"),
    "empty": (_empty, "holds no checkpoint of Megatron"),
    "nothing": (shutil.rmtree, "does not exist"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sources(tmp_path, kind):
    src = tmp_path / "src"
    save(src, model_tensors(2, 2), pipe=2, checkpoint_version=3.0)
    damage, said = BAD[kind]
    damage(src)
    line = _said(_run("import-megatron", src, tmp_path / "dst"))
    assert said in line
    assert str(tmp_path) in line
    assert not (tmp_path / "dst").exists()
    assert not (src / "ran").exists()


def test_a_checkpoint_is_there_already(tmp_path):
    save(tmp_path / "src", model_tensors(2, 1), checkpoint_version=3.0)
    save_ours(tmp_path / "dst", LLAMA)
    before = sorted((tmp_path / "dst").rglob("*"))
    assert "a checkpoint already exists" in _said(_run("import-megatron", tmp_path / "src", tmp_path / "dst"))
    assert sorted((tmp_path / "dst").rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--num-heads", 3], "--num-heads"),
        (["--vocab-size", 900], "its vocabulary has 24 rows, not 900"),
        (["--activation", "swiglu"], "not gated"),
        (["--normalization", "rmsnorm"], "layernorm, not rmsnorm"),
        (["--position-embedding", "rope"], "a table of positions"),
        (["--num-kv-heads", 2], "has 4 key/value heads by its shapes, not 2"),
        (["--vocab-size", "many"], "import-megatron --help"),
    ],
)
def test_what_is_stated_contradicts_the_files(tmp_path, options, said):
    save(tmp_path / "src", model_tensors(2, 1), checkpoint_version=3.0)
    assert said in _said(_run("import-megatron", tmp_path / "src", tmp_path / "dst", *options))
    assert not (tmp_path / "dst").exists()


LOCKED = {
    "import-megatron": (("import-megatron", "theirs", "dst"), "dst/iter_0000000.tmp"),
    "export-megatron": (("export-megatron", "run", "dst"), ".dst.megads.tmp"),
    "export-hf": (("export-hf", "run", "dst", "--no-tokenizer"), ".dst.megads.tmp"),
    "reshape": (("reshape", "run", "dst", "--tp", 2), "dst/iter_0000030.tmp"),
}


@pytest.mark.parametrize(("words", "part"), LOCKED.values(), ids=LOCKED)
def test_a_second_command_that_makes_the_same_is_refused(tmp_path, words, part):
    save(tmp_path / "theirs", model_tensors(2, 1), checkpoint_version=3.0)
    write_source(tmp_path / "run" / "checkpoints", LLAMA, make_arrays(LLAMA), Grid(), iteration=30)
    half = tmp_path / part
    half.mkdir(parents=True)
    with take_lock(half.with_name(f"{half.name}.lock"), temporary=True):
        (half / "half").write_text("of the first one")
        line = _said(_run(*(tmp_path / word if word in ("run", "theirs", "dst") else word for word in words)))
        assert f"{half}: another command is writing it; wait for it, or use another folder" in line
        assert (half / "half").read_text() == "of the first one"
    assert not half.with_name(f"{half.name}.lock").exists()
    done = _run(*(tmp_path / word if word in ("run", "theirs", "dst") else word for word in words))
    assert done.exit_code == 0, done.output
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".lock", ".tmp"))]


def test_bad_exports(tmp_path, monkeypatch):
    ours = save_ours(tmp_path / "ours", LLAMA)
    assert "--tp 8 does not divide the 4 key/value heads" in _said(
        _run("export-megatron", ours, tmp_path / "dst", "--tp", 8)
    )
    assert str(tmp_path / "none") in _said(_run("export-megatron", tmp_path / "none", tmp_path / "dst"))
    assert "already exists" in _said(_run("export-megatron", ours, tmp_path / "ours"))
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path}: already exists" in _said(_run("export-megatron", ours, "."))
    assert "/: already exists; use a new folder" in _said(_run("export-megatron", ours, "/"))
    path = save(tmp_path / "theirs", model_tensors(2, 1), checkpoint_version=3.0)
    assert "import-megatron" in _said(_run("export-megatron", path, tmp_path / "dst"))
    assert not (tmp_path / "dst").exists()
