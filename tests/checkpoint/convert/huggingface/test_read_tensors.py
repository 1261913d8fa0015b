"""What cannot be imported is refused in one line that says why, and leaves nothing behind; no pickle's code runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import their_module


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Give a good folder of each family."""
    base = tmp_path_factory.mktemp("good")
    for kind in ("llama3", "llama-bias", "mistral", "gpt2", "llama3.2"):
        their_module(kind).save_pretrained(base / kind)
    return {path.name: path for path in base.iterdir()}


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config |= changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "GONE"}))

    return change


def _tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return changed


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return changed


def _only(name: str, content: str = "{}") -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / name).write_text(content)

    return changed


def _index(where: Any) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))

    return changed


def _endless(folder: Path) -> None:
    """Have a header of more bytes than any has, in a file that has them: as holes, which take no space."""
    with open(folder / "model.safetensors", "r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)


def _file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


NORM = "model.norm.weight"
YARN = {"rope_type": "yarn", "factor": 2.0}
BANDS = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}
CASES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "no-folder": ("llama3", shutil.rmtree, "no such folder; pass the local folder of a model, nothing is downloaded"),
    "a-file": ("llama3", _file_instead, "is a file; pass the local folder"),
    "no-config": (
        "llama3",
        _only("model.safetensors"),
        "has no config.json; it is not a folder of a Hugging Face model",
    ),
    "meta": ("llama3", _only("params.json"), "is Meta's own form of the weights; fetch the model's config.json"),
    "adapter": ("llama3", _only("adapter_config.json"), "is an adapter, not a model; merge it"),
    "no-weights": (
        "llama3",
        lambda f: os.remove(f / "model.safetensors"),
        "has no weights; expected model.safetensors",
    ),
    "config-no-json": ("llama3", lambda f: (f / "config.json").write_text("{"), "config.json: is not JSON"),
    "config-a-list": ("llama3", lambda f: (f / "config.json").write_text("[]"), "holds no JSON object"),
    "architecture": (
        "llama3",
        _config(architectures=["FalconForCausalLM"]),
        "the architecture FalconForCausalLM is not supported; LlamaForCausalLM, MistralForCausalLM, GPT2LMHeadModel",
    ),
    "model-type": (
        "llama3",
        _config(architectures=None, model_type="mamba"),
        "the architecture model_type mamba is not",
    ),
    "bias-mix": (
        "llama3",
        _config(attention_bias=True),
        "attention_bias=True and mlp_bias=False; megads has biases in all",
    ),
    "yarn": ("llama3", _config(rope_scaling=YARN), "rope_scaling of type 'yarn' is not supported; default, linear and"),
    "dynamic": (
        "llama3",
        _config(rope_scaling={"type": "dynamic", "factor": 2.0}),
        "of type 'dynamic' is not supported",
    ),
    "longrope": ("mistral", _config(rope_scaling={"type": "longrope"}), "of type 'longrope' is not supported"),
    "bands": ("llama3", _config(rope_scaling=BANDS), "expected 0 < low < high"),
    "rope-a-word": ("llama3", _config(rope_scaling="linear"), "rope_scaling is 'linear', expected an object"),
    "part-rotary": ("llama3", _config(partial_rotary_factor=0.5), "partial_rotary_factor=0.5 is not supported; 1.0 is"),
    "quantised": ("llama3", _config(quantization_config={"bits": 4}), "quantization_config is set: quantised weights"),
    "activation": ("llama3", _config(hidden_act="gelu"), "hidden_act='gelu' is not supported; 'silu' or 'swish' is"),
    "gpt2-relu": (
        "gpt2",
        _config(activation_function="relu"),
        "activation_function='relu' is not supported; gelu, gelu_new",
    ),
    "gpt2-scale": ("gpt2", _config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is set"),
    "gpt2-cross": ("gpt2", _config(add_cross_attention=True), "add_cross_attention is set"),
    "gpt2-heads": ("gpt2", _config(n_head=5), "n_embd=32 is not a multiple of n_head=5"),
    "layer-types": ("mistral", _config(layer_types=["full_attention", "sliding_attention"]), "layer_types mixes"),
    "no-size": ("llama3", _config(hidden_size="GONE"), "hidden_size is None, expected an integer from 1 to"),
    "odd-size": ("llama3", _config(num_hidden_layers="two"), "num_hidden_layers is 'two', expected an integer"),
    "odd-number": ("llama3", _config(rms_norm_eps="tiny"), "rms_norm_eps is 'tiny', expected a number"),
    "number-too-large": ("llama3", _config(rope_theta=10**400), "rope_theta is 10+, expected a number"),
    "no-number": ("llama3", _config(rms_norm_eps=float("nan")), "rms_norm_eps is nan, expected a number"),
    "odd-architectures": ("llama3", _config(architectures=[{}]), r"architectures is \[{}\], expected a list of names"),
    "odd-layer-types": ("mistral", _config(layer_types=3), "layer_types is 3, expected a list of names"),
    "layer-types-of-objects": ("mistral", _config(layer_types=[{}]), "expected a list of names"),
    "odd-activation": (
        "gpt2",
        _config(activation_function=["gelu"]),
        r"activation_function=\['gelu'\] is not supported",
    ),
    "odd-window": ("mistral", _config(sliding_window="4k"), "sliding_window is '4k', expected an integer from"),
    "odd-flag": ("llama3", _config(tie_word_embeddings="no"), "tie_word_embeddings is 'no', expected true or false"),
    "zero-epsilon": ("llama3", _config(rms_norm_eps=0.0), "norm_epsilon = 0.0: input should be greater than 0"),
    "heads": ("llama3", _config(num_key_value_heads=3), "4 heads cannot share 3 key/value heads"),
    "fewer-layers": ("llama3", _config(num_hidden_layers=1), r"has model\.layers\.1\..* 9 tensors would be lost"),
    "more-layers": ("llama3", _config(num_hidden_layers=3), r"has no model\.layers\.2\..*; 9 of 30 tensors of Llama"),
    "other-width": ("llama3", _config(intermediate_size=64), r"has shape \[48, 32\], config.json says \[64, 32\]"),
    "other-vocabulary": (
        "gpt2",
        _config(vocab_size=99),
        r"wte.weight has shape \[53, 32\], config.json says \[99, 32\]",
    ),
    "untied": ("llama3.2", _config(tie_word_embeddings=False), "has no lm_head.weight; 1 of 21 tensors"),
    "missing-tensor": ("llama3", _tensors(lambda t: t.pop(NORM)), "has no model.norm.weight; 1 of 21 tensors"),
    "unknown-tensor": ("llama3", _tensors(lambda t: t.update(odd=t[NORM] + 0)), "has odd, which LlamaForCausalLM as"),
    "biases": (
        "llama-bias",
        _config(attention_bias=False, mlp_bias=False),
        "bias, which LlamaForCausalLM as config.json",
    ),
    "int8": (
        "llama3",
        _tensors(lambda t: t.update({NORM: t[NORM].to(torch.int8)})),
        "is of type I8; weights of F32, BF16",
    ),
    "float64": ("llama3", _tensors(lambda t: t.update({NORM: t[NORM].double()})), "is of type F64"),
    "missing-shard": (
        "llama3",
        _index({NORM: "model-00001-of-00002.safetensors", "x": "model.safetensors"}),
        "model-00001-of-00002.safetensors is missing, 1 of 2 files are; fetch them again",
    ),
    "index-lies": (
        "llama3",
        _index({NORM: "model.safetensors", "x": "model.safetensors"}),
        "x is not in model.safetensors",
    ),
    "index-leads-out": ("llama3", _index({NORM: "../x.safetensors"}), "which is not a file of the folder"),
    "index-empty": ("llama3", _index(None), "has no weight_map"),
    "truncated": (
        "llama3",
        _bytes(lambda b: b[:-100]),
        "is not a valid safetensors file .*ends after the end of the file",
    ),
    "empty": ("llama3", _bytes(lambda b: b""), "is not a valid safetensors file"),
    "garbage": ("llama3", _bytes(lambda b: b"\xff" * 1000), "is not a valid safetensors file"),
    "endless-header": ("llama3", _endless, "is not a valid safetensors file .*its header of 100000001 bytes"),
    "lfs": ("llama3", _bytes(lambda b: b"version https://git-lfs.github.com/spec/v1\n"), "is a pointer of Git LFS"),
}


