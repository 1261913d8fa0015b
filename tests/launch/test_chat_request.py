"""What megads finetune --task chat adds to a request."""

import json
from pathlib import Path

import pytest

from megads.errors import ConfigError, DataError
from megads.launch.finetune import finetune_request
from megads.launch.plan_run import hosts_of_this_job, plan_run
from megads.launch.preflight.banner import _data_rows, list_notes
from megads.launch.request import TrainRequest
from tests.data.chat.tiny import write_tokenizer

ROOT = Path(__file__).parents[2]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "1 2 3", "response": "4 5 6"} for _ in range(22)]  # 6 tokens: two in a row of 16
    write(tmp_path / "a.jsonl", rows)
    write(tmp_path / "b.jsonl", [*rows[:10], {"prompt": "1", "response": ""}])
    write(tmp_path / "long.jsonl", [{"prompt": "1 " * 17, "response": "2"}])
    write(tmp_path / "words.jsonl", [{"prompt": "why", "response": "2"}])
    write(tmp_path / "large.jsonl", [{"prompt": "1", "response": "64"}])
    write(tmp_path / "broken.jsonl", [{"text": "1"}])


def request(**env):
    own = {
        **{"MACHINE": "cpu", "TASK": "chat", "TASK_TRAIN_DATA": "a.jsonl", "SEQ": "16", "DATA_CACHE_PATH": "cache"},
        **{"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "64", "DP": "2", "MICRO_BATCH": "2", "GRAD_ACC_STEPS": "1"},
    }
    return TrainRequest(None, (), {k: v for k, v in {**own, **env}.items() if v}, "host", ROOT, "python")


def planned(**env):
    asked = finetune_request(request(**env))
    return plan_run(asked, hosts_of_this_job(asked)).run


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        ({}, 9),  # 11 rows, 4 in a step: 3 steps an epoch
        ({"TASK_EPOCHS": "1"}, 3),
        ({"PACK_CHATS": "0"}, 18),
        ({"TASK_TRAIN_DATA": "a.jsonl b.jsonl"}, 12),
        ({"TASK_TRAIN_DATA": "0.3 a.jsonl 0.7 b.jsonl"}, 12),
        ({"TRAIN_ITERS": "7"}, 7),
        ({"GRAD_ACC_STEPS": "8"}, 3),  # a step that is not full is filled
    ],
)
def test_the_steps_are_those_of_all_epochs(files, env, steps):
    run = planned(**env)
    assert run.train.train_iters == steps
    packs = env.get("PACK_CHATS") != "0"
    assert (run.data.reset_attention_mask, run.data.reset_position_ids) == (packs, packs)
    assert (run.model.num_classes, run.name, run.train.evaluate_only) == (0, "chat", False)
    assert run.finetune.rows > 0


def test_no_epoch_is_an_evaluation(files):
    run = planned(TASK_EPOCHS="0", TASK_VALID_DATA="b.jsonl", TASK_TRAIN_DATA="")
    assert run.train.evaluate_only


def test_the_banner_shows_packing_shares_and_what_was_skipped(files):
    run = planned(TASK_TRAIN_DATA="1 a.jsonl 3 b.jsonl", TASK_VALID_DATA="b.jsonl")
    assert list(_data_rows(run, ())) == [
        (
            "task",
            "chat, template plain, 32 examples of 192 tokens, 16 rows an epoch, 25.0% padding; "
            "scored on 10 chats of 1 file",
        ),
        ("", " 25.0% a.jsonl, 22 chats"),
        ("", " 75.0% b.jsonl, 10 chats"),
    ]
    assert list(list_notes(run)) == ["b.jsonl: 1 of 11 chats skipped, without an answer"]


