"""Wrong inputs and options: each is one line that says what was given and what would work, and nothing is made."""

from __future__ import annotations

import gzip

import pytest

PACKED = gzip.compress(b'{"text": "a"}\n' * 1000)
FILES = {
    "a.jsonl": b'{"text": "a"}\n{"text": "b"}\n',
    "bad.jsonl": b'{"text": "a"}\n{"text": \n',
    "list.jsonl": b"[1]\n",
    "body.jsonl": b'{"body": "a", "id": 1}\n',
    "number.jsonl": b'{"text": 5}\n',
    "latin.jsonl": b'{"text": "\xe9"}\n',
    "broken.gz": PACKED[:20] + b"????" + PACKED[24:],
    "short.gz": PACKED[:-9],
    "table.parquet": b"PAR1....",
    "wide.txt": b"\xff\xfea\0",
    "pack.zip": b"PK\x03\x04....",
    "other/a.jsonl": b"{}\n",
    "empty/x": b"",
}
CALLS = {
    "no file": (["clean", "no.jsonl", "out"], "--input no.jsonl: no such file or directory"),
    "a folder": (["clean", "empty", "out"], "--input empty: is a folder; pass its files, as in 'empty/*.jsonl'"),
    "no match": (["merge", "no*.jsonl", "out"], "--input no*.jsonl: no file fits this pattern"),
    "stdin twice": (["merge", "-", "-", "out"], "--input -: stdin is listed twice"),
    "not JSON": (["merge", "bad.jsonl", "out"], "bad.jsonl:2: is not JSON (expecting value"),
    "no object": (["shuffle", "list.jsonl", "out"], "list.jsonl:1: is a list, not a JSON object"),
    "no key": (["clean", "body.jsonl", "out"], "body.jsonl:1: has no key 'text'; it has 'body', 'id'"),
    "other key": (["stats", "a.jsonl", "--json-key", "body"], "a.jsonl:1: has no key 'body'; it has 'text'"),
    "no text": (["clean", "number.jsonl", "out"], "number.jsonl:1: 'text' is a number; expected a text"),
    "not UTF-8": (["clean", "latin.jsonl", "out"], "latin.jsonl:1: is not UTF-8 (byte 10 of the line is 0xe9)"),
    "bad lines": (["merge", "bad.jsonl", "list.jsonl", "out", "--max-bad-lines", 1], "2 bad lines, --max-bad-lines"),
    "broken": (["merge", "broken.gz", "out"], "broken.gz: broken gzip data ("),
    "cut short": (["merge", "short.gz", "out"], "short.gz: is truncated: its gzip data is incomplete"),
    "parquet": (["clean", "table.parquet", "out"], "--input table.parquet: is a parquet file; expected JSON lines"),
    "UTF-16": (["urls", "wide.txt", "out"], "--input wide.txt: is UTF-16 text"),
    "zip": (["stats", "pack.zip"], "--input pack.zip: is a zip archive"),
    "exists": (["merge", "a.jsonl", "bad.jsonl"], "bad.jsonl: already exists; use another --output, or --overwrite"),
    "dropped exists": (["clean", "a.jsonl", "out", "--dropped", "bad.jsonl"], "bad.jsonl: already exists; use another"),
    "itself": (["merge", "a.jsonl", "a.jsonl", "--overwrite"], "--output a.jsonl: is an input as well"),
    "dropped is input": (["clean", "a.jsonl", "out", "--dropped", "./a.jsonl"], "--dropped ./a.jsonl: is an input"),
    "one name": (["clean", "a.jsonl", "out", "--dropped", "out"], "--dropped out: is the name of another output"),
    "below a file": (["merge", "a.jsonl", "bad.jsonl/out"], "bad.jsonl/out: cannot be written: "),
    "output is a folder": (["merge", "a.jsonl", "empty"], "--output 'empty': is a folder; pass a file name"),
    "stdout": (["merge", "a.jsonl", "-"], "--output -: stdout cannot be resumed; pass a file name"),
    "packed output": (["merge", "a.jsonl", "out.gz"], "--output out.gz: the output is plain text; use the name out,"),
    "device": (["merge", "a.jsonl", "/dev/null"], "--output /dev/null: exists and is not a regular file"),
    "no output": (["merge", "a.jsonl"], "the input is missing; usage: megads corpus merge INPUT... OUTPUT"),
    "nothing": (["clean"], "the input is missing; usage: megads corpus clean INPUT... OUTPUT"),
    "output missing": (["clean", "--input", "a.jsonl"], "the output is missing; usage: megads corpus clean"),
    "no word": (["stats"], "the input is missing; usage: megads corpus stats INPUT..."),
    "option": (["clean", "a.jsonl", "out", "--fast"], "No such option '--fast'"),
    "command": (["cleen", "a.jsonl", "out"], "no command 'cleen'; did you mean clean?"),
    "nan": (["clean", "a.jsonl", "out", "--min-chars", "nan"], "Invalid value for '--min-chars': 'nan' is not a valid"),
    "negative": (["clean", "a.jsonl", "out", "--min-chars", -1], "Invalid value for '--min-chars': -1 is not in the"),
    "task": (["clean", "a.jsonl", "out", "--tasks", "remove_600"], "--tasks remove_600: unknown; some of remove_512 "),
    "language": (["clean", "a.jsonl", "out", "--languages", "en", "english"], "--languages english: is not a known"),
    "tokens": (["clean", "a.jsonl", "out", "--min-tokens", 5], "--min-tokens needs a tokenizer: pass --tokenizer-"),
    "tasks and tokens": (
        ["clean", "a.jsonl", "out", "--min-tokens", 5, "--tasks", "remove_512"],
        "--min-tokens, --min-chars and tokenizers are ignored with --tasks",
    ),
    "tokenizer": (["clean", "a.jsonl", "out", "--tokenizer-name-or-path", "no.json"], "TOKENIZER_MODEL no.json: "),
    "type": (["stats", "a.jsonl", "--tokenizer-type", "GPT"], "Invalid value for '--tokenizer-type': 'GPT' is not one"),
    "path is a file": (
        ["clean", "a.jsonl", "--output-path", "bad.jsonl", "--tasks", "remove_512"],
        "--output-path bad",
    ),
    "one stem": (
        ["clean", "--input-files", "a.jsonl", "other/a.jsonl", "--output-path", "new", "--tasks", "remove_512"],
        "--input-files: a.jsonl and other/a.jsonl would both become a_cleaned.jsonl; rename one",
    ),
    "path and dropped": (
        ["clean", "a.jsonl", "--output-path", "new", "--dropped", "x", "--tasks", "remove_512"],
        "--output and --dropped are ignored with --output-path",
    ),
    "path without tasks": (["clean", "a.jsonl", "--output-path", "new"], "--tasks: names no task; some of remove_512"),
    "no prefix": (["add-id", "a.jsonl", "out"], "Missing option '--id-prefix'"),
    "no id key": (["add-id", "a.jsonl", "out", "--id-prefix", "p", "--id-key", ""], "--id-key: is empty"),
    "no .json": (["merge", "empty", "out"], "empty: has no file that ends with .json or .jsonl"),
    "no .txt": (["urls", "empty", "out"], "empty: has no file that ends with .txt"),
    "seed": (["shuffle", "a.jsonl", "out", "--seed", -1], "Invalid value for '--seed': -1 is not in the range"),
    "memory": (["shuffle", "a.jsonl", "out", "--memory-mb", 0], "Invalid value for '--memory-mb': 0 is not in the"),
    "workers": (["merge", "a.jsonl", "out", "--workers", 0], "Invalid value for '--workers' / '--num-threads': 0 is"),
    "many workers": (["merge", "a.jsonl", "out", "--workers", 99999], "--workers 99999: at most "),
}


@pytest.mark.parametrize("case", CALLS)
def test_one_line(megads, case):
    for name, content in FILES.items():
        path = megads.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    words, told = CALLS[case]
    before = sorted(path.name for path in megads.folder.rglob("*"))
    done = megads(*words)
    assert done.code == 2, done.err
    assert done.error.startswith(f"megads: {told}"), done.err
    assert done.out == ""
    assert sorted(path.name for path in megads.folder.rglob("*")) == before


RANKS = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add-id", "a", "out", "--id-prefix", "p"], "add-id numbers documents in one process, not in 2 ranks"),
        (["stats", "a"], "stats on several ranks needs --output FILE"),
        (["merge", "-", "out"], "--input -: a pipe cannot be read by 2 processes; use one, or files"),
    ],
)
def test_several_ranks(megads, words, told):
    (megads.folder / "a").write_bytes(b"{}\n")
    done = megads(*words, env=RANKS)
    assert done.code == 2, done.err
    assert done.error.startswith(f"megads: {told}"), done.err
    assert megads.names() == ["a"]