@pytest.mark.parametrize(("good", "spoil", "message"), CASES.values(), ids=CASES)
def test_bad_folders_are_refused_in_one_line(folders, tmp_path, good, spoil, message):
    source = tmp_path / "theirs"
    shutil.copytree(folders[good], source)
    spoil(source)
    with pytest.raises(CheckpointError, match=message) as refused:
        import_folder(source, tmp_path / "ours")
    assert "\n" not in str(refused.value)
    assert str(source) in str(refused.value)
    assert {each.name for each in tmp_path.iterdir()} <= {"theirs"}


class _Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.folder,)


def _as_pickle(folders: dict[str, Path], tmp_path: Path, content: Any) -> Path:
    source = tmp_path / "theirs"
    shutil.copytree(folders["llama3"], source)
    (source / "model.safetensors").unlink()
    torch.save(content, source / "pytorch_model.bin")
    return source


def test_code_in_a_pickle_is_not_run(folders, tmp_path):
    trap = tmp_path / "trapped"
    source = _as_pickle(folders, tmp_path, {NORM: torch.ones(32), "trap": _Trap(trap)})
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin: torch cannot read it as weights alone") as refused:
        import_folder(source, tmp_path / "ours")
    assert "\n" not in str(refused.value)
    assert not trap.exists()
    torch.load(source / "pytorch_model.bin", weights_only=False)
    assert trap.exists()  # the trap works


