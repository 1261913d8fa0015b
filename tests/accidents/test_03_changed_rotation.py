"""A later job paired the channels of rotary positions otherwise: 2.57 became 6.03, and exports were permuted."""

from __future__ import annotations

LENGTH = {"TRAIN_ITERS": "20", "LR": "0.01", "EVAL_INTERVAL": "0", "CKPT_KEEP": "9"}
NEIGHBOURS = """
if {"worker", "generate"} & set(sys.argv):
    import torch
    import megads.models.rope as rope
    halves = rope._rotate
    def neighbours(x, cos, sin, direction):
        rotated = halves(torch.cat([x[..., 0::2], x[..., 1::2]], -1), cos, sin, direction)
        return torch.stack(rotated.chunk(2, -1), -1).flatten(-2)
    rope._rotate = neighbours
"""


def _line(done):
    """Return the one line of a command that was refused."""
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [each for each in done.stderr.splitlines() if "function" in each or "rope_theta" in each]
    assert "Traceback" not in done.stderr
    return line


def test_a_changed_convention_is_named_and_changed_code_is_found_by_the_stored_batch(megads):
    first = megads.train("run", **LENGTH)
    assert first.returncode == 0, first.stderr
    before = sorted(each.name for each in (megads.folder / "run/checkpoints").iterdir())
    more = {**LENGTH, "TRAIN_ITERS": "22", "LR_DECAY_ITERS": "20"}
    line = _line(megads.train("run", **more, ROPE_THETA="10000"))
    assert "the checkpoint's model has rope_theta=50000.0, this run asks for 10000.0; " in line
    line = _line(megads.train("run", **more, RESET_POSITION_IDS="1"))
    assert "positions restart after an end-of-document token (RESET_POSITION_IDS) was 0, is 1; set RESET_POSIT" in line
    planted = megads.plant(NEIGHBOURS)
    line = _line(megads.train("run", **more, PYTHONPATH=planted))
    assert "iter_0000020: the model computes another function: loss " in line
    assert "conventions did not change, so code, a kernel or the hardware has changed (versions, engine and" in line
    line = _line(megads("generate", "run", "--prompt", "def", "--max-tokens", "1", PYTHONPATH=planted))
    assert "the model computes another function: loss " in line
    assert sorted(each.name for each in (megads.folder / "run/checkpoints").iterdir()) == before
    assert len(megads.losses("run")) == 20
    resumed = megads.train("run", **more)
    assert resumed.returncode == 0, resumed.stderr
    assert "function loss " in resumed.stdout + resumed.stderr
    assert "on 4 stored rows as when it was saved (to the bit)" in resumed.stdout + resumed.stderr
