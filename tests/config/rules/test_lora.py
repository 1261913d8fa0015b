"""What adapters cannot be combined with is refused in one line, and what that names works."""

from __future__ import annotations

import pytest

from megads.config.rules.advice import put
from megads.config.rules.lora import RULES, smallest_side
from megads.config.schema import RunConfig
from tests.models.shapes import BERTS, GPT, LLAMA


def refusals(run):
    return [problem for rule in RULES for problem in rule(run, 1)]


@pytest.mark.parametrize(
    ("model", "changes", "told"),
    [
        (LLAMA, {"model.lora_rank": 4096}, "LORA_RANK=4096 is more than the smaller side"),
        (LLAMA, {"model.lora_rank": 2, "model.lora_targets": "q embed"}, "LORA_TARGETS='q embed': 'embed' is none of"),
        (LLAMA, {"model.lora_rank": 2, "model.lora_targets": ""}, "LORA_TARGETS='': it names nothing"),
        (GPT, {"model.lora_rank": 2, "model.lora_targets": "gate"}, "LORA_TARGETS='gate': a layer has no gate"),
        (BERTS["bert"], {"model.lora_rank": 2}, "LORA_RANK=2: a model of MODEL_FAMILY=bert"),
        (LLAMA, {"model.lora_rank": 2, "model.num_classes": 3, "finetune.task": "MNLI"}, "LORA_RANK=2 freezes"),
        (LLAMA, {"model.lora_dropout": 0.1}, "LORA_DROPOUT=0.1 needs adapters"),
        (LLAMA, {"model.lora_targets": "q"}, "LORA_TARGETS='q' needs adapters"),
        (LLAMA, {"model.lora_rank": 2, "parallel.pipeline_schedule": "zb-h1"}, "LORA_RANK=2: adapters are not trained"),
        (
            LLAMA,
            {"model.lora_rank": 2, "parallel.pipeline": 2, "parallel.pipeline_split": "2,0"},
            "LORA_RANK=2: PIPELINE_SPLIT=2,0 has a stage without layers",
        ),
        (LLAMA, {"model.lora_rank": 2, "deepspeed.offload_params": "cpu"}, "LORA_RANK=2: adapters are not trained"),
        (LLAMA, {"model.lora_rank": 2, "model.lora_dropout": 0.1, "recompute.mlp_tiles": 2}, "LORA_DROPOUT=0.1 draws"),
    ],
)
def test_what_cannot_work_is_refused_and_every_way_works(model, changes, told):
    plain = RunConfig(model=model)
    problem = refusals(put(plain, changes))[0]
    assert problem.text.startswith(told)
    for way in problem.ways:
        assert told not in [each.text[: len(told)] for each in refusals(put(plain, {**changes, **way}))]


def test_a_model_without_adapters_breaks_no_rule():
    assert not refusals(RunConfig(model=LLAMA))


def test_the_smaller_side_counts_every_part_by_itself():
    model = LLAMA.model_copy(update={"lora_rank": 2})
    assert smallest_side(model) == LLAMA.num_kv_heads * LLAMA.head_dim
    assert smallest_side(model.model_copy(update={"lora_targets": "down"})) == LLAMA.hidden_size
