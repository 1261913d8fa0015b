"""What users read: no phrase that has a usual word, one helper for plurals, an index of the docs, a license."""

import ast
import re
from pathlib import Path

import pytest

from megads.words import plural

ROOT = Path(__file__).parents[1]

# Phrase (regular expression) -> what to write. The first part of the language rules that hold everywhere.
FORBIDDEN = {
    r"\bfor ever\b": "forever",
    r"\banew\b": "again, new",
    r"\bin vain\b": "(drop it)",
    r"\bfor want of\b": "without",
    r"\bwithout a word\b": "silently",
    r"goes on from (its|iteration)": "resuming from iteration 50",
    r"\bnew weights, seed\b": "random weights, seed",
    r"\| left \d": "ETA",
    r"of a rank read ahead": "prefetch threads per rank",
    r"waited .{1,12} for data": "data stall",
    r"nothing of it is learnt": "skipped, no update",
    r"loss (that was|is) not accepted": "rejected (loss spike)",
    r"\bpassed over by\b": "skipped by",
    r"did not come in time": "did not join before the timeout",
    r"say that they are rank": "duplicate rank 3",
    r"\bis there already\b": "already exists",
    r"there is no such (folder|run|file)": "not found",
    r"not looked at with": "ignored with",
    r"\bis no range of\b": "is not a range of",
    r"computes no (fp|bf)": "does not support fp16",
    r"sees a window of": "has a context of",
    r"\bwho pays\b": "account to charge",
    r"\bRanks in all\b": "total ranks",
    r"\bstood still\b": "paused",
    r"\(s\)": "one helper for plurals: megads.words.plural",
    r"\b1 (ranks|files|hosts|threads|checkpoints|steps)\b": "megads.words.plural",
    r"\b(a|per) (rank|device|host) of \d+ GiB\b": "per rank",
}
# Pages whose text others are rewriting; each entry goes with its page.
LATER = {"docs/clusters.md", "docs/data.md", "docs/hangs.md", "docs/checkpoints.md", "docs/parallelism.md"}


def _strings(path):
    """Yield line and text of the strings of a module but for docstrings; those of commands are help."""
    tree, hidden = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        is_command = any("click." in ast.unparse(each) for each in getattr(node, "decorator_list", ()))
        for each in (
            getattr(node, "body", ()) if not is_command and not isinstance(node, ast.Lambda | ast.IfExp) else ()
        ):
            if isinstance(each, ast.Expr):
                hidden.add(id(each.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value


def _texts():
    for path in sorted((ROOT / "megads").rglob("*.py")):
        for line, text in _strings(path):
            yield f"{path.relative_to(ROOT)}:{line}", text
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = str(path.relative_to(ROOT))
        if name not in LATER:
            yield from ((f"{name}:{number}", line) for number, line in enumerate(path.read_text().splitlines(), 1))


def test_no_message_help_or_page_has_a_phrase_that_has_a_usual_word():
    found = [
        f"{where}: {match[0]!r}; write {better}"
        for where, text in _texts()
        for phrase, better in FORBIDDEN.items()
        if (match := re.search(phrase, text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("count", "noun", "spec", "text"),
    [
        (1, "rank", "", "1 rank"),
        (0, "rank", "", "0 ranks"),
        (2, "file", "", "2 files"),
        (12345, "document", ",", "12,345 documents"),
        (1, "corpus", "", "1 corpus"),
        (2, "corpus", "", "2 corpora"),
    ],
)
def test_one_and_many(count, noun, spec, text):
    assert plural(count, noun, spec) == text


def test_every_page_is_in_the_index_and_every_link_leads_somewhere():
    index = (ROOT / "docs/README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"]({name})" not in index} == set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_license_is_there_and_named_alike_everywhere():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert re.search(r"^license = Apache-2.0$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert re.search(r"^license: Apache-2.0$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert "### Numbers that changed and why" in (ROOT / "CHANGELOG.md").read_text()
