"""What users read: no phrase that has a usual word, one helper for plurals, an index of the docs, a license."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Phrase (regular expression) -> what to write, in messages, help, docstrings, comments and pages. Only phrases that are
# never right, so that nothing needs an exception.
FORBIDDEN = {
    r"\b[Cc]an not\b": "cannot",
    r"\bfor ever\b": "forever",
    r"\banew\b": "again, new",
    r"\bin vain\b": "timed out, or drop it",
    r"\bfor want of\b": "without",
    r"\bwithout a word\b": "silently",
    r"\bbeside\b(?! /)": "next to, besides, in the background",
    r"\b(tells?|told|telling) of\b": "covers, reports, is reported",
    r"\bpassed over\b": "skipped",
    r"\bgives? way to\b": "is overridden by",
    r"\bhangs? on\b": "depends on",
    r"\b(stands?|stood) still\b": "pauses",
    r"\b(goes|went) on (from|where)\b|\bgo on from\b": "resuming from iteration 50",
    r"\b[Ss]ame command (then )?goes on\b": "rerun the same command to resume",
    r"\bthere is no such (folder|run|file|tensor|sequence|format)\b": "not found",
    r"\bis there already\b|\bthere is a \w+ already\b": "already exists",
    r"\b[Ww]hatever (the (layout|number|size|ZeRO)|its size|layout)": "for every layout",
    r"\bnew weights, seed\b": "random weights, seed",
    r"\| left \d": "ETA",
    r"of a rank read ahead": "prefetch threads per rank",
    r"waited .{1,12} for data": "data stall",
    r"nothing of it is learnt": "skipped, no update",
    r"loss (that was|is) not accepted": "rejected (loss spike)",
    r"did not come in time": "did not join before the timeout",
    r"say that they are rank|takes itself for rank": "duplicate rank 3",
    r"not looked at with": "ignored with",
    r"\bis no range of\b": "is not a range of",
    r"computes no (fp|bf)": "does not support fp16",
    r"sees a window of": "has a context of",
    r"\bwho pays\b": "account to charge",
    r"\bRanks in all\b": "total ranks",
    r"[Rr]efused, with what can": "rejected, with an alternative",
    r"\(s\)(?![\[{])": "one helper for plurals: megads.text.plural.plural",
    r"\b1 (ranks|files|hosts|threads|checkpoints|steps)\b": "megads.text.plural.plural",
    r"\b(a|per) (rank|device|host) of \d+ GiB\b": "per rank",
}
# The same for messages, help and pages: comments and docstrings still have some of these, or need them.
FORBIDDEN_FOR_USERS = {
    r"\b[Gg]ive (--\w|[A-Z]{3,}|a (folder|file|run)\b|another\b|one of them)": "pass, set, use",
    r"(?<!same )(?<!such )\bas `?'?-?-?\d+[-,:]\d+\b": "e.g. 101-200",
    r"\bgoes on\b(?! (stderr|stdout|the))": "continues, resumes",
    r"\b(is|are|was|were) told\b": "is reported",
    r"\b(is|are|was|be) left out\b": "is skipped",
    r"\bsound\b(?![)\]])": "valid",
    r"\b(that|newest|which|are|is|it) (is |are |not )?whole\b(?! numbers?)": "valid, complete",
    r"\b(becomes|became|was) visible\b": "is published",
    r"\bin another order\b": "the sample order changes",
    r"\bits like\b|\b(their|its) kin\b": "its peers, and others",
    r"\bis no (number|rank|host|folder|file|tensor|matrix|JSON|YAML|setting|path)\b": "is not a number",
    r"\bwanted \{": "expected",
    r"\b(has|holds) (no|\d+|\{[^}]*\}) numbers\b": "elements",
    r"Numbers that are none|Looking at (runs|data)|It hangs, it fails|What is where": "Inspecting, Troubleshooting",
    r"\btakes no (fp16|rows)\b|\bnobody (answers|looks|has run)\b": "does not support, no answer, not tested",
    r"\bstart(s|ed)? again\b": "restart, rerun",
    r"\bthrows away\b": "discards",
}


def _strings(path):
    """Yield line, text, and whether users read it, of strings, docstrings and comments of a module.

    The pieces of an f-string are one text, with its fields as they are written.
    """
    source = path.read_text()
    tree, inside, internal = ast.parse(source), set(), set()
    for node in ast.walk(tree):
        is_command = any("click." in ast.unparse(each) for each in getattr(node, "decorator_list", ()))
        body = getattr(node, "body", ())
        if isinstance(body, list) and not is_command:
            internal.update(id(each.value) for each in body if isinstance(each, ast.Expr))
        if isinstance(node, ast.JoinedStr):
            inside.update(id(each) for each in ast.walk(node) if each is not node)
            if id(node) not in inside:
                yield node.lineno, ast.unparse(node), True
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value, id(node) not in internal
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, False


def _texts(for_users):
    for path in sorted((ROOT / "megads").rglob("*.py")):
        for line, text, is_for_users in _strings(path):
            if is_for_users or not for_users:
                yield f"{path.relative_to(ROOT)}:{line}", " ".join(text.split())
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = str(path.relative_to(ROOT))
        yield from ((f"{name}:{number}", line) for number, line in enumerate(path.read_text().splitlines(), 1))


def _found(texts, phrases):
    together = {re.compile(phrase): better for phrase, better in phrases.items()}
    return [
        f"{where}: {match[0]!r}; write {better}"
        for where, text in texts
        for phrase, better in together.items()
        if (match := phrase.search(text))
    ]


def test_no_text_has_a_phrase_that_has_a_usual_word():
    found = _found(_texts(for_users=False), FORBIDDEN)
    assert not found, "\n".join(found)


def test_no_message_help_or_page_has_a_phrase_that_has_a_usual_word():
    found = _found(_texts(for_users=True), FORBIDDEN_FOR_USERS)
    assert not found, "\n".join(found)


def test_the_phrases_are_found(tmp_path):
    """In a message that is an f-string of two lines, in a docstring and in a comment; only the first is for users."""
    path = tmp_path / "x.py"
    path.write_text(
        'def f(x):\n    """Is in vain."""\n    # anew\n    return f"{x} can "\\\n        f"not be told of"\n'
    )
    texts = [(f"{line}", text) for line, text, _ in _strings(path)]
    assert len(_found(texts, FORBIDDEN)) == 4
    assert [text for _, text, is_for_users in _strings(path) if is_for_users] == ["f'{x} can not be told of'"]


def test_no_script_has_a_phrase_that_has_a_usual_word():
    scripts = [path for folder in (".", "ALCF", "envs", "launchers", "tests") for path in (ROOT / folder).glob("*.sh")]
    assert len(scripts) > 10
    lines = ((path, path.read_text().splitlines()) for path in scripts)
    texts = ((f"{path.relative_to(ROOT)}:{at}", line) for path, found in lines for at, line in enumerate(found, 1))
    found = _found(texts, {**FORBIDDEN, r"\b[Cc]an not\b": "cannot"})
    assert not found, "\n".join(found)


def test_every_page_is_in_the_index_and_every_link_leads_somewhere():
    index = (ROOT / "docs/README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"]({name})" not in index} == set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#: ]*)(?:#([^)]+))?\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads}, anchor


def test_the_license_is_there_and_named_alike_everywhere():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert re.search(r"^license = Apache-2.0$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert re.search(r"^license: Apache-2.0$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert "### Numbers that changed and why" in (ROOT / "CHANGELOG.md").read_text()
