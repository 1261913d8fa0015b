"""lm-eval on our model: the numbers of its own backend ``hf`` on the same folder, per document too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megads.comm.groups import Groups
from megads.errors import ConfigError
from megads.evaluate.lm_eval.jobs import follow
from tests.evaluate.lm_eval.tiny import TASKS, model_folder, run, session_of, tasks_folder
from tests.ranks import groups_of, run_ranks

LAYOUTS = {"tp2": {"tensor": 2}, "pp2": {"pipe": 2}, "dp2": {"data": 2}}


def model_of(kind: str, *, begins: bool = False, groups: Groups | None = None, folder: Any = None) -> Any:
    from megads.evaluate.lm_eval.model import MegadsLM

    return MegadsLM(session=session_of(folder or model_folder(kind, begins=begins), groups), batch_size=2)


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Numbers of tasks and answers of documents are equal: log-probabilities to 1e-5, flags and texts exactly."""
    assert list(ours["results"]) == list(theirs["results"])
    for task, numbers in theirs["results"].items():
        names = [name for name in numbers if name.endswith(",none")]
        assert len(names) >= 2
        assert [float(ours["results"][task][name]) for name in names if "stderr" not in name] == pytest.approx(
            [float(numbers[name]) for name in names if "stderr" not in name], rel=1e-5
        )
        for answers in zip(_answers(ours, task), _answers(theirs, task), strict=True):
            found, wanted = ([each for each in part if isinstance(each, float)] for part in answers)
            assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
            found, wanted = ([each for each in part if not isinstance(each, float)] for part in answers)
            assert found == wanted


def _answers(results: dict[str, Any], task: str) -> list[list[Any]]:
    """Return log-probabilities, flags and texts of every document."""
    found = [each["filtered_resps"] for each in results["samples"][task]]
    assert len(found) == 10
    return [[part for each in doc for part in (each if isinstance(each, tuple) else [each])] for doc in found]


@pytest.mark.parametrize(("kind", "begins"), [("gpt2", False), ("llama3", True)])
def test_numbers_are_those_of_the_backend_hf(kind, begins, hf):
    model = model_of(kind, begins=begins)
    same(run(model), hf(kind, model.max_length, begins=begins))


def test_chats_are_those_of_the_backend_hf(hf):
    model = model_of("llama3")
    same(run(model, "tiny_answer", apply_chat_template=True), hf("llama3", model.max_length, chat=True))
    history = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de "}]
    assert model.apply_chat_template(history, add_generation_prompt=False) == "u abc a de"
    assert model.apply_chat_template(history[:1]) == "u abc a "


def _check_layout(degrees: dict[str, int], model: Path, tasks: Path, wanted: dict[str, Any]) -> None:
    groups = groups_of(**degrees)
    if dist.get_rank():
        follow(session_of(model, groups))
        return
    made = model_of("llama3", groups=groups, folder=model)
    same(run(made, folder=tasks), wanted)
    made.close()


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_same_numbers(layout, hf):
    wanted = hf("llama3", 64, begins=True)
    wanted = {name: wanted[name] for name in ("results", "samples")}
    folders = (model_folder("llama3", begins=True), tasks_folder())
    run_ranks(2, _check_layout, LAYOUTS[layout], *folders, wanted)


def _check_sequence(model: Path, tasks: Path, wanted: dict[str, Any]) -> None:
    groups = groups_of(seq=2)
    if dist.get_rank():
        follow(session_of(model, groups))
        return
    made = model_of("llama3", groups=groups, folder=model)
    same(run(made, *wanted["results"], folder=tasks), wanted)
    with pytest.raises(ConfigError, match="SP=2: tasks that generate text run without sequence parallelism; use SP=1"):
        made.generate_until([])
    made.close()


@pytest.mark.dist
def test_ranks_that_share_every_text_score_as_one(hf):
    found = hf("llama3", 64, begins=True)
    wanted = {part: {task: found[part][task] for task in TASKS[:3]} for part in ("results", "samples")}
    run_ranks(2, _check_sequence, model_folder("llama3", begins=True), tasks_folder(), wanted)


def _request(*args: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, args, 0)


def test_a_text_that_is_the_most_likely_one_is_greedy():
    model = model_of("llama3")
    (text,) = model.generate_until([_request("ab", {"until": [], "max_gen_toks": 3})])
    other = "b" if text[-1] != "b" else "c"
    found = model.loglikelihood([_request("ab", each) for each in (text, text[:1], text[:-1] + other, other)])
    assert [is_greedy for _, is_greedy in found] == [True, True, False, False]


def test_sampling_is_repeatable_and_uses_its_settings():
    model = model_of("llama3")
    settings = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 2.0}
    asked = [_request("ab", settings) for _ in range(3)]
    texts = model.generate_until(asked)
    assert len(set(texts)) == 3
    assert model.generate_until(asked) == texts
    narrow = model.generate_until([_request("ab", {**settings, "top_k": 1})])
    assert narrow == model.generate_until([_request("ab", {"until": [], "max_gen_toks": 12})])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_gen_toks": 64}, "max_gen_toks=64: the context is 64; use at most 63, e.g. with --gen-kwargs"),
        ({"num_beams": 4}, "generation_kwargs: num_beams: not supported; use temperature, top_p, top_k"),
    ],
)
def test_generation_that_is_not_possible_is_one_line(settings, words):
    with pytest.raises(ConfigError, match=words):
        model_of("llama3").generate_until([_request("ab", {"until": [], "max_gen_toks": 9, **settings})])


def test_arguments_that_do_not_exist_are_one_line():
    from megads.evaluate.lm_eval.model import MegadsLM

    with pytest.raises(ConfigError, match="model_args: pretrained: no such argument"):
        MegadsLM.create_from_arg_string("pretrained=a,checkpoint=b", {"batch_size": 1, "device": None})
    with pytest.raises(ConfigError, match="model_args: checkpoint is missing; pass checkpoint=PATH"):
        MegadsLM.create_from_arg_string("")


def test_a_model_without_a_chat_template_is_one_line():
    model = model_of("gpt2")
    model._template.text = ""
    with pytest.raises(ConfigError, match="--apply-chat-template: the model's tokenizer has no chat template"):
        run(model, "tiny_answer", apply_chat_template=True)
