"""Every file of JSON or YAML is read by megads.storage.reading; other parsers are named here, with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

MEGADS = Path(__file__).parents[2] / "megads"

PARSERS = {("json", "load"), ("json", "loads"), ("orjson", "loads"), ("yaml", "load"), ("yaml", "safe_load")}
PARSERS |= {("yaml", "unsafe_load"), ("yaml", "full_load"), ("yaml", "load_all"), ("yaml", "safe_load_all")}

REASONS = {
    "storage/reading.py": "it is the reader",
    "data/preprocess/input/json_lines.py": "lines of the input, each of a bounded length; the speed of preprocessing",
    "data/corpus/duplicates/records.py": "lines that the corpus frame has read and checked",
    "data/corpus/duplicates/remove.py": "lines that the corpus frame has read and checked, and groups, by orjson",
    "data/corpus/contamination/decontaminate.py": "lines that the corpus frame has read and checked, and our own",
    "data/corpus/frame/step.py": "lines of a corpus, each of a bounded length; the speed of the corpus tools",
    "data/tokenizers/train.py": "lines of the input, and what the tokenizers library says of itself",
    "data/tokenizers/types/files.py": "a tokenizer of many MB, read with a bound; orjson bounds its depth",
    "data/tokenizers/export_word_pieces.py": "what the tokenizers library has just written",
    "data/tokenizers/encoders/libraries.py": "what the tokenizers library says of itself",
    "monitor/rows.py": "lines of numbers, parsed by orjson, which has a bound of its own for depth",
    "comm/messages.py": "messages of our own ranks",
    "comm/devices.py": "messages of our own ranks",
    "doctor/ranks/protocol.py": "messages of our own ranks",
    "train/fault/hang_report.py": "messages of our own ranks",
    "launch/staging/agent.py": "a program of its own; messages of a bounded length, and its own files",
    "launch/user_ranks/meeting.py": "messages of our own launcher, of a bounded length",
    "doctor/launcher/gradients.py": "a setting that was parsed before",
}


def _parsing(path: Path) -> list[int]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in PARSERS:
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in ("json", "orjson", "yaml"):
            found += [node.lineno for name in node.names if (node.module, name.name) in PARSERS]
    return found


def test_nobody_else_reads_json_or_yaml():
    others = {
        f"megads/{name}:{line}"
        for path in MEGADS.rglob("*.py")
        if (name := path.relative_to(MEGADS).as_posix()) not in REASONS
        for line in _parsing(path)
    }
    assert not others, "use megads.storage.reading, or name the reason here"


def test_the_list_of_reasons_has_nobody_who_does_not_parse():
    assert not [name for name in REASONS if not _parsing(MEGADS / name)]


def test_the_hunt_finds_what_it_hunts(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("import json\nfrom yaml import safe_load\njson.loads('1')\nread = json.load\n")
    assert sorted(_parsing(path)) == [2, 3, 4]
