"""config.json of what is asked for."""

import json
import os

import pytest

from megads.data.retro.prepare import DEFAULTS, OWN_DEFAULTS, prepare
from megads.data.retro.project import Project
from megads.errors import ConfigError, DataError
from tests.retro.corpus import make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def test_what_is_not_asked_for_is_as_before_or_the_default(tmp_path, corpus):
    asked = {
        name: value
        for name, value in corpus.options().items()
        if name not in DEFAULTS and name not in OWN_DEFAULTS and name != "split"
    }
    project = prepare(tmp_path / "p", asked | {"split": "80,20,0"})
    config = json.loads((tmp_path / "p" / "config.json").read_text())
    assert config["retro_block_size"] == config["megads"]["doc_block_size"] == 100_000
    assert config["retro_gpt_chunk_length"] == 64
    assert config["megads"] | OWN_DEFAULTS == config["megads"]
    assert (config["megads"]["eod"], config["megads"]["vocab_size"]) == (256, 257)
    assert [split for split, name in config["retro_neighbor_dirs"].items() if name is None] == ["test"]
    before = (tmp_path / "p" / "config.json").stat().st_mtime_ns
    assert prepare(tmp_path / "p", {}).config == project.config == Project.open(tmp_path / "p").config
    assert (tmp_path / "p" / "config.json").stat().st_mtime_ns == before
    again = prepare(tmp_path / "p", {"train_samples": 8, "index_str": "IVF4,Flat", "num_neighbors": 2}).config
    assert (again.train_samples, again.own["index_type"], again.own["num_neighbors"]) == (8, "faiss-par-add", 2)
    assert again.neighbor_dirs["train"] != project.config.neighbor_dirs["train"]
    assert prepare(tmp_path / "p", {"index_type": "exact"}).config.own["index_str"] == "Flat"


def test_files_below_data_have_no_links(tmp_path, corpus):
    data = tmp_path / "p" / "data" / "sub"
    data.mkdir(parents=True)
    for suffix in (".bin", ".idx"):
        (data / f"a{suffix}").write_bytes((corpus.folder / f"a{suffix}").read_bytes())
    (tmp_path / "p" / "vocab.json").write_bytes((corpus.folder / "vocab.json").read_bytes())
    project = prepare(tmp_path / "p", corpus.options(data_path="2 sub/a", vocab_file="vocab.json"))
    assert project.config.data_path == ((2.0, "sub/a"),)
    assert project.config.tokenizer.vocab_file == "vocab.json"
    assert os.listdir(data.parent) == ["sub"]


def test_a_list_of_files(tmp_path, corpus):
    (tmp_path / "list.txt").write_text(f"1 {corpus.folder / 'a'} one\n3 {corpus.folder / 'b'} two\n0 /none x\n")
    options = corpus.options(data_path=None, data_file_list=str(tmp_path / "list.txt"))
    assert prepare(tmp_path / "p", options).config.data_path == ((1.0, "one"), (3.0, "two"))
    with pytest.raises(ConfigError, match="pass only one of them"):
        prepare(tmp_path / "q", {**corpus.options(), "data_file_list": "x"})


def test_a_link_to_another_file_is_refused(tmp_path, corpus):
    prepare(tmp_path / "p", corpus.options())
    (tmp_path / "p" / "config.json").unlink()
    other = make_corpus(tmp_path / "other")
    with pytest.raises(DataError, match=r"a.bin: is not .*remove it, or use another --retro-project-dir"):
        prepare(tmp_path / "p", other.options())


def test_a_tokenizer_of_another_kind_is_refused_by_the_record(tmp_path, corpus):
    options = corpus.options(tokenizer_type="NullTokenizer", vocab_file=None, merge_file=None, vocab_size=300)
    config = prepare(tmp_path / "p", options).config
    assert (config.tokenizer.vocab_size, config.own["eod"]) == (300, 299)
    assert prepare(tmp_path / "p", {}).config == config
    with pytest.raises(ConfigError, match="needs the tokenizer"):
        prepare(tmp_path / "q", corpus.options(vocab_file=None, merge_file=None))


def test_a_model_brings_the_vocabulary_of_its_tokenizer(tmp_path, corpus):
    model = tmp_path / "bert"
    model.mkdir()
    (model / "vocab.txt").write_bytes((corpus.folder / "vocab.txt").read_bytes())
    asked = corpus.options(bert_vocab_file=None, embedder="huggingface", embedder_model=str(model))
    for content, kind in ((None, "LowerCase"), ('{"do_lower_case": false}', "Case"), ("{}", "LowerCase")):
        if content:
            (model / "tokenizer_config.json").write_text(content)
        found = prepare(tmp_path / kind / str(content)[:4], asked).config.bert_tokenizer
        assert (found.type, found.vocab_file) == (f"BertWordPiece{kind}", str(model / "vocab.txt"))
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match="pass --retro-bert-tokenizer-type"):
        prepare(tmp_path / "q", asked)


def test_a_model_without_a_kind_is_the_one_that_it_is(tmp_path, corpus):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    for name, kind in (("hf", "huggingface"), ("run", "megads")):
        config = prepare(tmp_path / f"p{name}", corpus.options(embedder_model=str(tmp_path / name))).config
        assert (config.own["embedder"], config.own["embedder_model"]) == (kind, str(tmp_path / name))
    with pytest.raises(ConfigError, match="is not read by --bert-embedder-type hashed"):
        prepare(tmp_path / "q", corpus.options(embedder="hashed", embedder_model=str(tmp_path / "hf")))
