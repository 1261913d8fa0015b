"""Refuses weights that were trained with another tokenizer than the run's: equal sizes say nothing."""

from __future__ import annotations

from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.resume.compatibility import run_of
from megads.config.schema import RunConfig
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import identity, spec_of
from megads.errors import ConfigError, MegadsError
from megads.launch.preflight.checkpoint_start import StartPoint


def check_tokenizer(run: RunConfig, begins: StartPoint | None) -> None:
    """Compare the tokenizer of the checkpoint with the run's, by content where both are there, else by type.

    With ``FORCE=1``, and where one of them is NullTokenizer, whose ids are what the data says, nothing is compared.

    Raises:
        ConfigError: they differ.
    """
    if begins is None or run.train.force:
        return
    before, now = _spec(begins.found.manifest), spec_of(run)
    if before is None or before == now or "NullTokenizer" in (before.type, now.type):
        return
    identities = (_identity(before), _identity(now))
    same = identities[0] == identities[1] if all(identities) else before.type == now.type
    if not same:
        raise ConfigError(
            f"{begins.found.path} was trained with {_name(before)}, this run uses {_name(now)}: the ids have "
            "other meanings; set the checkpoint's TOKENIZER_TYPE and its files, or FORCE=1 to use the weights anyway"
        )


def _spec(manifest: Manifest) -> TokenizerSpec | None:
    """Return the tokenizer that the checkpoint names, None where it names none."""
    about = manifest.about
    if "tokenizer_type" in about:
        return TokenizerSpec(
            str(about["tokenizer_type"]), str(about.get("tokenizer_model", "")), str(about.get("vocab_file", ""))
        )
    before = run_of(manifest.settings)
    try:
        return spec_of(before) if before else None
    except MegadsError:
        return None


def _identity(spec: TokenizerSpec) -> str:
    """Return the fingerprint of a tokenizer, "" where its files are not there any more or not yet."""
    try:
        return identity(spec)
    except MegadsError:
        return ""


def _name(spec: TokenizerSpec) -> str:
    return f"{spec.type} {spec.model or spec.vocab_file}".rstrip()
