"""Which checkpoint a run starts from, and what it takes of it."""

import pytest

from megads.checkpoint.format.manifest import MANIFEST
from megads.checkpoint.resume.start_point import RestorePlan, check_start, find_start, goes_back_to
from megads.errors import CheckpointError
from tests.checkpoint.faked import derived, fake


@pytest.fixture
def own(tmp_path):
    return tmp_path / "r/checkpoints"


@pytest.fixture
def other(tmp_path):
    """Return a run of the checkpoints 50 and 100."""
    for iteration in (50, 100):
        fake(tmp_path / "other/checkpoints", iteration)
    return tmp_path / "other"


def steps(start):
    return [int(path.name[5:]) for path in start.paths]


def taken(own, **settings):
    start, found, what = check_start(derived(settings), own)
    return int(found.path.name[5:]), start.is_own, what


ALL = RestorePlan(progress=True, optimizer=True)
WEIGHTS = RestorePlan(progress=False, optimizer=False)


def test_nothing_is_a_new_run(own):
    assert find_start(derived(), own) is None
    assert check_start(derived(), own) is None
    # Scripts of Megatron-LM name their own folder at every start, also the first.
    for load in (own, own.parent):
        assert find_start(derived(LOAD=str(load), CKPT_DIR=str(own)), own) is None


def test_the_newest_of_its_own(own):
    fake(own, 9)
    fake(own, 10)
    assert taken(own) == (10, True, ALL)
    assert taken(own, LOAD=str(own.parent)) == (10, True, ALL)
    assert steps(find_start(derived(), own)) == [9, 10]


@pytest.mark.parametrize("where", ["", "checkpoints", "checkpoints/iter_0000100"])
def test_load_is_a_run_a_folder_or_a_checkpoint(own, other, where):
    assert taken(own, LOAD=str(other / where)) == (100, False, ALL)
    start = find_start(derived(LOAD=str(other / where)), own)
    assert start.is_only == (where == "checkpoints/iter_0000100")


def test_load_is_how_a_run_begins_and_its_own_checkpoints_how_it_goes_on(own, other):
    begin = {"LOAD": str(other), "NO_LOAD_OPTIM": "1", "CKPT_STEP": "50"}
    assert taken(own, **begin) == (50, False, RestorePlan(progress=True, optimizer=False))
    fake(own, 60)
    fake(own, 70)
    assert taken(own, **begin) == (70, True, ALL)
    # A folder that is gone meanwhile is not missed.
    assert taken(own, LOAD="/nowhere") == (70, True, ALL)


def test_fine_tuning_takes_weights_and_goes_on_when_submitted_again(own, other):
    settings = {"LOAD": str(other), "FINETUNE": "1"}
    assert taken(own, **settings) == (100, False, WEIGHTS)
    fake(own, 5, derived(settings))
    assert taken(own, **settings) == (5, True, ALL)


def test_fine_tuning_does_not_go_on_with_another_run_in_its_folder(own, other):
    fake(own, 5)
    with pytest.raises(CheckpointError, match="did not start with FINETUNE=1; drop it to resume that run"):
        check_start(derived(LOAD=str(other), FINETUNE="1"), own)


def test_a_step_of_its_own_is_exactly_that(own):
    for iteration in (5, 10, 15):
        fake(own, iteration)
    assert taken(own, CKPT_STEP="10") == (10, True, ALL)
    start = find_start(derived(CKPT_STEP="10"), own)
    assert start.is_only
    # One of its own checkpoints as LOAD says the same.
    assert find_start(derived(LOAD=str(own / "iter_0000010")), own) == start
    with pytest.raises(CheckpointError, match="no checkpoint of CKPT_STEP=7; there are: 5, 10 and 15"):
        find_start(derived(CKPT_STEP="7"), own)
    (own / "iter_0000010" / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"iter_0000010/manifest.json: not a readable manifest"):
        check_start(derived(CKPT_STEP="10"), own)


