"""``megads evaluate`` by command lines of Megatron-LM, on several ranks, and on the tokens of a training."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    from tests.e2e.conftest import Command

    command = Command(tmp_path_factory.mktemp("evaluate"), cache)
    done = command.train("run", TRAIN_ITERS="2", EVAL_INTERVAL="0", SAVE_INTERVAL="2")
    assert done.returncode == 0, done.stderr
    text = "the quick brown fox jumps over the lazy dog , and then it jumps again @-@ over it ."
    words = text.split(" ")
    (command.folder / "wiki.txt").write_text(" ".join(words * 8))
    texts = [{"text": " ".join(words[: 3 + place])} for place in range(12)]
    (command.folder / "lambada.json").write_text("".join(json.dumps(each) + "\n" for each in texts))
    demo = next(cache.glob("demo-*/tokenizer.json"))
    model = json.loads(demo.read_text())["model"]
    (command.folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    (command.folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return command


def _numbers(command, line, **settings):
    done = command("evaluate", *line.split(), "--json", "numbers.jsonl", **settings)
    assert done.returncode == 0, done.stderr
    lines = (command.folder / "numbers.jsonl").read_text().splitlines()
    found = [json.loads(each) for each in lines]
    return [{key: value for key, value in each.items() if key not in ("task", "data")} for each in found], done.stderr


SHARED = (
    "--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} --seq-length 32 "
    "--max-position-embeddings 32 --vocab-file vocab.json --tokenizer-type GPT2BPETokenizer --merge-file merges.txt "
    "--load run --micro-batch-size 8 --log-interval 10 --no-load-optim --no-load-rng"
)


def test_the_command_lines_of_the_family(run):
    model = json.loads((run.folder / "run/checkpoints/iter_0000002/manifest.json").read_text())["model"]
    shared = SHARED.format(layers=model["num_layers"], hidden=model["hidden_size"], heads=model["num_heads"])
    plain, _ = _numbers(
        run, "run --task wikitext103:wiki.txt,lambada:lambada.json --overlapping-eval 8 --strict-lambada"
    )
    line = f"--task WIKITEXT103 --valid-data wiki.txt {shared} --overlapping-eval 8 --checkpoint-activations"
    found, said = _numbers(run, line)
    assert found == [pytest.approx(plain[0], rel=1e-6)]
    assert (
        "megads: --max-position-embeddings, --log-interval, --no-load-optim, --no-load-rng and "
        "--checkpoint-activations have no effect here\n"
    ) in said
    found, said = _numbers(run, f"--task LAMBADA --valid-data lambada.json {shared} --strict-lambada", SP="2", DP="1")
    assert found == [pytest.approx(plain[1], rel=1e-6)]
    assert "TP=1 PP=1 SP=2 x 1" in said
