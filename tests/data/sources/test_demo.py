from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from megads.data.formats.token_file import IndexedDataset, open_dataset
from megads.data.sources.demo import FILES, demo_prefix, make_demo
from megads.data.tokenizers.build import load_tokenizer, vocab_size_of
from megads.errors import DataError
from tests.data.factory import make_run


def _run(cache: Path, **data: object):
    return make_run(
        data={"tokenizer_type": "HFTokenizer", "cache_dir": str(cache), "demo_vocab_size": 512, "demo_bytes": 200_000}
        | data
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    make_demo(_run(folder), lambda *step: None)
    return folder


def _copy(cache: Path, tmp_path: Path) -> Path:
    folder = demo_prefix(_run(cache)).parent
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def _forbidden(*step: object) -> None:
    raise AssertionError("the cache was not used")


def test_corpus_is_the_standard_library_and_decodes_to_it(cache):
    run = _run(cache)
    (shard,) = make_demo(run, _forbidden)
    data, tokenizer = IndexedDataset(shard.prefix), load_tokenizer(run)
    info = json.loads(Path(shard.prefix).with_name("info.json").read_text())
    assert (info["documents"], info["tokens"]) == (len(data), data.num_tokens)
    assert info["characters"] <= 200_000
    texts = {
        path.read_text("utf-8")
        for path in Path(info["source"]).rglob("*.py")
        if path.stat().st_size < 200_000 and "test" not in path.parts and "site-packages" not in path.parts
    }
    for i in range(len(data)):
        ids = data.get(i).tolist()
        assert ids[-1] == tokenizer.eod
        assert tokenizer.eod not in ids[:-1]
        assert tokenizer.decode(ids[:-1]) in texts


def test_a_corpus_for_bert_is_of_lines_in_pieces_of_words(tmp_path):
    model = {"family": "bert", "seq_length": 64, "vocab_size": 0}
    given = {"tokenizer_type": "BertWordPieceLowerCase", "demo_vocab_size": 600, "demo_bytes": 60_000}
    run = make_run(model=model, data={**given, "cache_dir": str(tmp_path)})
    (shard,) = make_demo(run, lambda *step: None)
    data, tokenizer = open_dataset(shard.prefix), load_tokenizer(run)
    assert 500 < tokenizer.vocab_size <= vocab_size_of(run) == 602
    info = json.loads(Path(shard.prefix).with_name("info.json").read_text())
    assert (info["documents"], info["tokens"]) == (data.num_documents, data.num_tokens)
    assert len(data) > 10 * data.num_documents
    unknown = tokenizer.vocab["[UNK]"]
    lines = [ids for ids in (data.get(i).tolist() for i in range(300)) if unknown not in ids]
    assert len(lines) > 200
    assert all(tokenizer.encode(tokenizer.decode(ids)) == ids for ids in lines)
    assert any(tokenizer.decode(ids).startswith("def ") for ids in lines)
    whole = make_run(data={**given, "cache_dir": str(tmp_path)})
    assert demo_prefix(run).parent != demo_prefix(whole).parent


def test_second_time_is_read_from_the_cache_at_once(cache):
    start = time.process_time()
    make_demo(_run(cache), _forbidden)
    assert time.process_time() - start < 0.2


def test_progress_goes_up_to_the_total_and_nothing_is_left_behind(tmp_path):
    steps: list[tuple[str, int, int]] = []
    (shard,) = make_demo(_run(tmp_path), lambda *step: steps.append(step))
    for what in ("reading Python's library", "training its tokenizer", "tokenizing it"):
        done = [step[1] for step in steps if step[0] == what]
        assert done == sorted(done)
        assert done[-1] == next(step[2] for step in steps if step[0] == what)
    assert [path.name for path in tmp_path.iterdir()] == [Path(shard.prefix).parent.name]


def test_made_again_it_is_the_same(cache, tmp_path):
    (shard,) = make_demo(_run(tmp_path), lambda *step: None)
    for name in FILES:
        assert Path(shard.prefix).with_name(name).read_bytes() == demo_prefix(_run(cache)).with_name(name).read_bytes()


def test_key_follows_what_decides_the_content(tmp_path):
    runs = [_run(tmp_path), _run(tmp_path, demo_vocab_size=513), _run(tmp_path, demo_bytes=199_999)]
    assert len({demo_prefix(run) for run in runs}) == 3
    assert demo_prefix(_run(tmp_path, val_split=3)) == demo_prefix(runs[0])


@pytest.mark.parametrize("name", [*FILES, "info.json"])
@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_broken_cache_is_made_again(cache, tmp_path, name, harm):
    path = _copy(cache, tmp_path) / name
    path.write_bytes(path.read_bytes()[:-9]) if harm == "cut" else path.unlink()
    make_demo(_run(tmp_path), lambda *step: None)
    assert path.read_bytes()[:50] == demo_prefix(_run(cache)).with_name(name).read_bytes()[:50]
    make_demo(_run(tmp_path), _forbidden)


def test_two_at_once_both_succeed(tmp_path):
    program = (
        "import sys; from pathlib import Path; from megads.data.sources.demo import make_demo; "
        "from megads.config.schema import RunConfig, DataConfig; "
        "data = DataConfig(cache_dir=sys.argv[1], demo_vocab_size=512, demo_bytes=200_000); "
        "make_demo(RunConfig(data=data), lambda *step: None)"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(list(tmp_path.iterdir())) == 1
    make_demo(_run(tmp_path), _forbidden)


def test_interrupted_making_leaves_nothing(tmp_path):
    def interrupt(*step: object) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        make_demo(_run(tmp_path), interrupt)
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before


def test_making_does_not_disturb_later_forks(tmp_path):
    program = (
        "import sys, os; from megads.data.sources.demo import make_demo; "
        "from megads.config.schema import RunConfig, DataConfig; "
        "data = DataConfig(cache_dir=sys.argv[1], demo_vocab_size=512, demo_bytes=200_000); "
        "make_demo(RunConfig(data=data), lambda *step: None); "
        "child = os.fork(); child or os._exit(0); os.waitpid(child, 0)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_cache_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: .*; set DATA_CACHE_PATH to a folder that can be written"):
        make_demo(_run(tmp_path / "file"), _forbidden)


@pytest.mark.parametrize("limit", [4096, 60_000])
def test_full_disk_is_one_line_and_leaves_nothing(tmp_path, limit):
    """The file size limit makes the kernel refuse the write, as a full disk does: tokenizer first, tokens later."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(DataError, match="file too large") as error:
            make_demo(_run(tmp_path), lambda *step: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_too_few_bytes(tmp_path):
    with pytest.raises(DataError, match="DEMO_BYTES=10; raise DEMO_BYTES"):
        make_demo(_run(tmp_path, demo_bytes=10), lambda *step: None)
    assert list(tmp_path.iterdir()) == []
