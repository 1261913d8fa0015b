"""From a description or a run to its tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from megads.config.derive import derive, padded_vocab_size
from megads.config.sources.resolve import resolve
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import FAMILIES, identity, load_tokenizer, make_tokenizer, vocab_size, vocab_size_of
from megads.errors import ConfigError, DataError
from tests.data.factory import make_run, write_list
from tests.data.tokenizers.conftest import run_with


def test_every_type_can_be_made(specs):
    made = {spec.type: make_tokenizer(spec) for spec in specs.values()}
    assert set(made) == set(FAMILIES)
    assert all(make_tokenizer(spec).fingerprint == identity(spec) for spec in specs.values())
    with pytest.raises(ConfigError, match=r"tokenizer type 'Tik': unknown; known types: HFTokenizer"):
        make_tokenizer(TokenizerSpec("Tik"))


def test_half_a_pair_of_surrogates_is_no_text(specs):
    for name in ("gpt2", "llama3-json", "gpt-sp"):
        with pytest.raises((UnicodeEncodeError, TypeError, RuntimeError)):
            make_tokenizer(specs[name]).encode("a\ud800b")


def test_own_data_needs_its_own_tokenizer(tmp_path):
    path = write_list(tmp_path / "l.txt", "1 a")
    with pytest.raises(ConfigError, match=r"DATA_FILE_LIST=.*l\.txt is given without a tokenizer; set TOKENIZER_MODEL"):
        vocab_size_of(run_with("", file_list=str(path)))
    with pytest.raises(DataError, match=r"^DATA_FILE_LIST /nope: no such file"):
        vocab_size_of(run_with("", file_list="/nope"))


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
    run = run_with("", cache_dir=str(tmp_path), demo_vocab_size=700)
    assert vocab_size_of(run) == 700
    with pytest.raises(DataError, match="the demo corpus is missing"):
        load_tokenizer(run)


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
    times = []
    for _ in range(3):
        began = time.process_time()
        assert vocab_size_of(run_with(path)) == size + 256
        times.append(time.process_time() - began)
    assert min(times) < 0.5


def test_measuring_loads_no_library(folder):
    lines = [
        "import sys",
        "from megads.config.schema import RunConfig",
        "from megads.data.tokenizers.encoders import fastest",
        "from megads.data.tokenizers import record_check",
        "from megads.data.tokenizers.build import vocab_size_of",
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
    run = run_with(**{"path": folder, **data} if "tokenizer_model" not in data else {"path": "", **data})
    for ask in (vocab_size_of, load_tokenizer) if run.data.tokenizer_model else (vocab_size_of,):
        with pytest.raises(ConfigError) as error:
            ask(run)
        assert told in str(error.value)