def test_code_in_a_bare_pickle_is_not_run(folders, tmp_path):
    trap = tmp_path / "trapped"
    source = _as_pickle(folders, tmp_path, {})
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap(trap)))
    with pytest.raises(CheckpointError, match="torch cannot read it as weights alone"):
        import_folder(source, tmp_path / "ours")
    assert not trap.exists()


def test_what_other_packages_told_torch_to_trust_is_not_trusted(folders, tmp_path):
    source = _as_pickle(folders, tmp_path, {NORM: torch.ones(32), "trap": Fraction(1, 2)})
    with torch.serialization.safe_globals([Fraction]):
        torch.load(source / "pytorch_model.bin", weights_only=True)
        with pytest.raises(CheckpointError, match="torch cannot read it as weights alone"):
            import_folder(source, tmp_path / "ours")
        assert Fraction in torch.serialization.get_safe_globals()


@pytest.mark.parametrize("content", [[torch.ones(2)], {"state": {NORM: torch.ones(2)}}, {"epoch": 3}])
def test_pickles_of_something_else_are_refused(folders, tmp_path, content):
    source = _as_pickle(folders, tmp_path, content)
    with pytest.raises(CheckpointError, match="holds more than named tensors; expected the state_dict of a model"):
        import_folder(source, tmp_path / "ours")


def test_quantised_pickles_are_refused(folders, tmp_path):
    tensors = load_file(folders["llama3"] / "model.safetensors")
    tensors[NORM] = tensors[NORM].to(torch.int8)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is of type int8"):
        import_folder(_as_pickle(folders, tmp_path, tensors), tmp_path / "ours")


def test_a_folder_that_is_there_is_left_alone(folders, tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "mine").write_text("keep")
    with pytest.raises(CheckpointError, match="already exists; use a new folder"):
        import_folder(folders["llama3"], tmp_path / "ours")
    assert (tmp_path / "ours" / "mine").read_text() == "keep"


def test_a_source_that_breaks_off_while_it_is_read_leaves_nothing(folders, tmp_path):
    """A file that is cut between the look at its header and the reading of its last tensor."""
    source = tmp_path / "theirs"
    shutil.copytree(folders["llama3"], source)
    path = source / "model.safetensors"

    def cut(done: int, total: int) -> None:
        with open(path, "r+b") as file:
            file.truncate(2000)

    with pytest.raises(CheckpointError, match="ends within"):
        import_folder(source, tmp_path / "ours", progress=cut)
    assert [each.name for each in tmp_path.iterdir()] == ["theirs"]


def test_importing_safetensors_needs_no_torch(folders, tmp_path):
    code = (
        "import sys; from pathlib import Path; from megads.checkpoint.convert.huggingface.import_ import import_folder;"
        "import_folder(Path(sys.argv[1]), Path(sys.argv[2])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folders["llama3"]), str(tmp_path / "ours")], check=True)