def test_which_of_its_own_checkpoints_a_run_goes_back_to(own, other):
    one = str(own / "iter_0000010")
    assert goes_back_to(derived(CKPT_STEP="5"), own) == 5
    assert goes_back_to(derived(LOAD=one), own) == 10
    assert goes_back_to(derived(LOAD=one, CKPT_STEP="5"), own) == 5
    assert goes_back_to(derived(LOAD=str(own.parent), CKPT_STEP="5"), own) == 5
    for settings in ({}, {"LOAD": str(own)}, {"LOAD": str(other), "CKPT_STEP": "50"}):
        assert goes_back_to(derived(settings), own) == 0


def test_without_state_to_go_on_from_somebody_must_say_so(own):
    fake(own, 10, kinds=("weight",))
    with pytest.raises(CheckpointError, match=r"NO_SAVE_OPTIM=1; set NO_LOAD_OPTIM=1 to resume without$"):
        check_start(derived(), own)
    assert taken(own, NO_LOAD_OPTIM="1")[2] == RestorePlan(progress=True, optimizer=False)
    elsewhere = own.parents[1] / "new"
    with pytest.raises(CheckpointError, match=r"or FINETUNE=1 to start at iteration 0 with its weights$"):
        check_start(derived(LOAD=str(own)), elsewhere)
    assert taken(elsewhere, LOAD=str(own), FINETUNE="1") == (10, False, WEIGHTS)


def test_what_was_imported_never_had_an_optimizer(own, tmp_path):
    fake(tmp_path / "imported", 0, kinds=("weight",), settings={}, progress={})
    expected = (0, False, RestorePlan(progress=True, optimizer=False, imported=True))
    assert taken(own, LOAD=str(tmp_path / "imported")) == expected
    assert expected[2].text() == "imported weights"  # not "weights and position": there is none


def test_the_newest_that_is_whole_and_an_error_when_there_is_none(own):
    fake(own, 5)
    broken = fake(own, 10)
    (broken / MANIFEST).unlink()
    assert taken(own)[0] == 5
    (own / "iter_0000005" / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read .*has no manifest.json"):
        check_start(derived(), own)


def test_words_for_what_is_taken():
    assert ALL.text() == "weights, optimizer and position"
    assert WEIGHTS.text() == "weights, not optimizer or position"
    partly = RestorePlan(progress=True, optimizer=False)
    assert partly.text() == "weights and position, not optimizer"


FOREIGN = {
    "config.json model.safetensors": "a Hugging Face folder; `megads checkpoint import-hf {} DST` makes",
    "config.json pytorch_model.bin": "a Hugging Face folder; `megads checkpoint import-hf {} DST` makes",
    "config.json model-00001-of-00002.safetensors": "a Hugging Face folder; ",
    "latest_checkpointed_iteration.txt iter_0000050/mp_rank_00/model_optim_rng.pt": (
        "a Megatron-LM checkpoint; `megads checkpoint import-megatron {} DST` makes"
    ),
    "release/mp_rank_00/model_optim_rng.pt": "a Megatron-LM checkpoint; `megads checkpoint import-megatron {} DST`",
    "mp_rank_00_000/model_optim_rng.pt": "a Megatron-LM checkpoint; ",
    "latest global_step50/layer_01-model_00-model_states.pt": (
        "a Megatron-DeepSpeed folder; `megads checkpoint import-megatron {} DST` makes"
    ),
    "global_step50/mp_rank_00_model_states.pt": "a Megatron-DeepSpeed folder; ",
    "iter_0000050/.metadata iter_0000050/__0_0.distcp": "a torch.distributed checkpoint; convert it",
}


@pytest.mark.parametrize("files", FOREIGN)
def test_folders_of_others_are_named_with_how_to_import_them(own, tmp_path, files):
    folder = tmp_path / "theirs"
    for name in files.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with pytest.raises(CheckpointError) as caught:
        find_start(derived(LOAD=str(folder)), own)
    assert f"LOAD={folder}: {FOREIGN[files].format(folder)}" in str(caught.value)


def test_a_run_is_not_started_over_checkpoints_of_megatron(own):
    (own / "iter_0000050/mp_rank_00").mkdir(parents=True)
    (own / "iter_0000050/mp_rank_00/model_optim_rng.pt").touch()
    with pytest.raises(CheckpointError, match=r"a Megatron-LM checkpoint; .* use another CKPT_DIR and LOAD=DST"):
        find_start(derived(), own)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"LOAD": "{other}/no"}, "LOAD={other}/no: not found; pass a run, "),
        ({"LOAD": "{empty}"}, "LOAD={empty}: holds no checkpoint; pass a run, a folder of checkpoints ("),
        ({"LOAD": "{other}", "CKPT_STEP": "7"}, "{other}: no checkpoint of CKPT_STEP=7; there are: 50 and 100"),
        ({"CKPT_STEP": "7"}, "no checkpoint of CKPT_STEP=7; there are: none"),
        ({"FINETUNE": "1"}, "FINETUNE=1 needs the checkpoint whose weights it takes; set LOAD=RUN"),
        ({"FINETUNE": "1", "LOAD": "{own}"}, "LOAD={own}, which is this run's own folder; give the new run another"),
        ({"FINETUNE": "1", "LOAD": "{own}/iter_0000005"}, "which is this run's own folder; give the new run another"),
        ({"LOAD": "{empty}/iter_0000009"}, "iter_0000009: has no manifest.json; it is not a complete checkpoint"),
        ({"LOAD": "{other}", "NLAYERS": "3"}, "iter_0000100: the checkpoint's model has num_layers=2, this run asks "),
    ],
)
def test_wrong_beginnings_are_refused(own, other, tmp_path, settings, told):
    places = {"own": str(own), "other": str(other), "empty": str(tmp_path / "empty")}
    (tmp_path / "empty/iter_0000009").mkdir(parents=True)
    if settings.get("LOAD") == "{empty}":
        (tmp_path / "empty/iter_0000009").rmdir()
    with pytest.raises(CheckpointError) as caught:
        check_start(derived({name: text.format(**places) for name, text in settings.items()}), own)
    assert told.format(**places) in str(caught.value)
    assert "\n" not in str(caught.value)


