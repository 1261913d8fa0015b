"""A model that is loaded or exported computes what its run did, or nothing is generated and nothing appears."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megads.errors import CheckpointError
from tests.parity.layouts import Layout, train_on
from tests.ranks import run_ranks
from tests.train.test_function import ONE, RESTARTS, _save, _training


def _checkpoint(folder: Path, kind: str = "gqa", **more: str) -> Any:
    """Return the weights of a run's checkpoint."""
    from megads.inference.load import CheckpointWeights

    training = _training(Layout(kind, more={**ONE, **more}).on("native"), folder)
    train_on(training.engine, training.run, training.groups, range(6), lambda step: 3e-3)
    _save(training)
    return CheckpointWeights(folder)


def _loaded(weights: Any, dtype: str) -> str:
    import torch

    from megads.inference.load import DTYPES, load_model
    from megads.inference.replay import check_loaded
    from megads.inference.runner import Runner
    from megads.inference.streamed import ALONE

    module = load_model(weights, ALONE, torch.device("cpu"), DTYPES[dtype])
    return check_loaded(weights, Runner(module, ALONE, context=64, num_slots=1), dtype)


def _loads(folder: Path) -> None:
    weights = _checkpoint(folder)
    assert "as when it was saved" in _loaded(weights, "fp32")
    assert "as when it was saved" in _loaded(weights, "bf16")
    with pytest.MonkeyPatch.context() as planted:
        from megads.models.rope import frequencies

        planted.setattr("megads.models.gpt.frequencies", lambda model: frequencies(model).flip(0))
        with pytest.raises(CheckpointError, match=r"computes another function: .*set REPLAY_ROWS=0 to use the model"):
            _loaded(weights, "fp32")
    with pytest.MonkeyPatch.context() as planted:
        from megads.families import conventions

        changed = lambda run, tokenizer="": {**real(run), "rope_pairs": "i with i + 1"}  # noqa: E731
        real = conventions.conventions_of
        planted.setattr("megads.checkpoint.function.compare.conventions_of", changed)
        with pytest.raises(CheckpointError, match=r"\(rope_pairs\) was i with i \+ HEAD_DIM/2, is i with i \+ 1"):
            _loaded(weights, "fp32")


def test_what_is_loaded_for_use_computes_what_the_run_did(tmp_path):
    run_ranks(1, _loads, tmp_path)


def _exports(folder: Path) -> None:
    from megads.checkpoint.convert.huggingface import export as huggingface
    from megads.checkpoint.convert.megatron.export import export_megatron
    from megads.checkpoint.convert.megatron.target import Target
    from megads.checkpoint.format.reader import Reader
    from megads.inference.replay import check_files

    source = _checkpoint(folder / "run").path
    with Reader(source) as reader:
        check = partial(check_files, source, reader.manifest)
        said: list[str] = []

        def export(name: str, dtype: str = "fp32") -> None:
            huggingface.export(reader, folder / name, dtype=dtype, check=lambda *given: said.append(check(*given)))

        export("whole")
        export("rounded", "bf16")
        target = Target(tensor=2)
        export_megatron(reader, folder / "megatron", target, check=lambda part: said.append(check("fp32", part)))
        assert all("as when it was saved" in line for line in said)
        assert len(said) == 3
        with pytest.MonkeyPatch.context() as planted:
            planted.setattr(huggingface, "_bands", partial(_permuted, huggingface._bands))
            with pytest.raises(CheckpointError, match=r"another function: .*; nothing was written"):
                export("permuted")
        with pytest.MonkeyPatch.context() as planted:
            planted.setattr(huggingface, "config_of", partial(_other_base, huggingface.config_of))
            with pytest.raises(CheckpointError, match=r"\(rope_theta\) is 50000\.0, the files say 10000\.0; nothing"):
                export("config")
    assert sorted(each.name for each in folder.iterdir()) == ["megatron", "rounded", "run", "whole"]


def _permuted(bands: Any, reader: Any, tensor: Any, dtype: str) -> Any:
    """Give the rows of queries as a converter does that takes pairs of neighbours for halves."""
    for band in bands(reader, tensor, dtype):
        is_query = "q_proj" in tensor.name
        halves = band.reshape(-1, 2, 2, band.size // tensor.rows)  # heads of four channels
        yield halves.swapaxes(1, 2).reshape(band.shape) if is_query else band


def _other_base(config_of: Any, *given: Any) -> dict[str, Any]:
    found = dict(config_of(*given))
    return {**found, "rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}


def test_an_export_that_computes_another_function_does_not_appear(tmp_path):
    """The published accident: exports whose queries were permuted for another pairing scored 0.26 in place of 0.38."""
    run_ranks(1, _exports, tmp_path)


def _imports(folder: Path) -> None:
    """A run that loads what was imported computes what the files did, also with changed code."""
    from megads.checkpoint.convert.huggingface.export import export
    from megads.checkpoint.convert.huggingface.import_ import import_folder
    from megads.checkpoint.format.reader import Reader
    from megads.checkpoint.function.record import record_of
    from megads.inference.load import CheckpointWeights
    from megads.inference.replay import describe_files
    from megads.models.rope import frequencies
    from megads.train.resume import resume

    with Reader(_checkpoint(folder / "run").path) as reader:
        export(reader, folder / "hf")
    made = import_folder(
        folder / "hf", folder / "in", vocab_multiple=8, function=partial(describe_files, folder / "hf")
    )
    weights = CheckpointWeights(made.path)
    record = record_of(weights.manifest)
    assert record is not None
    assert record.is_replayable
    assert "dtype" not in record.conventions
    assert "to the bit" in _loaded(weights, "fp32")
    layout = Layout("gqa", more={**ONE, "checkpoint.load": str(folder / "in")}).on("native")
    resume(_training(layout, folder / "new"))
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr("megads.models.gpt.frequencies", lambda model: frequencies(model).flip(0))
        training = _training(layout, folder / "other")
        with pytest.raises(CheckpointError, match="computes another function"):
            resume(training)


def test_what_is_imported_is_compared_when_it_is_loaded(tmp_path):
    run_ranks(1, _imports, tmp_path)


def _with_documents(folder: Path) -> None:
    """Rows in which documents start over are compared in training alone; those of one document here, too."""
    from megads.checkpoint.function.record import record_of
    from megads.inference.replay import _readable

    weights = _checkpoint(folder, "llama", **RESTARTS)
    record = record_of(weights.manifest)
    assert record is not None
    assert record.batch is not None
    found, why_not = _readable(record, 100)
    whole = [row for row in record.batch.rows if record.batch.end not in row[:-1]]
    assert (found.batch.rows if found and found.batch else ()) == tuple(whole)
    assert bool(why_not) is not bool(whole)
    assert "not replayed" in _loaded(weights, "fp32") or whole


def test_rows_of_several_documents_are_left_to_training(tmp_path):
    run_ranks(1, _with_documents, tmp_path)
