"""Retro from a project to text: what neighbours know is learnt, resumed bitwise, and generated."""

from __future__ import annotations

import functools
import io
import json
import shutil
from statistics import fmean

import pytest

from megads.config.sources.resolve import resolve
from megads.data.datasets import build_splits, read_shards
from megads.data.retro.project import Project
from megads.data.retro.samples import Queries
from megads.launch.preflight.retro_project import with_project
from megads.retro.embedders.base import make_embedder
from megads.retro.query import nearest
from megads.retro.run import How, run_steps, steps_of
from tests.data.retro.answers import WITHOUT_NEIGHBORS, make_answers
from tests.e2e.conftest import Command
from tests.retro.corpus import make_corpus

STEPS = 100
SMALL = {
    "NLAYERS": "6",
    "HIDDEN": "32",
    "FFN_HIDDEN_SIZE": "64",
    "GLOBAL_BATCH": "16",
    "MICRO_BATCH": "16",
    "LR": "1e-2",
    "EVAL_INTERVAL": "0",
    "EVAL_ITERS": "0",
    "TRAIN_ITERS": "",
    "SEQ": "",
    "VAL_SPLIT": "",
    "HIDDEN_DROPOUT": "0",
    "ATTENTION_DROPOUT": "0",
}
RETRO = {
    **SMALL,
    "MODEL_FAMILY": "retro",
    "RETRO_PROJECT_DIR": "project",
    "RETRO_NUM_NEIGHBORS": "1",
    "RETRO_ENCODER_LAYERS": "1",
    "RETRO_ENCODER_HIDDEN_DROPOUT": "0",
    "RETRO_ENCODER_ATTENTION_DROPOUT": "0",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cache):
    """Return a folder with a project, and a model that has read its samples once with their neighbours."""
    megads = Command(tmp_path_factory.mktemp("retro"), cache)
    make_answers(megads.folder / "project", STEPS * 16)
    done = megads.train("retro", **RETRO)
    assert done.returncode == 0, done.stderr + done.stdout
    return megads, done


@pytest.fixture(scope="module")
def gpt(trained):
    """Train a GPT of the same size on the same samples, "gpt"."""
    megads, _ = trained
    of_gpt = {"MODEL_FAMILY": "gpt", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "100", "SPLIT": "100,0,0"}
    path = f"1.0 {megads.folder}/project/data/file0"
    same = {"SEQ": "16", "DATA_PATH": path, "TRAIN_SAMPLES": str(STEPS * 16)}
    done = megads.train("gpt", **SMALL | of_gpt | same)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("gpt")
def test_neighbours_that_know_the_answer_bring_the_loss_below_that_of_a_gpt(trained):
    """0.176 with neighbours and 0.632 without, of a bound of 0.621 without neighbours, 0.155 with them."""
    megads, done = trained
    project = f"{megads.folder}/project"
    line = f"1 of 2 per chunk of 4 tokens, from {STEPS * 64} chunks in {project}; of {STEPS * 16} train samples\n"
    assert f"\nretro    {line}" in done.stderr + done.stdout
    assert "\nlonger " not in done.stderr + done.stdout, "the project has no more samples"
    losses = {name: megads.losses(name) for name in ("gpt", "retro")}
    assert {name: len(each) for name, each in losses.items()} == {"gpt": STEPS, "retro": STEPS}
    with_neighbors, without = (fmean(losses[name][-20:]) for name in ("retro", "gpt"))
    assert without > WITHOUT_NEIGHBORS - 0.05
    assert with_neighbors < WITHOUT_NEIGHBORS / 2


@pytest.mark.usefixtures("gpt")
def test_a_gpt_learns_to_look(trained):
    """Retro-fitting: the first step has the loss of the GPT, nearly, as looks change little yet; then it falls."""
    megads, _ = trained
    done = megads.train("fitted", **RETRO, LOAD="gpt")
    assert done.returncode == 0, done.stderr
    losses = {name: megads.losses(name) for name in ("gpt", "fitted")}
    assert losses["fitted"][0] < losses["gpt"][0] / 2
    assert fmean(losses["fitted"][-20:]) < WITHOUT_NEIGHBORS / 2


