"""Wrong checkpoints, folders, settings and foreign files: one line that helps, exit code 2, nothing written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.disks import file_limit
from tests.e2e import wrong_checkpoints as wrong
from tests.e2e.refused import one_line, run, tree
from tests.e2e.wrong_checkpoints import (
    CKPT,
    FILE,
    Wrong,
    as_parameters,
    call,
    copy,
    edit,
    every,
    flip,
    forbid,
    into_folder,
    lay_ground,
    link_to_itself,
    move,
    put_pickle,
    refused,
    remove,
    save_torch,
    shorten,
    write,
)


@pytest.fixture(scope="session")
def ground(tmp_path_factory) -> Path:
    """A folder with everything that can be spoilt; not to be changed."""
    folder = tmp_path_factory.mktemp("ground")
    lay_ground(folder)
    return folder


@pytest.fixture
def place(ground, tmp_path) -> Path:
    """A copy of ``ground``."""
    return Path(shutil.copytree(ground, tmp_path / "place"))


MANIFEST = f"{CKPT}/manifest.json"

# A place in which there is no checkpoint, for every command that takes one.
TAKING = {
    "list": "list {}",
    "inspect": "inspect {}",
    "verify": "verify {}",
    "reshape": "reshape {} new --tp 2",
    "export-hf": "export-hf {} new --no-tokenizer",
    "export-megatron": "export-megatron {} new",
}
HALF = [move(CKPT, "empty/iter_0000030.tmp")]
NO_CHECKPOINT = [
    ("nothing", None, "nowhere", "nowhere: No such file or directory"),
    ("an empty folder", None, "empty", "empty: holds no checkpoint; pass a run, a folder of checkpoints or"),
    ("a folder of others", None, "notes", "notes: holds no checkpoint"),
    ("a file", None, "list.txt", "list.txt: "),
    ("a Hugging Face folder", None, "hf", "hf: a Hugging Face folder; `megads checkpoint import-hf "),
    ("a Megatron folder", None, "megatron", "megatron"),
    ("a loop", link_to_itself("loop"), "loop", "loop: Too many levels of symbolic links"),
    ("a blank", None, "", ""),
    ("a long name", None, "x" * 300, "File name too long"),
    ("a killed save", HALF[0], "empty", "empty: holds no checkpoint"),
]  # fmt: skip


MEGATRON = "megatron/iter_0000030/mp_rank_00/model_optim_rng.pt"
HF_BOMB = every(remove("gpt2/model.safetensors"), put_pickle("gpt2/pytorch_model.bin", with_torch=False))


# `list` shows in its table what is not whole.
@pytest.mark.parametrize(
    ("command", "spoil", "name", "told"),
    [
        pytest.param(command, *case[1:], id=f"{case[0]}-{command}")
        for command in TAKING
        for case in NO_CHECKPOINT
        if command != "list" or (case[2] != "megatron" and case[1] not in HALF)
    ],
)
def test_no_checkpoint(place, command, spoil, name, told):
    if spoil:
        spoil(place)
    refused(place, "checkpoint", *(word.format(name) for word in TAKING[command].split()), told=told)


DAMAGED = [
    ("no manifest", remove(MANIFEST), "iter_0000030: has no manifest.json; it is not a complete checkpoint"),
    ("half a manifest", shorten(MANIFEST, 9), "manifest.json: not a readable manifest"),
    ("garbage", write(MANIFEST, b"\xff\xfe\0PK"), "manifest.json: not a readable manifest"),
    ("a list", write(MANIFEST, "[]"), "manifest.json: not a readable manifest"),
    ("another object", write(MANIFEST, "{}"), "manifest.json: not a readable manifest"),
    ("a deep manifest", write(MANIFEST, "[" * 100_000), "manifest.json: not a readable manifest"),
    ("a folder as manifest", into_folder(MANIFEST), "manifest.json: not a readable manifest"),
    ("a bit of the manifest", flip(MANIFEST, 60), "manifest.json: not a readable manifest"),
    ("format 2", edit(MANIFEST, lambda all: all.update(format=2)), "format 2, this version reads 3"),
    ("format 4", edit(MANIFEST, lambda all: all.update(format=4)), "format 4, this version reads 3"),
    ("no layout", edit(MANIFEST, lambda all: all.pop("layout")), "manifest.json: not a readable manifest"),
    ("half a layout", edit(MANIFEST, lambda all: all["layout"].pop("pipe")), "manifest.json: not a readable manifest"),
    ("no file", remove(FILE), "rank-00001.safetensors: No such file or directory; the manifest says"),
    ("a short file", shorten(FILE, 1), "rank-00001.safetensors: "),
    ("an empty file", write(FILE, b""), "rank-00001.safetensors: 0 bytes, the manifest says"),
    ("a folder as file", into_folder(FILE), "rank-00001.safetensors: "),
    ("mixed steps", copy(MANIFEST.replace("30/", "20/"), MANIFEST), ""),
]  # fmt: skip


@pytest.mark.parametrize("command", [name for name in TAKING if name != "list"])
@pytest.mark.parametrize(("spoil", "told"), [case[1:] for case in DAMAGED], ids=[case[0] for case in DAMAGED])
def test_a_named_checkpoint_is_damaged(place, command, spoil, told):
    spoil(place)
    refused(place, "checkpoint", *(word.format(CKPT) for word in TAKING[command].split()), told=told)


INSIDE = [
    ("a bit of a header", flip(FILE, 20), "rank-00001.safetensors: its header changed since it was written"),
    ("the length of a header", flip(FILE, 6), "rank-00001.safetensors: its header changed since it was written"),
    ("a bit of the weights", flip(FILE, -9000), "rank-00001.safetensors: block 0 changed since it was written"),
    ("files of two steps", copy(FILE.replace("30/", "20/"), FILE), "rank-00001.safetensors: its header changed since"),
    ("files of two ranks", copy(FILE.replace("1.", "0."), FILE), "rank-00001.safetensors: "),
]


@pytest.mark.parametrize("command", ["verify", "inspect", "reshape", "export-hf", "export-megatron"])
@pytest.mark.parametrize(("spoil", "told"), [case[1:] for case in INSIDE], ids=[case[0] for case in INSIDE])
def test_numbers_that_changed(place, command, spoil, told):
    size = (place / FILE).stat().st_size
    spoil(place)
    if (place / FILE).stat().st_size == size:
        refused(place, "checkpoint", *(word.format(CKPT) for word in TAKING[command].split()), told=told)
    else:
        refused(place, "checkpoint", *(word.format(CKPT) for word in TAKING[command].split()), told="the manifest says")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        for command in TAKING
        for name in ("run", "run/checkpoints", CKPT, MANIFEST, FILE)
        if command != "list" or name in ("run", "run/checkpoints")
    ],
)
def test_what_may_not_be_read(place, command, name):
    # Once with permission, so that whatever the command imports is there.
    call(place, "checkpoint", *(word.format("run") for word in TAKING[command].replace("new", "first").split()))
    forbid(name)(place)
    given = CKPT if name in (CKPT, MANIFEST, FILE) else "run"
    code, out, err = call(place, "checkpoint", *TAKING[command].format(given).split(), by_nobody=True)
    (place / name).chmod(0o755)
    assert code == 2, f"exit code {code}: {out}{err}"
    assert (out, err.count("\n")) == ("", 1), out + err
    assert "Permission denied" in err


BOTH = every(*(shorten(f"run/checkpoints/iter_00000{n}0/rank-00000.safetensors", 1) for n in (1, 2, 3)))
CASES = [
    Wrong("all damaged: reshape", BOTH, "reshape run new --tp 2", "run/checkpoints: no checkpoint can be"),
    Wrong("all damaged: export", BOTH, "export-hf run new --no-tokenizer", "no checkpoint can be read"),
    Wrong("step: reshape", None, "reshape run new --step 11", "run: no checkpoint of iteration 11; the"),
    Wrong("step: export", None, "export-hf run new --step 11", "run: no checkpoint of iteration 11"),
    # reshape
    Wrong("no DST", None, "reshape run", "pass one CKPT and one DST"),
    Wrong("three places", None, "reshape run a b", "pass one CKPT and one DST"),
    Wrong("two sources", None, "reshape run a --load-dir b", "pass one CKPT and one DST"),
    Wrong("TP 0", None, "reshape run new --tp 0", "Invalid value for '--tp'"),
    Wrong("TP 4", None, "reshape run new --tp 4", "HEADS=2 cannot be split over TP=4 ranks; use --tp=2"),
    Wrong("PP 3", None, "reshape run new --pp 3", "PP=3 stages cannot share NLAYERS=2 layers; use --pp=2"),
    Wrong("ZeRO 4", None, "reshape run new --zero-stage 4", "Invalid value for '--zero-stage'"),
    Wrong("split", None, "reshape run new --pp 2 --pipeline-split 3,1", "PIPELINE_SPLIT=3,1 must list"),
    Wrong("model type", None, "reshape run new --model-type BERT", "--model-type BERT: the checkpoint is of a GPT"),
    Wrong("unknown option", None, "reshape run new --target-data-parallel-size 2", "No such option"),
    Wrong("same folder", None, "reshape run run/checkpoints --tp 2", "iter_0000030: a checkpoint already exists"),
    Wrong("DST a checkpoint", None, f"reshape run {CKPT} --tp 2", "iter_0000030: is a checkpoint; pass"),
    Wrong("DST a file", None, "reshape run list.txt --tp 2", "list.txt: Not a directory; use a folder that"),
    Wrong("DST below a file", None, "reshape run list.txt/new --tp 2", "list.txt/new: Not a directory; use"),
    Wrong("DST not writable", None, "reshape run /sys/new --tp 2", "use a folder that you can write"),
    Wrong("DST a loop", link_to_itself("loop"), "reshape run loop --tp 2", "loop: Too many levels"),
    # export
    Wrong("HF over a checkpoint", None, f"export-hf run {CKPT} --no-tokenizer", "iter_0000030: already exists"),
    Wrong("HF over a file", None, "export-hf run list.txt --no-tokenizer", "list.txt: already exists"),
    Wrong("HF over a folder", None, "export-hf run notes --no-tokenizer", "notes: already exists"),
    Wrong("HF to nowhere", None, "export-hf run /sys/new --no-tokenizer", "use a folder that you can write"),
    Wrong("HF in parts of nothing", None, "export-hf run new --max-shard-size many", "not a size; use e.g. 5GB"),
    Wrong("HF with no such tokenizer", None, "export-hf run new --tokenizer nowhere", "pass a tokenizer.json"),
    Wrong("HF over this folder", None, "export-hf run . --no-tokenizer", "already exists"),
    Wrong("HF over the root", None, "export-hf run / --no-tokenizer", "/: already exists; use a new folder"),
    Wrong("Megatron over this folder", None, "export-megatron run .", "already exists"),
    Wrong("Megatron over the root", None, "export-megatron run /", "/: already exists; use a new folder"),
    Wrong("Megatron over a folder", None, "export-megatron run notes", "notes: already exists"),
    Wrong("Megatron over a file", None, "export-megatron run list.txt", "list.txt: already exists"),
    Wrong("Megatron to nowhere", None, "export-megatron run /sys/new", "use a folder that you can write"),
    Wrong("Megatron TP 4", None, "export-megatron run new --tp 4", "--tp 4 does not divide the 2 key/value heads"),
    Wrong("Megatron PP 3", None, "export-megatron run new --pp 3", "--pp 3 does not divide the 2 layers"),
    # import of Hugging Face
    Wrong("import nothing", None, "import-hf nowhere new", "nowhere: no such folder"),
    Wrong("import an empty folder", None, "import-hf empty new", "empty: has no config.json"),
    Wrong("import a file", None, "import-hf list.txt new", "list.txt: is a file; pass the local folder"),
    Wrong("import a run", None, "import-hf run new", "run: has no config.json"),
    Wrong("import over a file", None, "import-hf hf list.txt", "list.txt: already exists"),
    Wrong("import to nowhere", None, "import-hf hf /sys/new", "use a folder that you can write"),
    Wrong("import over another", None, "import-hf hf gpt", "gpt: already exists"),
    Wrong("garbage config", write("hf/config.json", b"\xff{"), "import-hf hf new", "config.json: is not JSON"),
    Wrong("config a list", write("hf/config.json", "[]"), "import-hf hf new", "config.json: holds no JSON obj"),
    Wrong("deep config", write("hf/config.json", "[" * 100_000), "import-hf hf new", "config.json: is not JSON"),
    Wrong("BERT", edit("hf/config.json", lambda all: all.update(architectures=["BertLMHeadModel"])),
          "import-hf hf new", "the architecture BertLMHeadModel is not supported"),
    Wrong("odd architectures", edit("hf/config.json", lambda all: all.update(architectures=[{}])), "import-hf hf new",
          "architectures is [{}], expected a list of names"),
    Wrong("odd activation", edit("gpt2/config.json", lambda all: all.update(activation_function=["gelu"])),
          "import-hf gpt2 new", "activation_function=['gelu'] is not supported"),
    Wrong("no heads", edit("hf/config.json", lambda all: all.pop("num_attention_heads")), "import-hf hf new",
          "num_attention_heads"),
    Wrong("heads are text", edit("hf/config.json", lambda all: all.update(num_attention_heads="two")),
          "import-hf hf new", "num_attention_heads"),
    Wrong("other width", edit("hf/config.json", lambda all: all.update(hidden_size=16)), "import-hf hf new",
          "the weights belong to another model"),
    Wrong("more layers", edit("hf/config.json", lambda all: all.update(num_hidden_layers=3)),
          "import-hf hf new", "layers.2"),
    Wrong("fewer layers", edit("hf/config.json", lambda all: all.update(num_hidden_layers=1)),
          "import-hf hf new", "layers.1"),
    Wrong("a shard is missing", lambda folder: sorted((folder / "hf").glob("*.safetensors"))[0].unlink(),
          "import-hf hf new", "is missing"),
    Wrong("index a list", write("hf/model.safetensors.index.json", "[]"), "import-hf hf new", "JSON object"),
    Wrong("index to elsewhere", edit("hf/model.safetensors.index.json",
                                     lambda all: all["weight_map"].update({"x": "../../etc/passwd"})),
          "import-hf hf new", "which is not a file of the folder"),
    Wrong("a short safetensors", shorten("gpt2/model.safetensors", 1), "import-hf gpt2 new",
          "is not a valid safetensors file"),
    Wrong("an empty safetensors", write("gpt2/model.safetensors", b""), "import-hf gpt2 new",
          "is not a valid safetensors file"),
    Wrong("garbage safetensors", write("gpt2/model.safetensors", b"\x08" + 7 * b"\0" + b"[[[[[[[["),
          "import-hf gpt2 new", "is not a valid safetensors file"),
    Wrong("a pointer", write("gpt2/model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
          "import-hf gpt2 new", "is a pointer of Git LFS"),
    Wrong("HF pickle with code", every(remove("gpt2/model.safetensors"),
                                       put_pickle("gpt2/pytorch_model.bin", with_torch=True)),
          "import-hf gpt2 new", "nothing of it was run"),
    Wrong("HF old pickle with code", HF_BOMB, "import-hf gpt2 new", "nothing of it was run"),
    Wrong("HF pickle of a list", every(remove("gpt2/model.safetensors"), save_torch("gpt2/pytorch_model.bin", [1, 2])),
          "import-hf gpt2 new", "holds more than named tensors"),
    # import of Megatron
    Wrong("M nothing", None, "import-megatron nowhere new", "nowhere: does not exist; use a folder"),
    Wrong("M empty", None, "import-megatron empty new", "empty: holds no checkpoint of Megatron"),
    Wrong("M a file", None, "import-megatron list.txt new", "list.txt: is not a folder"),
    Wrong("M a run", None, "import-megatron run new", "run: holds no checkpoint of Megatron"),
    Wrong("M ours", None, f"import-megatron {CKPT} new", "iter_0000030: holds no checkpoint of Megatron"),
    Wrong("M tracker elsewhere", write("megatron/latest_checkpointed_iteration.txt", "31"),
          "import-megatron megatron new", "names '31', but"),
    Wrong("M tracker garbage", write("megatron/latest_checkpointed_iteration.txt", b"\xff\0../.."),
          "import-megatron megatron new", "latest_checkpointed_iteration.txt: names"),
    Wrong("M rank is missing", remove("megatron/iter_0000030/mp_rank_01"), "import-megatron megatron new",
          "mp_rank_01/model_optim_rng.pt is missing, of TP=2"),
    Wrong("M short", shorten("megatron/iter_0000030/mp_rank_01/model_optim_rng.pt", 2000),
          "import-megatron megatron new", "mp_rank_01/model_optim_rng.pt: "),
    Wrong("M empty file", write("megatron/iter_0000030/mp_rank_01/model_optim_rng.pt", b""),
          "import-megatron megatron new", "not a readable file of torch.save"),
    Wrong("M folder as file", into_folder("megatron/iter_0000030/mp_rank_01/model_optim_rng.pt"),
          "import-megatron megatron new", "model_optim_rng.pt: is a folder; use a file"),
    Wrong("M pickle with code", put_pickle(MEGATRON, with_torch=True),
          "import-megatron megatron new", "posix.mkdir, which does not belong in a checkpoint; nothing"),
    Wrong("M old pickle with code", put_pickle(MEGATRON, with_torch=False),
          "import-megatron megatron new", "model_optim_rng.pt: "),
    Wrong("M a list", save_torch(MEGATRON, [1, 2]),
          "import-megatron megatron new", "a checkpoint of Megatron is a dictionary"),
    Wrong("M no model", save_torch(MEGATRON, {"optimizer": 1}),
          "import-megatron megatron new", "model_optim_rng.pt: "),
    Wrong("M over a file", None, "import-megatron megatron list.txt", "Not a directory; use a folder"),
    Wrong("M over another", None, "import-megatron megatron gpt", "gpt/iter_0000000: a checkpoint already exists"),
    Wrong("M to nowhere", None, "import-megatron megatron /sys/new", "use a folder that you can write"),
]  # fmt: skip


@pytest.mark.parametrize("case", as_parameters(CASES))
def test_a_wrong_command(place, case):
    if case.spoil:
        case.spoil(place)
    refused(place, "checkpoint", *case.words.split(), told=case.told)
    assert not (place / "boom").exists()


OTHER_RUN = {**wrong.RUN, "RUN_DIR": "second"}
STARTS = [
    Wrong("other depth", None, "", "model has num_layers=2, this run asks for 4", {"NLAYERS": "4"}),
    Wrong("other width", None, "", "hidden_size=8 and head_dim=4, this run asks for 16", {"HIDDEN": "16"}),
    Wrong("other vocabulary", None, "", "vocab_size=100, this run asks for 120", {"VOCAB_SIZE": "120"}),
    Wrong("other architecture", None, "", "normalization=rmsnorm and activation=swiglu", {"NO_LLAMA": "1"}),
    Wrong("other positions", None, "", "rope_theta=50000.0, this run asks for 10000.0", {"ROPE_THETA": "10000"}),
    Wrong("all damaged", BOTH, "", "run/checkpoints: no checkpoint can be read", {}),
    Wrong("no such step", None, "", "no checkpoint of CKPT_STEP=11; there are: 10, 20 and 30", {"CKPT_STEP": "11"}),
    Wrong("step is damaged", remove(FILE), "", "rank-00001.safetensors: No such file", {"CKPT_STEP": "30"}),
    Wrong("finetune of nothing", None, "", "FINETUNE=1 needs the checkpoint whose weights it takes", {"FINETUNE": "1"}),
    Wrong("finetune of itself", None, "", "which is this run's own folder", {"FINETUNE": "1", "LOAD": "run"}),
    Wrong("load nothing", None, "", "LOAD=nowhere: not found; pass a run", {"LOAD": "nowhere", "RUN_DIR": "new"}),
    Wrong("load an empty folder", None, "", "LOAD=empty: holds no checkpoint", {"LOAD": "empty", "RUN_DIR": "new"}),
    Wrong("load a file", None, "", "LOAD=list.txt: ", {"LOAD": "list.txt", "RUN_DIR": "new"}),
    Wrong("load a loop", link_to_itself("loop"), "", "LOAD=loop: ", {"LOAD": "loop", "RUN_DIR": "new"}),
    Wrong("load Hugging Face", None, "", "LOAD=hf: a Hugging Face folder", {"LOAD": "hf", "RUN_DIR": "new"}),
    Wrong("load Megatron", None, "", "LOAD=megatron: a Megatron-LM check", {"LOAD": "megatron", "RUN_DIR": "new"}),
    Wrong("load another model", None, "", "wide/iter_0000005: the checkpoint", {"LOAD": "wide", "RUN_DIR": "new"}),
    Wrong("load a damaged one", shorten(FILE, 1), "", "the manifest says", {"LOAD": CKPT, "RUN_DIR": "new"}),
    Wrong("load without optimizer", None, "", "bare/checkpoints/iter_0000030: has no optimizer state",
          {"LOAD": "bare", "RUN_DIR": "new"}),
    Wrong("arguments of nothing", None, "", "USE_CHECKPOINT_ARGS=1 needs a checkpoint",
          {"USE_CHECKPOINT_ARGS": "1", "RUN_DIR": "new"}),
    Wrong("arguments of a damaged one", write(MANIFEST, "{}"), "", "not a readable manifest",
          {"USE_CHECKPOINT_ARGS": "1", "LOAD": CKPT, "RUN_DIR": "new"}),
    Wrong("a deep manifest", write(MANIFEST, "[" * 100_000), "", "not a readable manifest",
          {"LOAD": CKPT, "RUN_DIR": "new"}),
    Wrong("a negative step", None, "", "CKPT_STEP", {"CKPT_STEP": "-1"}),
    Wrong("steps in words", None, "", "SAVE_INTERVAL", {"SAVE_INTERVAL": "often"}),
    Wrong("schedule in words", None, "", "SCHEDULE_ON_RESUME", {"SCHEDULE_ON_RESUME": "both"}),
]  # fmt: skip


@pytest.mark.parametrize("case", as_parameters(STARTS))
def test_a_run_that_can_not_start(place, case):
    if case.spoil:
        case.spoil(place)
    refused(place, "train", "--dry-run", told=case.told, **{**wrong.RUN, **(case.env or {})})


@pytest.mark.parametrize("words", [
    "reshape run new --tp 2",
    "export-hf run new --no-tokenizer",
    "export-megatron run new",
    "import-hf hf new",
    "import-megatron megatron new",
])  # fmt: skip
@pytest.mark.parametrize("size", [0, 3000])
def test_a_full_disk(place, words, size):
    with file_limit(size):
        refused(place, "checkpoint", *words.split(), told="File too large")


# The same through processes of their own, and what only ranks can find


def test_ranks_that_read_a_damaged_checkpoint_that_was_named(megads, place):
    flip(FILE, -9000)(place)
    before = tree(place / "run/checkpoints")
    settings = {**wrong.RUN, "CKPT_STEP": "30", "DATA_CACHE_PATH": str(place / "cache")}
    done = run(replace(megads, folder=place), "train", **settings)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("megads: ")]
    assert len(lines) == 1, done.stderr
    assert "rank-00001.safetensors: block 0 changed since it was written" in lines[0]
    assert "Traceback" not in done.stderr
    assert tree(place / "run/checkpoints") == before
    assert json.loads((place / "run/outcome.json").read_text())["exit_code"] == 2


@pytest.mark.parametrize(
    ("spoil", "words", "told"),
    [
        (flip(FILE, -9000), f"verify {CKPT}", "block 0 changed since it was written"),
        (put_pickle(MEGATRON, with_torch=True), "import-megatron megatron new", "posix.mkdir"),
    ],
    ids=["verify", "Megatron pickle"],
)
def test_in_a_process_of_its_own(megads, place, spoil, words, told):
    spoil(place)
    before = tree(place)
    one_line(run(replace(megads, folder=place), "checkpoint", *words.split()), told)
    assert tree(place) == before


def test_there_are_enough():
    given = len(NO_CHECKPOINT) + len(DAMAGED) + len(INSIDE) + len(CASES) + len(STARTS)
    assert given >= 40


def test_what_is_not_spoilt_is_taken(place):
    """The same ground and the same commands, without anything wrong."""
    for name, words in TAKING.items():
        code, _, err = call(place, "checkpoint", *words.format("run").replace("new", name).split())
        assert code == 0, err
    for words in ("import-hf hf from-hf", "import-hf gpt2 from-gpt2", "import-megatron megatron from-megatron"):
        code, _, err = call(place, "checkpoint", *words.split())
        assert code == 0, err
    before = tree(place)
    for env in ({}, {"LOAD": "bare", "RUN_DIR": "second", "FINETUNE": "1"}, {"CKPT_STEP": "10"}):
        code, _, err = call(place, "train", "--dry-run", **{**wrong.RUN, **env})
        assert code == 0, err
    assert {name for name in tree(place) if "cache" not in name} == {name for name in before if "cache" not in name}
