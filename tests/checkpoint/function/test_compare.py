"""A run that would compute another function is refused, by the convention's name."""

from __future__ import annotations

import pytest

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.function.compare import check_conventions
from megads.checkpoint.function.record import KEY, Record
from megads.checkpoint.resume.start_point import check_start
from megads.errors import CheckpointError
from megads.families.conventions import conventions_of
from tests.checkpoint.faked import derived, fake


def _saved(folder, env=None, **changed):
    run = derived(env or {})
    record = Record({**conventions_of(run), **changed})
    return fake(folder, 5, run, about={"megads": "0.9", KEY: record.dump()})


def _check(path, *, continues=True, **env):
    return check_conventions(path, read_manifest(path), derived(env), continues=continues)


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"RESET_ATTENTION_MASK": "1"}, "attention stays inside a document (RESET_ATTENTION_MASK) was 0, is 1; set "),
        ({"RESET_POSITION_IDS": "1"}, "(RESET_POSITION_IDS) was 0, is 1; set RESET_POSITION_IDS=0 to resume as before"),
        ({"DTYPE": "fp32"}, "dtype of weights and activations (DTYPE) was bf16, is fp32; set DTYPE=bf16 to resume"),
        ({"ROPE_THETA": "1e4"}, "base of the rotary frequencies (ROPE_THETA) was 50000.0, is 10000.0; set ROPE_THETA="),
        ({"DTYPE": "fp32", "EOD_MASK_LOSS": "1", "NORM_EPSILON": "1e-6"}, "was 1e-05, is 1e-06 (2 more differ); "),
    ],
)
def test_a_setting_that_changes_the_function_is_named_with_both_values(tmp_path, env, told):
    path = _saved(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        _check(path, **env)
    assert str(caught.value).startswith(f"{path}: the function of the model would change: ")
    assert told in str(caught.value)


def test_a_choice_of_the_code_is_named_with_the_version_that_made_it(tmp_path):
    path = _saved(tmp_path, rope_pairs="i with i + 1")
    told = (
        r"channels of a head that rotate together \(rope_pairs\) was i with i \+ 1, is i with i \+ HEAD_DIM/2; no "
        r"setting decides that: use megads 0\.9, or ALLOW_CHANGES=rope_pairs if the change is wanted$"
    )
    with pytest.raises(CheckpointError, match=told):
        _check(path)


def test_what_is_asked_for_is_a_note(tmp_path):
    path = _saved(tmp_path)
    assert _check(path, DTYPE="fp32", ALLOW_CHANGES="DTYPE") == [
        "convention dtype of weights and activations (DTYPE) was bf16, is fp32: changed by ALLOW_CHANGES"
    ]
    with pytest.raises(CheckpointError, match="RESET_ATTENTION_MASK"):
        _check(path, DTYPE="fp32", RESET_ATTENTION_MASK="1", ALLOW_CHANGES="dtype")
    allowed = "dtype, reset_attention_mask"
    assert len(_check(path, DTYPE="fp32", RESET_ATTENTION_MASK="1", ALLOW_CHANGES=allowed)) == 2


def test_how_a_run_trains_may_differ_in_another_run_and_what_weights_mean_may_not(tmp_path):
    path = _saved(tmp_path)
    assert _check(path, continues=False, DTYPE="fp32", RESET_ATTENTION_MASK="1") == []
    with pytest.raises(CheckpointError, match="NORM_EPSILON"):
        _check(path, continues=False, NORM_EPSILON="1e-6")


def test_a_checkpoint_without_a_record_is_taken(tmp_path):
    path = fake(tmp_path, 5)
    assert _check(path, DTYPE="fp32", ROPE_THETA="1e4") == []


def test_the_launcher_refuses_before_ranks_start(tmp_path):
    _saved(tmp_path)
    check_start(derived(), tmp_path)
    with pytest.raises(CheckpointError, match="RESET_POSITION_IDS"):
        check_start(derived(RESET_POSITION_IDS="1"), tmp_path)
    check_start(derived(RESET_POSITION_IDS="1", ALLOW_CHANGES="reset_position_ids"), tmp_path)
    with pytest.raises(CheckpointError, match="ALLOW_CHANGES=rope_theta changes it with the weights as they are"):
        check_start(derived(ROPE_THETA="1e4"), tmp_path)
    check_start(derived(ROPE_THETA="1e4", ALLOW_CHANGES="ROPE_THETA"), tmp_path)
    with pytest.raises(CheckpointError, match=r"another RUN_NAME or RUN_DIR starts a new run$"):
        check_start(derived(NLAYERS="3"), tmp_path)
    run = derived(LOAD=str(tmp_path), FINETUNE="1", RESET_POSITION_IDS="1", DTYPE="fp32")
    check_start(run, tmp_path / "new")
