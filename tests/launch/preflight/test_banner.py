"""The lines that say what will run."""

from __future__ import annotations

import re
from pathlib import Path

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.data.sources.epochs import Share
from megads.launch.preflight.banner import banner, corpora_lines, list_notes
from megads.launch.schedulers.allocation import Allocation
from megads.plan.memory import estimate
from tests.data.factory import make_run, write_dataset, write_list

MODEL = {"NLAYERS": "32", "HIDDEN": "64", "HEADS": "8", "SEQ": "64", "TRAIN_ITERS": "10", "DTYPE": "bf16"}


def _lines(env: dict[str, str], ranks: int, start: str = "", machine: str = "generic") -> dict[str, str]:
    resolved = resolve(env={**MODEL, **env}, machine=machine)
    run = derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=1000).run
    text = banner(run, Allocation("none", ("here",), ranks), estimate(run, ranks), 0, Path("runs/x"), start=start)
    return {line[:8].strip(): line[9:] for line in text.splitlines()}


def test_a_plain_run_has_no_line_for_what_it_does_not_use():
    lines = _lines({}, 2)
    assert lines["layout"] == "2 ranks on 1 host: TP=1 PP=1 SP=1 DP=2 ZeRO=1"
    assert lines["engine"].partition(",")[0] in ("native", "deepspeed")
    assert list(lines) == ["run", "layout", "engine", "model", "batch", "train", "data", "memory"]


def test_the_memory_has_the_error_of_published_runs_but_on_a_cpu():
    assert re.search(
        r"; on [0-9]+ published runs off by [0-9]+% on average, [0-9]+% in 95 of 100$", _lines({}, 2)["memory"]
    )
    assert "published" not in _lines({}, 2, machine="cpu")["memory"]


def test_it_says_where_the_run_starts():
    assert _lines({}, 1, "random weights, seed 7")["init"] == "random weights, seed 7"


def test_every_part_of_the_layout_has_its_line():
    env = {"PP": "4", "PIPELINE_SPLIT": "7,9,9,7", "TP": "2", "SP": "3", "SEQ": "96", "SCATTER_NORMS": "1"}
    lines = _lines({**env, "RECOMPUTE": "selective", "GRAD_ACC_STEPS": "9", "CPU_OPTIMIZER": "1"}, 24)
    assert lines["layout"] == "24 ranks on 1 host: TP=2 PP=4 SP=3 DP=1 ZeRO=1"
    idle = "1f1b: pipeline idle 25% of the step with 9 micro-batches, 28% by the work of each stage"
    assert lines["stages"] == f"PP=4: 7+9+9+7 layers; {idle}"
    assert lines["sequence"] == "SP=3: 32 tokens per rank; 1 or 2 query heads during attention"
    even = _lines({"SP": "2", "HEADS": "2", "HIDDEN": "16", "SEQ": "96"}, 2)
    assert even["sequence"] == "SP=2: 48 tokens per rank; 1 query head during attention"
    assert lines["norms"] == "scattered over TP=2, with dropout and residual"
    assert lines["again"] == "computed in the backward pass: the attention core, by torch"
    assert lines["offload"] == "optimizer to cpu"


def test_recomputed_layers():
    full = {"RECOMPUTE": "full", "RECOMPUTE_NUM_LAYERS": "4"}
    told = "computed in the backward pass: every layer, in groups of 4, by torch"
    assert _lines(full, 1)["again"] == told
    block = _lines({**full, "RECOMPUTE_METHOD": "block", "DISTRIBUTE_SAVED_ACTIVATIONS": "1", "TP": "2"}, 2)
    told = "the first 4 layers of each stage, by deepspeed; inputs are kept split over TP"
    assert block["again"] == f"computed in the backward pass: {told}"


