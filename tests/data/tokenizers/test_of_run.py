from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megads.config.derive import derive, padded_vocab_size
from megads.config.sources.resolve import resolve
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer, vocab_size
from megads.data.tokenizers.of_run import load_tokenizer, vocab_size_of
from megads.data.tokenizers.train import train_bpe
from megads.errors import ConfigError, DataError
from tests.data.factory import make_run, write_list


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    train_bpe(["def f(x): return x\n"] * 20, 300).save(str(path / "tokenizer.json"))
    return path


def _run(path: object, **data: object):
    return make_run(
        model={"vocab_size": 0}, data={"tokenizer_type": "HFTokenizer", "tokenizer_model": str(path)} | data
    )


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_file_or_folder(folder, name):
    tokenizer = load_tokenizer(_run(folder / name))
    text = "def g(y): return 'caf\u00e9 \u2713'\n\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eod == 0
    assert tokenizer.vocab_size == vocab_size_of(_run(folder)) == tokenizer.inner.get_vocab_size()
    assert tokenizer.encode("<|endoftext|>") == [0]


def test_added_tokens_beyond_the_base_vocabulary_count(folder, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text())
    base = len(content["model"]["vocab"])
    content["added_tokens"].append({**content["added_tokens"][0], "id": base, "content": "<|extra|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert vocab_size_of(_run(tmp_path)) == base + 1
    assert load_tokenizer(_run(tmp_path)).inner.get_vocab_size() == base + 1


@pytest.mark.parametrize("token", ["def", {"content": "def"}])
def test_eos_of_the_folders_config_comes_first(folder, tmp_path, token):
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    assert load_tokenizer(_run(tmp_path)).eod == content["model"]["vocab"]["def"]


def test_limits_saved_in_the_file_are_not_applied(folder, tmp_path):
    whole = load_tokenizer(_run(folder))
    limited = load_tokenizer(_run(folder)).inner
    limited.enable_truncation(3)
    limited.enable_padding(length=50)
    limited.save(str(tmp_path / "tokenizer.json"))
    text = "def f(x): return x"
    assert load_tokenizer(_run(tmp_path)).encode(text) == whole.encode(text)


def test_unigram_vocabulary_is_a_list(tmp_path):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = load_tokenizer(_run(tmp_path))
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.encode("a")) == (3, 1, [2])


def test_names_are_never_downloaded():
    with pytest.raises(
        DataError, match=r"google/gemma-7B: no such file or folder; nothing is downloaded, .*hf download"
    ):
        vocab_size_of(_run("google/gemma-7B"))


def test_broken_tokenizers(folder, tmp_path):
    with pytest.raises(DataError, match=r"the folder has no tokenizer.json"):
        vocab_size_of(_run(tmp_path))
    path = tmp_path / "tokenizer.json"
    for content, expected in [
        ("{", "is not JSON"),
        ("[]", "expected a JSON object"),
        ('{"model": {}}', "holds no vocabulary"),
        ('{"model": {"vocab": {}}}', "holds no vocabulary"),
    ]:
        path.write_text(content)
        with pytest.raises(DataError, match=expected):
            vocab_size_of(_run(path))
    path.write_text('{"model": {"type": "Nonsense", "vocab": {"a": 0}}}')
    with pytest.raises(DataError, match="cannot read it") as error:
        load_tokenizer(_run(path))
    assert "\n" not in str(error.value)
    path.write_text(json.dumps({"version": "1.0", "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}}))
    with pytest.raises(ConfigError, match=r"has none of <\|endoftext\|>, </s>.*set eos_token"):
        _ = load_tokenizer(_run(path)).eod


def test_null_tokenizer_ends_documents_with_its_last_id():
    tokenizer = load_tokenizer(make_run())
    assert (tokenizer.vocab_size, tokenizer.eod) == (100, 99), "Megatron's --vocab-size 99"
    assert tokenizer.encode("3 1 99") == [3, 1, 99]
    assert tokenizer.decode([3, 1]) == "3 1"
    with pytest.raises(DataError, match=r"ids must be 0..99, got 3..100"):
        tokenizer.encode("3 100")
    with pytest.raises(DataError, match="'x' is not a row of token ids"):
        tokenizer.encode("x")
    with pytest.raises(ConfigError, match="set VOCAB_SIZE"):
        vocab_size_of(make_run(model={"vocab_size": 0}))


def test_own_data_needs_its_own_tokenizer(tmp_path):
    path = write_list(tmp_path / "l.txt", "1 a")
    with pytest.raises(ConfigError, match=r"DATA_FILE_LIST=.*l\.txt is given without a tokenizer; set TOKENIZER_MODEL"):
        vocab_size_of(_run("", file_list=str(path)))
    with pytest.raises(DataError, match=r"^DATA_FILE_LIST /nope: no such file"):
        vocab_size_of(_run("", file_list="/nope"))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"vocab_file": "vocab.json", "merge_file": "merges.txt"}, "GPT2BPETokenizer"),
        ({"merge_file": "m"}, "GPT2BPETokenizer"),
        ({"vocab_file": "vocab.txt"}, "BertWordPieceLowerCase or BertWordPieceCase"),
    ],
)
def test_the_type_that_reads_the_files_is_named(files, named):
    with pytest.raises(ConfigError, match=rf"or set TOKENIZER_TYPE \(--tokenizer-type\) to {named}$"):
        vocab_size_of(make_run(data={"tokenizer_type": "HFTokenizer", "path": "somewhere", **files}))
    with pytest.raises(ConfigError, match=rf"to {named}$"):
        make_tokenizer(TokenizerSpec("NullTokenizer", vocab_size=9, **files))