RETRO = {"MODEL_FAMILY": "retro", "NLAYERS": "6", "RETRO_CHUNK_LENGTH": "8"}


def test_a_decoder_gives_a_new_retro_run_its_weights_alone(own, tmp_path):
    gpt = derived(MODEL_FAMILY="gpt", NLAYERS="6")
    fake(tmp_path / "gpt", 30, gpt)
    begin = {**RETRO, "LOAD": str(tmp_path / "gpt")}
    _, is_own, what = taken(own, **begin)
    assert (is_own, what) == (False, RestorePlan(progress=False, optimizer=False, has_retriever=False))
    assert "a new encoder of neighbours" in what.text()
    fake(own, 5, derived(begin))
    assert taken(own, **begin) == (5, True, ALL)
    with pytest.raises(CheckpointError, match=r"has hidden_size=64 and .* this run asks for 32"):
        check_start(derived(begin, HIDDEN="32"), tmp_path / "new")


def test_a_decoder_is_not_a_retro_run_gone_on_with_nor_the_reverse(own, tmp_path):
    fake(own, 30, derived(MODEL_FAMILY="gpt", NLAYERS="6"))
    with pytest.raises(CheckpointError, match="is no encoder, this run's is retro, which looks at neighbours"):
        check_start(derived(RETRO), own)
    fake(tmp_path / "retro", 30, derived(RETRO))
    with pytest.raises(CheckpointError, match="is retro, which looks at neighbours, this run's is no encoder"):
        check_start(derived(MODEL_FAMILY="gpt", NLAYERS="6", LOAD=str(tmp_path / "retro")), tmp_path / "new")
    chunks = derived(RETRO, LOAD=str(tmp_path / "retro"), RETRO_CHUNK_LENGTH="16")
    with pytest.raises(CheckpointError, match="retro_chunk_length=8, this run asks for 16"):
        check_start(chunks, tmp_path / "new")
