"""What megads finetune adds to a request."""

from pathlib import Path

import pytest

from megads.errors import ConfigError, DataError
from megads.launch.finetune import finetune_request
from megads.launch.plan_run import hosts_of_this_job, plan_run
from megads.launch.request import TrainRequest
from tests.checkpoint.convert.megatron.samples import exported, save_ours
from tests.data.tasks.files import write_json_rows
from tests.models import shapes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_json_rows(tmp_path / "t.jsonl", [{"text": str(n), "label": n % 3} for n in range(22)])


def request(rows, **env):
    own = {
        "MACHINE": "cpu",
        "TASK": "jsonl",
        "TASK_TRAIN_DATA": rows,
        "TOKENIZER_TYPE": "NullTokenizer",
        "VOCAB_SIZE": "64",
    }
    given = {**own, "DP": "2", "MICRO_BATCH": "2", "GRAD_ACC_STEPS": "1", **env}
    return TrainRequest(None, (), {k: v for k, v in given.items() if v}, "host", ROOT, "python")


def planned(rows, **env):
    asked = finetune_request(request(rows, **env))
    return plan_run(asked, hosts_of_this_job(asked)).run


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        ({}, 15),
        ({"TASK_EPOCHS": "2"}, 10),
        ({"TASK_KEEP_LAST": "1"}, 18),
        ({"GRAD_ACC_STEPS": "2"}, 6),
        ({"TRAIN_ITERS": "7"}, 7),
    ],
)
def test_the_steps_are_those_of_all_epochs(rows, env, steps):
    run = planned(rows, **env)
    assert run.train.train_iters == steps
    assert (run.model.num_classes, run.name, run.train.evaluate_only) == (3, "jsonl", False)
    assert run.checkpoint.save_interval == (steps // run.finetune.epochs if "TRAIN_ITERS" not in env else 5)


def test_no_epoch_is_an_evaluation(rows):
    run = planned(rows, TASK_EPOCHS="0", TASK_VALID_DATA=rows, TASK_TRAIN_DATA="")
    assert run.train.evaluate_only


def test_a_command_of_megatron_needs_no_length(rows):
    sizes = {"NLAYERS": "2", "HIDDEN": "32", "HEADS": "4", "SEQ": "16"}
    assert planned(rows, MEGADS_DEFAULTS="megatron", LR="1e-4", **sizes).train.train_iters == 15


@pytest.mark.parametrize(
    ("env", "kind", "why"),
    [
        ({"TASK": ""}, ConfigError, "no task is named; .*"),
        ({"TASK_TRAIN_DATA": "none"}, DataError, "none: no such file; .*"),
        (
            {"GLOBAL_BATCH": "24", "GRAD_ACC_STEPS": ""},
            ConfigError,
            "GLOBAL_BATCH=24 is larger than the 22 examples to train on; .*",
        ),
        ({"OPT": "sophiag"}, ConfigError, "OPTIMIZER=sophiag draws labels from the vocabulary, .*"),
        ({"RAMPUP_BATCH_SIZE": "4 4 8"}, ConfigError, "RAMPUP_BATCH_SIZE='4 4 8': all steps of an epoch .*"),
        (
            {"EVAL_TASKS": "lambada:x"},
            ConfigError,
            "EVAL_TASKS=lambada:x: TASK=jsonl does not predict .*",
        ),
        ({"LOAD": "x", "FINETUNE": "0"}, ConfigError, "FINETUNE=0: megads finetune takes the weights of LOAD=x .*"),
    ],
)
def test_what_cannot_be_finetuned_is_refused_in_one_line(rows, env, kind, why):
    with pytest.raises(kind, match=f"^{why}$") as caught:
        planned(rows, **env)
    assert "\n" not in str(caught.value)


def test_files_of_megatron_are_imported_once_and_loaded(rows, tmp_path, capsys):
    model = shapes.BERT.model_copy(update={"activation": "gelu_tanh", "vocab_size": 64})
    exported(save_ours(tmp_path / "ours", model), tmp_path / "bert_345m", tensor=2)
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50))]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    words = {"TOKENIZER_TYPE": "BertWordPieceLowerCase", "VOCAB_FILE": "vocab.txt", "VOCAB_SIZE": ""}
    env = {**words, "LOAD": "bert_345m", "DATA_CACHE_PATH": "cache", "SEQ": "12"}
    runs = [planned(rows, **env) for _ in range(2)]
    (made,) = (tmp_path / "cache" / "pretrained").iterdir()
    for run in runs:
        assert (run.checkpoint.load, run.checkpoint.finetune, run.name) == (str(made), True, "bert_345m-jsonl")
        assert (run.model.family, run.model.num_layers, run.model.hidden_size) == ("bert", 2, 32)
    assert capsys.readouterr().err.count("imported as") == 1


def test_a_run_is_called_after_what_it_starts_from(rows):
    for load, name in (("runs/books", "books"), ("a/checkpoints/iter_0000004", "a"), ("x/release/", "x")):
        asked = finetune_request(request(rows, LOAD=load))
        assert f"name={name}-jsonl" in asked.pairs
        assert "checkpoint.finetune=true" in asked.pairs
    assert not any(pair.startswith("name=") for pair in finetune_request(request(rows, RUN_NAME="mine")).pairs)
