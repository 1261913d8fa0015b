"""docs/migrating.md against the tables of options, settings and commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megads.config.sources.env_names import PROGRAM_NAMES, setting_names
from megads.config.sources.flags import flags
from megads.config.sources.other_options import OPTIONS
from tests.release.commands import options_of_commands, parse

PAGE = Path(__file__).parents[2] / "docs/migrating.md"
NONE = ("no counterpart", "rejected")


def rows(text):
    """Return left and right cells of the hand-written tables, and the heading each is below."""
    found, heading = [], ""
    for line in text.partition("## Variables of other toolkits")[0].splitlines():
        heading = line[3:] if line.startswith("## ") else heading
        cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else []
        if len(cells) == 2 and cells[0].strip() not in ("there", "---"):
            found.append((heading, *(cell.strip() for cell in cells)))
    return found


def problems(text):
    """Yield what does not hold: an option that is unknown, a name that is no setting, a command that is none."""
    for heading, there, here in rows(text):
        if heading in ("From Megatron-LM", "From Megatron-DeepSpeed"):
            yield from _options(there, any(word in here for word in NONE))
        for code in re.findall(r"`([^`]*)`", here):
            if name := re.fullmatch(r"([A-Z][A-Z0-9_]+)(?:=\S*)?", code):
                yield from () if name[1] in {*setting_names(), *PROGRAM_NAMES} else (f"{name[1]} is not a setting",)
            elif code.startswith("megads "):
                yield from (f"`{code}`: {wrong}" for wrong in parse(code.split()[1:], whole=False))


def _options(there, has_none):
    rejected = {name for name, option in OPTIONS.items() if option.is_rejected}
    accepted = ({*flags(), *OPTIONS} - rejected) | options_of_commands()
    for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", there):
        if has_none and name in accepted:
            yield f"{name} is accepted, and its row says that it has no counterpart"
        elif not has_none and name not in accepted:
            known = "rejected, and its row does not say so" if name in rejected else "accepted by no command"
            yield f"{name} is {known}"


def test_everything_that_the_page_names_exists():
    text = PAGE.read_text()
    assert len(rows(text)) > 80
    assert {heading for heading, _, _ in rows(text)} == {
        f"From {name}" for name in ("Megatron-LM", "Megatron-DeepSpeed", "ezpz", "torchtitan")
    }
    found = list(problems(text))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| `--micro-batch-sise M` | `MICRO_BATCH` |", "--micro-batch-sise is accepted by no command"),
        ("| `--fp8-format hybrid` | `DTYPE=bf16` |", "--fp8-format is rejected, and its row does not say so"),
        ("| `--bf16` | no counterpart |", "--bf16 is accepted, and its row says that it has no counterpart"),
        ("| `--bf16` | `DTYPES=bf16` |", "DTYPES is not a setting"),
        ("| x | `megads reshard` |", "`megads reshard`: no command 'reshard'"),
        ("| x | `megads train --sumbit` |", "`megads train --sumbit`: No such option"),
    ],
)
def test_what_does_not_exist_is_found(row, problem):
    (found,) = problems(f"## From Megatron-LM\n\n{row}\n")
    assert found.startswith(problem)
