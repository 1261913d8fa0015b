"""Tasks on made-up texts, and random models of transformers with a tokenizer of letters."""

from __future__ import annotations

import json
import random
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.inference.load import load_model, open_weights
from megads.inference.runner import Runner
from megads.inference.session import Session
from tests.inference.letters import LETTERS
from tests.inference.theirs import CPU, imported

BOS, EOS = "Y", "Z"
TEMPLATE = (
    "{% for each in messages %}{{ each.role[:1] }} {{ each.content }} {% endfor %}"
    "{% if add_generation_prompt %}a {% endif %}"
)
TASKS = ("tiny_choice", "tiny_last", "tiny_text", "tiny_answer")

_YAML = {
    "tiny_choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "tiny_last": """
output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
metric_list:
  - metric: perplexity
  - metric: acc
""",
    "tiny_text": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
""",
    "tiny_answer": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs:
  until: ["e"]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
""",
}
_kept: list[TemporaryDirectory[str]] = []


def _words(draw: random.Random, count: int) -> str:
    return " ".join("".join(draw.choices(LETTERS[:26], k=draw.randint(1, 4))) for _ in range(count))


@cache
def tasks_folder() -> Path:
    """Return a folder with a YAML file for every task, and the documents that they name."""
    folder = _folder("tasks")
    draw = random.Random(4)
    with (folder / "docs.jsonl").open("w") as file:
        for number in range(10):
            # One letter is one token: choices of one token, of several, and a mixture.
            choices = [_words(draw, 1)[: 1 if number % 3 == 0 else 4] for _ in range(3)]
            # Questions up to more than the context, texts of several windows.
            question = _words(draw, draw.randint(1, 4) if number != 5 else 30)
            doc = {"question": question, "choices": choices, "label": number % 3}
            file.write(json.dumps({**doc, "text": _words(draw, 4 * number + 1)}) + "\n")
    files = {"test": str(folder / "docs.jsonl")}
    kwargs = json.dumps({"data_files": files, "cache_dir": str(folder / "cache")})
    data = f"dataset_path: json\ndataset_kwargs: {kwargs}\ntest_split: test\n"
    for name, text in _YAML.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{data}{text}")
    return folder


@cache
def model_folder(kind: str, *, begins: bool = False) -> Path:
    """Return a Hugging Face folder of a random model, as an export is; ``begins``: a text begins with BOS."""
    folder = _folder(kind)
    shutil.copytree(imported(kind) / "theirs", folder, dirs_exist_ok=True)
    vocab = {letter: number for number, letter in enumerate(LETTERS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="X"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.add_special_tokens([BOS, EOS])
    if begins:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, vocab[BOS])]
        )
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | ({"bos_token": BOS} if begins else {})))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": vocab[EOS]}))
    return folder


def _folder(name: str) -> Path:
    _kept.append(TemporaryDirectory(prefix=f"megads-{name}-"))
    return Path(_kept[-1].name)


def session_of(folder: Path, groups: Groups | None = None) -> Session:
    """Return a session of a model folder on this rank, as open_session makes it."""
    weights = open_weights(folder)
    groups = groups or Groups(Grid(), 0)
    module = load_model(weights, groups, CPU, torch.float32)
    runner = Runner(module, groups, context=weights.context, num_slots=4)
    tokenizer = make_tokenizer(TokenizerSpec("HFTokenizer", str(folder)))
    return Session(runner, groups, tokenizer, weights.ends(tokenizer.eod), "tiny", str(folder))


def run(model: Any, *tasks: str, folder: Path | None = None, **more: Any) -> dict[str, Any]:
    """Return lm-eval's results of tasks, with all documents and answers."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder or tasks_folder()), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=model, tasks=list(tasks or TASKS), task_manager=manager, bootstrap_iters=0, **more
    )