def test_a_run_that_stops_anywhere_resumes_bitwise(trained):
    megads, _ = trained
    short = RETRO | {"TRAIN_ITERS": "14", "RETRO_NUM_NEIGHBORS": "2", "LR_DECAY_ITERS": "14", "HIDDEN_DROPOUT": "0.1"}
    for run, more in (("whole", {}), ("parts", {"EXIT_INTERVAL": "5", "SAVE_INTERVAL": "100"})):
        for _ in range(3 if more else 1):
            done = megads.train(run, **short, **more)
            assert done.returncode in (0, 75), done.stderr
    rows = {
        run: [(row["iteration"], row["lm_loss"]) for row in megads.rows(run) if "lm_loss" in row]
        for run in ("whole", "parts")
    }
    assert [step for step, _ in rows["parts"]] == list(range(1, 15))
    assert rows["whole"] == rows["parts"]


def test_text_follows_the_neighbours(trained):
    """Behind a chunk of 3s comes what the neighbour has behind its chunk of 3s; without one anything."""
    megads, _ = trained
    texts = [{"prompt": "3 3 3 3", "neighbors": [f"3 3 3 3 {word} {word} {word} {word}"]} for word in (5, 8)]
    (megads.folder / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in texts))
    words = ("generate", "retro", "--input", "prompts.jsonl", "--greedy", "--max-tokens", "4")
    done = megads(*words)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"].split() for line in done.stdout.splitlines()] == [["5"] * 4, ["8"] * 4]
    closed = megads(*words, "--retro-attention-gate", "0")
    one, other = (json.loads(line)["text"] for line in closed.stdout.splitlines())
    assert one == other


@pytest.mark.parametrize(
    ("words", "settings", "told"),
    [
        (("train",), {"RETRO_PROJECT_DIR": ""}, "set RETRO_PROJECT_DIR to a folder that `megads retro build` has made"),
        (("train",), {"RETRO_PROJECT_DIR": "no"}, "a Retro project is made by `megads retro build`"),
        (("train",), {"SEQ": "32"}, "SEQ=32 (env SEQ): the samples of"),
        (("train",), {"RETRO_NUM_NEIGHBORS": "3"}, "RETRO_NUM_NEIGHBORS=3: "),
        (("train",), {"TRAIN_ITERS": "101"}, "train: 1616 samples are needed, and 1600 of"),
        (("train",), {"PP": "2"}, "PP=2"),
        (("serve", "retro"), {}, "a model of the family retro does not predict a text from its beginning alone"),
        (
            ("evaluate", "retro", "--data", "texts"),
            {},
            "`megads generate` and `megads evaluate --qa` give it neighbours",
        ),
    ],
)
def test_what_cannot_work_is_one_line(trained, words, settings, told):
    megads, _ = trained
    (megads.folder / "texts").write_text("3 3 3")
    done = megads(*words, RUN_DIR="wrong", **RETRO | settings)
    assert done.returncode == 2, done.stdout
    lines = [line for line in done.stderr.splitlines() if told in line]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    shutil.rmtree(megads.folder / "wrong", ignore_errors=True)


@pytest.fixture(scope="module")
def project(trained):
    """Return a project that `megads retro` has made."""
    megads, _ = trained
    corpus = make_corpus(megads.folder / "corpus")
    run_steps(megads.folder / "made", corpus.options(), steps_of("build"), How(workers=1), io.StringIO())
    return Project.open(megads.folder / "made")


def test_the_samples_of_a_run_are_those_that_were_queried(project, tmp_path):
    env = {"MODEL_FAMILY": "retro", "RETRO_PROJECT_DIR": str(project.folder), "DATA_CACHE_PATH": str(tmp_path)}
    run = with_project(resolve(env={**env, "EVAL_ITERS": "2", "GLOBAL_BATCH": "2"}, machine="generic")).run
    train = run.train.model_copy(update={"train_iters": 10, "train_samples": 20})
    model = run.model.model_copy(update={"vocab_size": 257})
    splits = build_splits(run.model_copy(update={"train": train, "model": model}), read_shards(run))
    find = nearest(project, functools.cache(lambda: make_embedder(project)))
    for split, queried in Queries(project).splits.items():
        samples = splits[split]
        assert len(samples) * project.chunks_per_sample == queried.num_chunks
        for number in range(len(samples)):
            first = number * project.chunks_per_sample
            chunks = queried.chunks(first, first + project.chunks_per_sample)
            text = samples[number][samples.parts.text].tolist()
            assert text[:-1] == [token for chunk in chunks for token in chunk]
            # The neighbours are near: they are the first of all that are not of the sample's own documents.
            near = find(chunks, 5)
            for place, ids in enumerate(project.neighbors(split, first, first + len(chunks))):
                left = [each for each in near[place].tolist() if each in ids]
                assert left == [each for each in ids.tolist() if each >= 0]