BAD = {
    "no files to train on; pass --train-data FILE": {"TASK_TRAIN_DATA": ""},
    "has no files to score; pass --valid-data FILE": {"TASK_EPOCHS": "0"},
    r"none\.jsonl: no such file": {"TASK_TRAIN_DATA": "none.jsonl"},
    r"v\.jsonl: no such file": {"TASK_VALID_DATA": "v.jsonl"},
    r"broken\.jsonl:1: has text; expected messages": {"TASK_TRAIN_DATA": "broken.jsonl"},
    r"words\.jsonl:1: NullTokenizer: 'why.*' is not a row of token ids": {"TASK_TRAIN_DATA": "words.jsonl"},
    r"large\.jsonl:1: NullTokenizer: ids must be 0..63": {"TASK_TRAIN_DATA": "large.jsonl"},
    r"long\.jsonl: no answer begins within SEQ=16 tokens; raise SEQ": {"TASK_TRAIN_DATA": "long.jsonl"},
    r"b\.jsonl has no weight": {"TASK_TRAIN_DATA": "1 a.jsonl b.jsonl"},
    "'0' is not a weight of a.jsonl": {"TASK_TRAIN_DATA": "0 a.jsonl"},
    r"a\.jsonl is named twice": {"TASK_TRAIN_DATA": "a.jsonl a.jsonl"},
    "files to score have no weights": {"TASK_VALID_DATA": "1 b.jsonl"},
    "CHAT_TEMPLATE=alpaca: not one of auto": {"CHAT_TEMPLATE": "alpaca"},
    "CHAT_TEMPLATE=chatml: the tokenizer has no token": {"CHAT_TEMPLATE": "chatml"},
    "CHAT_TEMPLATE=llama-2: the tokenizer has no token that begins": {"CHAT_TEMPLATE": "llama-2"},
    "RAMPUP_BATCH_SIZE='4 4 8': all steps of an epoch": {"RAMPUP_BATCH_SIZE": "4 4 8"},
    "TASK_TEST_DATA=b.jsonl: chats are scored by": {"TASK_TEST_DATA": "b.jsonl"},
    "TASK_CLASSES=x y: TASK=chat has no classes": {"TASK_CLASSES": "x y"},
    "EOD_MASK_LOSS=1: of chats": {"EOD_MASK_LOSS": "1"},
    "follow from PACK_CHATS": {"RESET_ATTENTION_MASK": "0"},
    "does not predict a text from its beginning": {"MODEL_FAMILY": "bert"},
    "FINETUNE=0: megads finetune takes the weights": {"LOAD": "x", "FINETUNE": "0"},
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_learnt_is_refused_in_one_line(files, words):
    with pytest.raises((ConfigError, DataError), match=words) as caught:
        planned(**BAD[words])
    assert "\n" not in str(caught.value)


def test_a_template_of_the_tokenizer_s_folder_that_hides_its_answers_is_refused(files, tmp_path):
    last = "{% for m in messages %}{{ m.content + ('!' if loop.last else '') }}{% endfor %}"
    folder = write_tokenizer(tmp_path / "t", last)
    chat = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    write(tmp_path / "m.jsonl", [{"messages": chat}])
    given = {"TOKENIZER_TYPE": "HFTokenizer", "TOKENIZER_MODEL": str(folder), "VOCAB_SIZE": ""}
    with pytest.raises(DataError, match=r"m\.jsonl:1: message 1: the chat template writes a chat in another way"):
        planned(**given, TASK_TRAIN_DATA="m.jsonl")
    assert planned(**given, TASK_TRAIN_DATA="m.jsonl", CHAT_TEMPLATE="chatml").train.train_iters == 3


def test_a_pretrained_model_gets_a_learning_rate_of_its_own(files, tmp_path):
    from megads.config.sources.resolve import resolve
    from megads.launch.chat_request import ADAPTER_RATE, RATE, chat_pairs

    run = planned()
    for load, rank, env, rate in (
        ("x", 0, {}, RATE),
        ("x", 8, {}, ADAPTER_RATE),
        ("x", 0, {"LR": "1e-3"}, None),
        ("", 0, {}, None),
    ):
        asked = resolve(None, env=env, machine="generic")
        checkpoint, model = (
            run.checkpoint.model_copy(update={"load": load}),
            run.model.model_copy(update={"lora_rank": rank}),
        )
        pairs = chat_pairs(asked, run.model_copy(update={"checkpoint": checkpoint, "model": model}), has_length=True)
        assert [each for each in pairs if each.startswith("optim.lr=")] == ([f"optim.lr={rate}"] if rate else [])
