"""The public names: what programs may import, by module. docs/api.md lists them."""

from __future__ import annotations

from collections.abc import Mapping

PUBLIC: Mapping[str, tuple[str, ...]] = {
    "megads.errors": ("MegadsError", "ConfigError", "DataError", "CheckpointError"),
    "megads.config.sources.resolve": ("resolve", "Resolved"),
    "megads.config.derive": ("derive",),
    "megads.config.schema": ("RunConfig", "ModelConfig", "ParallelConfig"),
    "megads.config.run_folder": ("load_config", "save_config"),
    "megads.families.table": ("FAMILIES", "CLASSES", "family_of"),
    "megads.families.decoder": ("spec_of", "padded_vocab_size"),
    "megads.families.spec": ("Spec", "Stack", "Parameter"),
    "megads.comm.grid": ("Grid", "AXES"),
    "megads.data.formats.token_file": ("open_dataset", "TokenFile"),
    "megads.data.formats.writer": ("IndexedWriter",),
    "megads.checkpoint.format.folders": ("list_checkpoints",),
    "megads.checkpoint.format.manifest": ("read_manifest", "Manifest"),
    "megads.checkpoint.format.reader": ("Reader",),
    "megads.checkpoint.format.verify": ("verify",),
    "megads.monitor.columns": ("read_columns", "Column"),
    "megads.engine.base": ("Engine", "EngineState", "StepResult", "ParameterState", "MemoryUsage", "Labelled"),
    "megads.release.versions": ("VERSION", "FORMATS", "Format"),
}
"""Module -> names. docs/api.md says which version may change them."""