def test_no_tokenizer_at_all():
    with pytest.raises(ConfigError, match=r"^no tokenizer is set; set TOKENIZER_MODEL \(--tokenizer-model\) to a"):
        make_tokenizer(TokenizerSpec("HFTokenizer"))


@pytest.mark.parametrize("ask", [make_tokenizer, vocab_size])
def test_the_name_of_a_word_piece_model_is_not_downloaded(ask):
    with pytest.raises(ConfigError, match=r"=bert-base-uncased: no such file; .* reads a vocab\.txt, and nothing is"):
        ask(TokenizerSpec("BertWordPieceLowerCase", "bert-base-uncased"))


def test_demo_vocabulary_is_known_before_it_is_made(tmp_path):
    run = _run("", cache_dir=str(tmp_path), demo_vocab_size=700)
    assert vocab_size_of(run) == 700
    with pytest.raises(DataError, match="the demo corpus is missing"):
        load_tokenizer(run)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["vocab.json", "merges.txt"], "TOKENIZER_TYPE=GPT2BPETokenizer"),
        (["tokenizer.model"], "TOKENIZER_TYPE=Llama2Tokenizer or GPTSentencePieceTokenizer"),
        (["vocab.txt"], "TOKENIZER_TYPE=BertWordPieceCase"),
        ([], "transformers writes one"),
    ],
)
def test_folders_of_slow_tokenizers_are_told_what_works(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=rf"has no tokenizer.json; .*{expected}"):
        vocab_size_of(_run(tmp_path))


def test_tokens_with_a_meaning(folder, tmp_path):
    tokenizer = load_tokenizer(_run(folder))
    assert (tokenizer.specials.eos, tokenizer.specials.bos, tokenizer.specials.extra) == (0, None, ())
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "def", "bos_token": {"content": "f"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "x", "eos_token": None}))
    found = load_tokenizer(_run(tmp_path)).specials
    vocab = content["model"]["vocab"]
    assert (found.pad, found.bos, found.eos) == (vocab["x"], vocab["f"], 0), "tokenizer_config.json comes first"


def test_the_padded_vocabulary_does_not_depend_on_the_layout():
    """Megatron rounds 50257 up to 50304, 50432, 50688 with TP=1, 2, 4; a checkpoint is then bound to its TP."""
    padded = []
    for tensor in (1, 2, 4):
        env = {"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "50257", "TP": str(tensor), "GLOBAL_BATCH": "8"}
        run = derive(resolve(env=env, machine="cpu"), num_hosts=1, ranks_per_host=4, vocab_size=0).run
        padded.append(padded_vocab_size(run.model))
        assert padded[-1] % tensor == 0
    assert padded == [50_304] * 3


def test_a_large_vocabulary_is_measured_in_a_moment(tmp_path):
    """128,000 tokens and as many merges, as Llama 3: no library is loaded for it."""
    size = 128_000
    vocab = {f"token{number}": number for number in range(size)}
    merges = [[f"tok{number}", f"en{number}"] for number in range(2 * size)]
    added = [{"id": size + 255, "content": "<|end|>"}]
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    began = time.process_time()
    assert vocab_size_of(_run(path)) == size + 256
    assert time.process_time() - began < 0.5


def test_measuring_loads_no_library(folder):
    lines = [
        "import sys",
        "from megads.config.schema import RunConfig",
        "from megads.data.tokenizers.encoders import fastest as fast",
        "from megads.data.tokenizers import of_data as match",
        "from megads.data.tokenizers.of_run import vocab_size_of",
        f"vocab_size_of(RunConfig.model_validate({{'data': {{'tokenizer_model': {str(folder)!r}}}}}))",
        "heavy = ('torch', 'tokenizers', 'transformers', 'sentencepiece', 'fastokens', 'kitoken')",
        "print([name for name in heavy if name in sys.modules])",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"vocab_file": "v"}, "VOCAB_FILE=v is not read by TOKENIZER_TYPE=HFTokenizer; leave it unset, or set TOKEN"),
        ({"merge_file": "m"}, "MERGE_FILE=m is not read by TOKENIZER_TYPE=HFTokenizer"),
        ({"vocab_file": "v", "tokenizer_model": ""}, "VOCAB_FILE=v is not read by TOKENIZER_TYPE=HFTokenizer"),
        ({"vocab_file": "v", "tokenizer_type": "GPT2BPETokenizer"}, "VOCAB_FILE=v and TOKENIZER_MODEL="),
        ({"merge_file": "m", "tokenizer_type": "BertWordPieceCase"}, "MERGE_FILE=m is not read by TOKENIZER_TYPE=Bert"),
        ({"tokenizer_type": "NullTokenizer"}, "is not read by TOKENIZER_TYPE=NullTokenizer"),
    ],
)
def test_a_file_that_the_type_does_not_read_is_refused(folder, data, told):
    run = _run(**{"path": folder, **data} if "tokenizer_model" not in data else {"path": "", **data})
    for ask in (vocab_size_of, load_tokenizer) if run.data.tokenizer_model else (vocab_size_of,):
        with pytest.raises(ConfigError) as error:
            ask(run)
        assert told in str(error.value)
