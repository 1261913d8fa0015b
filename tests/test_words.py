"""What users read: no phrase that has a usual word, one helper for plurals, an index of the docs, a license."""

import ast
import re
from pathlib import Path

import pytest

from megads.words import plural

ROOT = Path(__file__).parents[1]

# Phrase (regular expression) -> what to write. Only phrases that are never right, so that nothing needs an exception.
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
# The same for pages that are written by hand: phrases that messages still have.
FORBIDDEN_IN_PAGES = {
    r"\b[Cc]an not\b": "cannot",
    r"\bbeside\b": "besides, in the background",
    r"[Ww]hatever the (layout|number)": "for every layout",
    r"\b(tells?|told) of\b": "covers, is reported",
    r"\b(is|are|was|were) told with\b": "is reported with",
    r"\b[Ss]ame command (then )?goes on\b": "rerun the same command to resume",
    r"goes on where": "rerun the same command to resume",
    r"\bpassed over\b": "skipped",
    r"\bgives way to\b": "is overridden by",
    r"\b[Gg]ive --\w": "pass --walltime",
    r"(?<!same )\bas `?-?-?\d+-\d+\b": "e.g. 101-200",
    r"\bstands? still\b": "pauses",
    r"\bhangs? on\b": "depends on",
    r"\b(that|newest|which|are|is) (is |are |not )?whole\b(?! numbers?)": "valid, complete",
    r"\b(becomes|became|was) visible\b": "is published",
    r"\bin another order\b": "the sample order changes",
    r"[Rr]efused, with what can": "rejected, with an alternative",
    r"\bits like\b|\b(their|its) kin\b": "its peers, and others",
    r"Numbers that are none|Looking at (runs|data)|It hangs, it fails|What is where": "Inspecting, Troubleshooting",
}
GENERATED = {"docs/settings.md", "docs/megatron-options.md"}


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
        yield from ((f"{name}:{number}", line) for number, line in enumerate(path.read_text().splitlines(), 1))


def _found(texts, phrases):
    return [
        f"{where}: {match[0]!r}; write {better}"
        for where, text in texts
        for phrase, better in phrases.items()
        if (match := re.search(phrase, text))
    ]


def test_no_message_help_or_page_has_a_phrase_that_has_a_usual_word():
    found = _found(_texts(), FORBIDDEN)
    assert not found, "\n".join(found)


def test_no_page_has_a_phrase_that_has_a_usual_word():
    by_hand = (each for each in _texts() if each[0].startswith(("README.md:", "docs/")))
    found = _found((each for each in by_hand if each[0].split(":")[0] not in GENERATED), FORBIDDEN_IN_PAGES)
    assert not found, "\n".join(found)


def test_no_script_has_a_phrase_that_has_a_usual_word():
    scripts = [path for folder in (".", "ALCF", "envs", "launchers", "tests") for path in (ROOT / folder).glob("*.sh")]
    assert len(scripts) > 10
    lines = ((path, path.read_text().splitlines()) for path in scripts)
    texts = ((f"{path.relative_to(ROOT)}:{at}", line) for path, found in lines for at, line in enumerate(found, 1))
    found = _found(texts, {**FORBIDDEN, r"\b[Cc]an not\b": "cannot"})
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
