"""The command lines that are printed in Megatron's, DeepSpeed's and Hugging Face's documentation do what they say."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from megads.data.formats.token_file import open_dataset
from tests.data.factory import numbers
from tests.data.preprocess.conftest import golden, texts, write_jsonl

GPT2 = """
python tools/preprocess_data.py \\
    --input my-corpus.json \\
    --output-prefix my-gpt2 \\
    --vocab gpt2-vocab.json \\
    --dataset-impl mmap \\
    --tokenizer-type GPT2BPETokenizer \\
    --merge-file gpt2-merges.txt \\
    --append-eod \\
    --workers 8
"""
QUICK = GPT2.replace("my-corpus.json", "oscar-1GB.jsonl")
GPT2_NVIDIA = """
python tools/preprocess_data.py
--input my-corpus.json \\
--output-prefix my-gpt2 \\
--vocab-file gpt2-vocab.json \\
--tokenizer-type GPT2BPETokenizer \\
--merge-file gpt2-merges.txt \\
"""
BERT = """
python tools/preprocess_data.py
--input my-corpus.json
--output-prefix my-bert
--vocab-file bert-vocab.txt
--tokenizer-type BertWordPieceLowerCase
"""
T5 = BERT.replace("my-bert", "my-t5")
CODEPARROT = """
python tools/ \\
       --input codeparrot_data.json \\
       --output-prefix codeparrot \\
       --vocab vocab.json \\
       --dataset-impl mmap \\
       --tokenizer-type GPT2BPETokenizer \\
       --merge-file merges.txt \\
       --json-keys content \\
       --workers 32 \\
       --chunk-size 25 \\
"""
PRETRAINED = (
    "python tools/preprocess_data.py --input ~/c4_en_train.jsonl --output-prefix c4_en_train --dataset-impl mmap "
    "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path t5-small --workers 30 --append-eod"
)


@pytest.fixture
def run(megads, tokenizer):
    """Call a printed line, with our command in the place of the script, in a folder that has its files."""
    from tokenizers import Tokenizer

    inner = Tokenizer.from_file(str(tokenizer))
    for prefix in ("gpt2-", ""):
        model = json.loads(tokenizer.read_text())["model"]
        (megads.folder / f"{prefix}vocab.json").write_text(json.dumps(model["vocab"]))
        merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
        (megads.folder / f"{prefix}merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "qui", "##ck", "fox", "def", "f", "(", "x", ")", ":"]
    (megads.folder / "bert-vocab.txt").write_text("\n".join(words) + "\n")
    (megads.folder / "t5-small").mkdir()
    inner.save(str(megads.folder / "t5-small" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (megads.folder / "t5-small" / "tokenizer_config.json").write_text(json.dumps(config))
    values = texts(60)
    for name in ("my-corpus.json", "oscar-1GB.jsonl", "c4_en_train.jsonl"):
        write_jsonl(megads.folder / name, values)
    write_jsonl(megads.folder / "codeparrot_data.json", values, key="content")

    def call(line: str):
        line = line.replace("\\\n", " ").replace("\n", " ").replace("\\", " ")
        _, script, *rest = shlex.split(line)
        assert script.startswith("tools/")
        megads.made(*rest, "--encoder", "auto", env={"HOME": str(megads.folder)})
        assert megads.hidden() == []
        return values

    return call


@pytest.mark.parametrize(
    ("line", "name", "eod"),
    [
        (GPT2, "my-gpt2_text_document", True),
        (QUICK, "my-gpt2_text_document", True),
        (GPT2_NVIDIA, "my-gpt2_text_document", False),
        (CODEPARROT, "codeparrot_content_document", False),
        (PRETRAINED, "c4_en_train_text_document", True),
    ],
    ids=["000 GPT", "000 quick", "001 GPT", "003", "000 PretrainedFromHF"],
)
def test_gpt(megads, tokenizer, run, line, name, eod):
    values = run(line)
    tokens, lengths, documents = golden(tokenizer, values, eod=eod)
    assert megads.files()[f"{name}.bin"] == tokens
    found = open_dataset(megads.folder / name)
    assert numbers(found.length_row) == lengths
    assert numbers(found.document_row) == documents


@pytest.mark.parametrize(("line", "name"), [(BERT, "my-bert_text_document"), (T5, "my-t5_text_document")])
def test_bert_and_t5(megads, run, line, name):
    """The lines lack --split-sentences, so that documents are whole, whatever the text around them says."""
    from tokenizers import BertWordPieceTokenizer

    values = run(line)
    inner = BertWordPieceTokenizer(str(megads.folder / "bert-vocab.txt"), lowercase=True)
    ids = [token for value in values for token in inner.encode(value, add_special_tokens=False).ids]
    assert np.frombuffer(megads.files()[f"{name}.bin"], "<u2").tolist() == ids
