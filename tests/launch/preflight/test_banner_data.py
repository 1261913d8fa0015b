"""What is said of the corpora, on few lines however many they are."""

from __future__ import annotations

import pytest

from megads.data.sources.epochs import Share, train_shares
from megads.data.sources.file_list import Shard
from megads.launch.preflight.banner_data import corpora_lines, list_notes
from tests.data.factory import make_run, write_dataset, write_list


def test_shares_and_epochs_follow_weights_and_sizes(tmp_path):
    """30 samples of 8 tokens, a weight of 3 for file a and 1 for each of b's; 80 % is trained on."""
    sizes = {"a": 50, "b0": 100, "b1": 25}
    files = {name: write_dataset(tmp_path, [size // 5] * 5, name=name) for name, size in sizes.items()}
    shards = [Shard(1, files["b0"], "b"), Shard(3, files["a"], "a"), Shard(1, files["b1"], "b"), Shard(0, "gone", "c")]
    run = make_run(train={"train_iters": 6, "global_batch": 5})
    a, b = train_shares(run, shards)
    assert (a.corpus, a.files, a.tokens, a.weight) == ("a", 1, 40, pytest.approx(0.6))
    assert a.drawn == pytest.approx(0.6 * 240)
    assert a.epochs == a.most_epochs == pytest.approx(0.6 * 240 / 40)
    assert (b.files, b.tokens) == (2, 100)
    assert b.epochs == pytest.approx(0.4 * 240 / 100)
    assert b.most_epochs == pytest.approx(0.2 * 240 / 20)
    assert list(corpora_lines([a, b])) == [
        "2 corpora of 3 files, 140 tokens to train on; 240 are drawn, 1.71 epochs",
        "a  60.0%     1 file     40 tokens      3.6 epochs",
        "b  40.0%    2 files    100 tokens     0.96 epochs",
    ]


def test_a_growing_batch_draws_less(tmp_path):
    shards = [Shard(1, write_dataset(tmp_path, [40] * 5), "a")]
    full = make_run(train={"train_iters": 6, "global_batch": 8})
    ramp = make_run(train={"train_iters": 6, "global_batch": 8, "rampup_batch_size": "4 4 16"})
    assert train_shares(full, shards)[0].drawn == 48 * 8
    assert train_shares(ramp, shards)[0].drawn == (4 * 4 + 2 * 8) * 8


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