@pytest.fixture(scope="module")
def looks(project, trained):
    """Return a folder with a model that has read that project."""
    megads, _ = trained
    more = {"RETRO_PROJECT_DIR": str(project.folder), "EVAL_ITERS": "2", "EVAL_INTERVAL": "5", "TRAIN_ITERS": "10"}
    sizes = {"GLOBAL_BATCH": "2", "MICRO_BATCH": "1", "RETRO_NUM_NEIGHBORS": "2"}
    done = megads.train("looks", **RETRO | more | sizes)
    assert done.returncode == 0, done.stderr
    return megads


def test_a_model_is_trained_evaluated_and_looks_up_neighbours_itself(looks):
    megads = looks
    rows = megads.rows("looks")
    assert [row["iteration"] for row in rows if "valid_loss" in row][-2:] == [5, 10]
    text = "ab cd " * 8
    made = {}
    for name, words in (("with", ("--retro-project-dir", "made")), ("without", ())):
        target = megads.folder / f"{name}.jsonl"
        options = ("--prompt", text, "--output", str(target), "--max-tokens", "9", "--logprobs", "0")
        done = megads("generate", "looks", *options, *words)
        assert done.returncode == 0, done.stderr
        (made[name],) = map(json.loads, target.read_text().splitlines())
    scores = {name: [each["logprob"] for each in made[name]["logprobs"]] for name in made}
    # Of 48 bytes the sixteenth is the first that looks at neighbours, and predicts the next one.
    assert scores["with"][:16] == pytest.approx(scores["without"][:16], abs=1e-6)
    assert abs(scores["with"][16] - scores["without"][16]) > 1e-6
    other = megads("generate", "retro", "--prompt", "3 3", "--retro-project-dir", "made")
    assert other.returncode == 2
    assert "--retro-project-dir made: has chunks of 16 tokens, the model of 4" in other.stderr


def test_chats_are_learnt_without_neighbours_and_questions_are_answered_with_them(looks):
    megads = looks
    chats = [{"prompt": "abc ", "response": "de"}, {"question": "fa", "answer": "b", "ctxs": [{"text": "ab"}]}] * 8
    (megads.folder / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in chats))
    sizes = {"GLOBAL_BATCH": "4", "MICRO_BATCH": "4", "LR": "1e-2"}
    words = ("finetune", "--task", "chat", "--load", "looks", "--train-data", "chats.jsonl", "--epochs", "3")
    kept = {name: "" for name in RETRO if name not in ("EVAL_ITERS", "VAL_SPLIT")}
    done = megads(*words, "--valid-data", "chats.jsonl", **kept | sizes, RUN_DIR="chat")
    assert done.returncode == 0, done.stderr
    assert "RETRO_ATTENTION_GATE=1.0 (default) becomes 0.0" in done.stderr
    losses = [row["valid_loss"] for row in megads.rows("chat") if "valid_loss" in row]
    assert losses[-1] < losses[0] - 0.3
    question = {"question": "fa", "answer": "de", "ctxs": [{"title": "", "text": "de fa"}, {"text": "ab"}]}
    (megads.folder / "own_QA_dev.json").write_text(json.dumps([question]))
    asked = ("evaluate", "chat", "--qa", "own_QA_dev.json", "--chat-template", "plain", "--max-tokens", "3")
    for more in ((), ("--contexts", "1"), ("--retro-attention-gate", "1"), ("--retro-project-dir", "made")):
        done = megads(*asked, *more, "--json", "scores.json", "--predictions", "answers.jsonl")
        assert done.returncode == 0, done.stderr
        scores = json.loads((megads.folder / "scores.json").read_text())
        assert (scores["questions"], scores["scored"]) == (1, 1)
    again = megads("evaluate", "--qa", "own_QA_dev.json", "--predictions", "answers.jsonl", "--json", "again.json")
    assert again.returncode == 0, again.stderr
    assert json.loads((megads.folder / "again.json").read_text()) == scores
