"""The words that a BERT puts in the place of masks are those of transformers' pipeline, in every layout."""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups
from megads.data.tokenizers.base import Specials, TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import ConfigError
from megads.inference.fill_mask import fill_masks, tokens_of
from megads.inference.generate import Prompt, leave
from megads.inference.load import load_model, open_weights
from megads.inference.runner import Runner
from megads.inference.session import Session, SessionRequest, open_session
from tests.checkpoint.convert.huggingface.test_bert import theirs_in
from tests.inference.letters import Letters
from tests.inference.theirs import CPU
from tests.ranks import run_ranks

NAMES = ("BertForMaskedLM", "BertForPreTraining", "MegatronBertForMaskedLM", "MegatronBertForPreTraining")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [f"w{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"] + ["##s", "##ed", "the", "cat", "."]
VOCABULARY = [*SPECIALS, *WORDS, *(f"x{number}" for number in range(53 - len(SPECIALS) - len(WORDS)))]
TEXTS = (
    "the [MASK] .",
    "[MASK] wa wb [MASK] cats",
    "wc [MASK]",
    "wa wb wc wd we wf wg [MASK] wi wj",
    "the cat [SEP] wa[MASK]",
)


@cache
def folder_of(name: str) -> Path:
    """Return a folder with a random model of transformers and its tokenizer in ``theirs``, and ours in ``ours``."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="megads-bert-"))
    _folders.append(folder)
    theirs_in(folder / "theirs", name)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=14)
    tokenizer.save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours", vocab_multiple=8)
    return folder


_folders: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _no_folder_stays():
    yield
    folder_of.cache_clear()
    while _folders:
        shutil.rmtree(_folders.pop())


def session_of(folder: Path, grid: Grid, rank: int = 0, source: str = "ours") -> Session:
    groups = make_groups(grid, rank) if grid.world_size > 1 else Groups(grid, 0)
    weights = open_weights(folder / source)
    module = load_model(weights, groups, CPU, torch.float32)
    tokenizer = make_tokenizer(weights.tokenizer())
    weights.close()
    return Session(Runner(module, groups, context=weights.context, num_slots=0), groups, tokenizer, (), "")


def _expected(name: str, texts: list[str], top: int) -> list[list[list[tuple[int, float]]]]:
    """Return what transformers' pipeline says: of every mask tokens with probabilities."""
    place = folder_of(name) / "theirs"
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    kind = getattr(transformers, name)
    module = kind.from_pretrained(place).eval()
    found = []
    for text in texts:
        tokens = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            made = module(**tokens)
        logits = made.prediction_logits if "PreTraining" in name else made.logits
        masks = (tokens["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten()
        best = logits[0, masks].softmax(dim=-1).topk(top)
        found.append(
            [list(zip(*each, strict=True)) for each in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        )
    return found


def _assert_as_theirs(made: list[dict[str, Any]], wanted: list[list[list[tuple[int, float]]]]) -> None:
    for record, masks in zip(made, wanted, strict=True):
        assert [[each["token"] for each in mask] for mask in record["masks"]] == [
            [token for token, _ in mask] for mask in masks
        ]
        for mine, theirs in zip(record["masks"], masks, strict=True):
            assert [each["probability"] for each in mine] == pytest.approx([value for _, value in theirs], abs=1e-5)


@pytest.mark.parametrize("source", ["theirs", "ours"])
@pytest.mark.parametrize("name", NAMES)
def test_words_and_probabilities_are_transformers(name, source):
    session = session_of(folder_of(name), Grid(), source=source)
    made = fill_masks(session, [Prompt(text) for text in TEXTS], top=4, batch=3)
    _assert_as_theirs(made, _expected(name, list(TEXTS), 4))


def test_the_pipeline_of_transformers_says_the_same_of_a_whole_command(request):
    place = folder_of("BertForMaskedLM") / "theirs"
    pipeline = transformers.pipeline("fill-mask", model=str(place), tokenizer=str(place), device="cpu")
    session = open_session(SessionRequest(place, uses=("bert",)), {})
    request.addfinalizer(leave)
    text = "the [MASK] wa"
    (record,) = fill_masks(session, [Prompt(text)])
    wanted = pipeline(text)
    assert [(each["token"], each["text"]) for each in record["masks"][0]] == [
        (each["token"], each["token_str"]) for each in wanted
    ]
    assert [each["probability"] for each in record["masks"][0]] == pytest.approx(
        [each["score"] for each in wanted], abs=1e-5
    )
    assert record["all_text"] == wanted[0]["sequence"]


def _check_layout(grid: Grid, folder: Path, wanted: Any) -> None:
    session = session_of(folder, grid, dist.get_rank())
    made = fill_masks(session, [Prompt(text) for text in TEXTS], top=4, batch=2)
    if session.speaks:
        _assert_as_theirs(made, wanted)
    else:
        assert made == []


@pytest.mark.parametrize("grid", [Grid(tensor=2), Grid(pipe=2), Grid(tensor=2, pipe=2), Grid(tensor=2, data=2)])
def test_every_layout_says_the_same(grid):
    name = "MegatronBertForPreTraining" if grid.pipe == 2 else "BertForPreTraining"
    run_ranks(grid.world_size, _check_layout, grid, folder_of(name), _expected(name, list(TEXTS), 4))


@pytest.mark.parametrize("seed", range(6))
def test_drawn_texts_in_drawn_batches(seed):
    draw = random.Random(seed)
    texts = []
    for _ in range(draw.randint(1, 9)):
        words = [draw.choice(WORDS[:26]) for _ in range(draw.randint(1, 12))]
        for place in draw.sample(range(len(words)), draw.randint(1, min(3, len(words)))):
            words[place] = "[MASK]"
        texts.append(" ".join(words))
    name, top = NAMES[seed % len(NAMES)], draw.randint(1, 53)
    session = session_of(folder_of(name), Grid())
    made = fill_masks(session, [Prompt(text) for text in texts], top, batch=draw.randint(1, 4))
    _assert_as_theirs(made, _expected(name, texts, top))
    for record, text in zip(made, texts, strict=True):
        assert "[MASK]" not in record["all_text"] or record["masks"][0][0]["text"] == "[MASK]"
        assert len(record["masks"]) == text.count("[MASK]")


def test_a_piece_that_continues_a_word_is_joined_to_it():
    session = session_of(folder_of("BertForMaskedLM"), Grid())
    with torch.inference_mode():
        session.runner.module.lm_head.bias[VOCABULARY.index("##s")] += 1e4
    (record,) = fill_masks(session, [Prompt("the cat [MASK] .")], 1)
    assert record["all_text"] == "the cats ."
    assert record["masks"][0][0]["text"] == "##s"


def test_the_vocabulary_of_megatron_takes_masks_for_tokens_and_adds_the_ends(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    ours = make_tokenizer(TokenizerSpec("BertWordPieceLowerCase", vocab_file=str(tmp_path / "vocab.txt")))
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    for text in TEXTS:
        assert tokens_of(ours, text) == theirs(text)["input_ids"]


def test_progress_ids_and_the_number_of_words_of_a_prompt():
    session = session_of(folder_of("BertForMaskedLM"), Grid())
    prompts, progress = [Prompt(text, f"id {text}", {"top_k": 2}) for text in TEXTS], []
    made = fill_masks(session, prompts, 3, 2, lambda *done: progress.append(done))
    assert [each["id"] for each in made] == [each.id for each in prompts]
    assert {len(mask) for each in made for mask in each["masks"]} == {2}
    assert progress == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (Prompt("the cat"), r"prompt 2: the prompt has no \[MASK\] to fill"),
        (Prompt(""), r"prompt 2: the prompt has no \[MASK\] to fill"),
        (Prompt("[mask]"), r"prompt 2: the prompt has no \[MASK\] to fill"),
        (Prompt("a\udcff [MASK]"), "prompt 2: the prompt is not UTF-8"),
        (
            Prompt("wa " * 13 + "[MASK]"),
            "prompt 2: the prompt has 16 tokens, its ends included, and the model reads 14",
        ),
        (Prompt("[MASK]", None, {"seed": 3, "top_k": 1}), "prompt 2: seed: a model that fills masks takes top_k only"),
        (Prompt("[MASK]", None, {"top_k": -1}), "prompt 2: top_k=-1 is out of range; use 0 or more"),
    ],
)
def test_prompts_that_are_one_line(prompt, words):
    session = session_of(folder_of("BertForMaskedLM"), Grid())
    with pytest.raises(ConfigError, match=words) as error:
        fill_masks(session, [Prompt("[MASK]"), prompt])
    assert "\n" not in str(error.value)


def test_a_tokenizer_without_a_mask():
    class Plain(Letters):
        specials = Specials(eos=52, cls=1, sep=2)

    with pytest.raises(ConfigError, match=r"the tokenizer has no \[CLS\], \[SEP\] and \[MASK\]; pass the model's own"):
        tokens_of(Plain(), "a")
