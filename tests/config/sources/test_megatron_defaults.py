"""What a command of Megatron-LM must say."""

import pytest

from megads.config.sources.flags import split_flags
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError

MODEL = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-4"),
)


def resolved(*words, preset=None, env=None, machine="generic"):
    pairs, rest = split_flags(words, {})
    assert not rest
    return resolve(preset, env=env or {}, flags=pairs, machine=machine)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            MODEL[:2],
            "--hidden-size, --num-attention-heads, --seq-length, --micro-batch-size, --lr and --train-iters",
        ),
        (MODEL, "--train-iters is missing: Megatron-LM has no default for it; pass it, or name a --preset"),
    ],
)
def test_what_megatron_demands_is_demanded(words, told):
    with pytest.raises(ConfigError) as caught:
        resolved(*words)
    assert str(caught.value).startswith(told)
    given = {"HIDDEN": "64", "HEADS": "4", "SEQ": "32", "MICRO_BATCH": "2", "LR": "1", "TRAIN_TOKENS": "640"}
    assert resolved(*words, env=given).run.defaults == "megatron"
