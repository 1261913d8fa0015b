"""Whether a run may use a checkpoint whose conventions differ from its own. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.function.record import record_of
from megads.config.rules.allowed_changes import allowed
from megads.config.schema import RunConfig
from megads.config.tree import env_name
from megads.errors import CheckpointError
from megads.families.conventions import Change, changes_between, conventions_of


def check_conventions(
    path: Path, manifest: Manifest, run: RunConfig, *, continues: bool, skipped: Iterable[str] = ()
) -> list[str]:
    """Compare the conventions of a checkpoint with those of a derived ``run``; return lines about allowed changes.

    Args:
        continues: whether the run takes the checkpoint's progress, and so how it trains as well.
        skipped: keys that are compared elsewhere.

    Raises:
        CheckpointError: a convention differs, and nobody asked for that.
    """
    record = record_of(manifest)
    if record is None:
        return []
    found = [
        each
        for each in changes_between(record.conventions, conventions_of(run))
        if each.convention.key not in set(skipped) and (continues or not each.convention.is_of_run)
    ]
    asked = allowed(run)
    if unasked := [each for each in found if each.convention.key not in asked]:
        raise CheckpointError(f"{path}: {refusal(unasked[0], manifest, len(unasked) - 1)}")
    return [f"convention {_text(each)}: changed by ALLOW_CHANGES" for each in found]


def refusal(change: Change, manifest: Manifest, more: int = 0) -> str:
    """Return why a change is refused: what it was, what it is, what changes it back, and what allows it."""
    convention = change.convention
    if convention.setting:
        name = env_name(convention.setting)
        back = f"set {name}={_given(change.was)} to resume as before"
    else:
        version = manifest.about.get("megads", "the version that wrote it")
        back = f"no setting decides that: use megads {version}"
    others = f" ({more} more differ)" if more else ""
    allow = ""
    if convention.keeps_shapes:
        allow = f", or ALLOW_CHANGES={convention.key} if the change is wanted"
    return f"the function of the model would change: {_text(change)}{others}; {back}{allow}"


def _text(change: Change) -> str:
    convention = change.convention
    name = env_name(convention.setting) if convention.setting else convention.key
    return f"{convention.text} ({name}) was {_given(change.was)}, is {_given(change.now)}"


def _given(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