def test_second_copies_and_weights_on_the_host():
    lines = _lines({"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2"}, 4)
    assert lines["hpZ"] == "a second copy of the weights over every 2 ranks of DP x SP"
    asked = _lines({"DS_CONFIG_OVERRIDES": '{"aio": {"block_size": 1}}'}, 1)
    assert asked["engine"] == "deepspeed, since the native engine does not do DS_CONFIG_OVERRIDES"
    assert _lines({"ENGINE": "native"}, 1)["engine"] == "native"
    assert _lines({"ZERO_STAGE": "3", "OFFLOAD_PARAMS": "cpu"}, 2)["offload"] == "weights to cpu"


def test_a_growing_batch_and_skipped_iterations_have_their_lines():
    env = {"GLOBAL_BATCH": "16", "RAMPUP_BATCH_SIZE": "4 4 60", "SKIP_TRAIN_ITERATION_RANGE": "3-5 9-99"}
    lines = _lines({**env, "TRAIN_ITERS": "20", "NUM_WORKERS": "0"}, 1)
    assert lines["ramp-up"] == "from 4 samples by 4 to 16 over 60 samples: 10 iterations"
    assert lines["train"].startswith(f"20 iterations, {(5 * 4 + 3 * 8 + 2 * 12 + 10 * 16) * 64 / 1e3:.3g}k tokens;")
    assert lines["skips"] == "iterations 3-5 9-99: the data of 15 steps is skipped"
    assert lines["data"] == "demo corpus: this Python's standard library; no prefetch threads"


def test_each_corpus_has_a_line():
    shares = [Share("a", 1, 0.6, 40.0, 144.0, 3.6), Share("b", 2, 0.4, 100.0, 96.0, 2.4)]
    assert list(corpora_lines(shares)) == [
        "2 corpora of 3 files, 140 tokens to train on; 240 are drawn, 1.71 epochs",
        "a  60.0%     1 file     40 tokens      3.6 epochs",
        "b  40.0%    2 files    100 tokens     0.96 epochs",
    ]


def test_one_corpus_is_one_line():
    share = Share("web", 1, 1.0, 2e9, 1e9, 0.5)
    assert list(corpora_lines([share])) == ["1 corpus of 1 file, 2B tokens to train on; 1B are drawn, 0.5 epochs"]


def test_many_corpora_are_cut_to_the_largest_and_the_most_read_of_the_rest_is_named():
    shares = [Share(f"c{i}", 2, (14 - i) / 105, 1e9, (14 - i) * 1e8, (14 - i) / 10) for i in range(13)]
    shares.append(Share("books", 1, 1 / 105, 2.5e6, 1e8, 40.0))
    lines = list(corpora_lines(shares))
    assert len(lines) == 9
    assert lines[-1] == "7 more: 26.7%, up to 40 epochs (books)"
    assert "<-" not in "".join(lines)


def test_what_is_read_often_is_marked():
    shares = [Share("web", 3, 0.9, 1e9, 9e8, 30.0), Share("books", 1, 0.1, 1e7, 1e8, 10.0)]
    lines = list(corpora_lines(shares))
    assert lines[0].endswith(", 0.99 epochs, one file 30")
    assert lines[2].endswith("10 epochs  <- read often")
    assert not lines[1].endswith("often")


def test_files_listed_twice_and_held_out_files_that_are_trained_on_are_told(tmp_path):
    a, _ = (write_dataset(tmp_path, [3], name=name) for name in "ab")
    for suffix in (".bin", ".idx"):
        (tmp_path / f"link{suffix}").symlink_to(f"a{suffix}")
    train = write_list(tmp_path / "train", "1 a x", "1 link y", "0 b x")
    valid = write_list(tmp_path / "valid", "1 b x", "1 link x")
    assert list(list_notes(make_run(data={"file_list": str(train), "valid_file_list": str(valid)}))) == [
        f"1 training file is listed more than once, as {tmp_path}/link: each time with its own share of the samples",
        f"VALID_DATA_FILE_LIST={valid}: 1 of its files is trained on, too, as {tmp_path}/link; "
        "its loss says little there",
    ]
    assert not list(list_notes(make_run(data={"path": a, "test_file_list": str(write_list(tmp_path / "t", "1 b"))})))
    assert not list(list_notes(make_run()))
