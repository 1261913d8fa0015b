"""The table of ``FLOPS_PROFILE``: what every module of one step computed, next to the formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.comm.groups import Groups
from megads.config.estimate.flops import products
from megads.config.schema import RunConfig
from megads.config.stages import stage_steps
from megads.text.units import count
from megads.train.profile.flop_count import Counted

NOTE = """\
Counted: matrix products, on this rank, of all micro-batches of the step. Attention kernels count both products
over the full square, in the backward pass twice that, whatever they leave out or repeat inside. The formula gives
this rank an even share of its stage. Not seen: kernels of the flash-attn package. Torch's checkpoint function
leaves out the last product of what it computes again, when nobody needs the result.
Times are the host's, with the device waited for at every module and each operator looked at: compare them with one
another, not with a step that nobody counts.
"""


@dataclass(frozen=True)
class Expected:
    """FLOPs that the formula gives this rank for one step."""

    forward: float
    again: float

    @property
    def backward(self) -> float:
        """Twice the forward pass."""
        return 2 * self.forward


def expected(run: RunConfig, groups: Groups, batch: int) -> Expected:
    """Return what the formula of ``megads.config.estimate.flops`` gives this rank for a step of ``batch`` samples."""
    model, given = run.model, run.recompute
    parts = products(model, model.seq_length)
    steps = stage_steps(run)[groups.pipe_rank]
    layers = sum(0 < step <= model.num_layers for step in steps)
    head = parts.logits if model.num_layers + 1 in steps else 0
    again = 0
    if given.granularity == "selective":
        again = layers * parts.core
    elif given.granularity == "full":
        again = (min(given.num_layers, layers) if given.method == "block" else layers) * parts.layer
    share = batch * model.seq_length / groups.data_size / groups.seq_size / groups.tensor_size
    return Expected(2 * share * (layers * parts.layer + head), 2 * share * again)


def profile_text(found: Counted, formula: Expected, depth: int, title: str) -> str:
    """Return the table.

    Args:
        found: what ran.
        formula: what should have.
        depth: levels of modules that are shown; -1: all.
        title: its first line.
    """
    total = found.forward + found.again + found.backward
    lines = [title, "", f"{'':10}{'counted':>16}{'formula':>16}  difference"]
    rows = (
        ("forward", found.forward, formula.forward),
        ("again", found.again, formula.again),
        ("backward", found.backward, formula.backward),
        ("all", total, formula.forward + formula.again + formula.backward),
    )
    for name, ran, should in rows:
        difference = f"{(ran - should) / should:+.2%}" if should else ("none" if not ran else "+")
        lines.append(f"{name:10}{ran:16.0f}{should:16.0f}  {difference}")
    width = max([len(_shown(name)) for name in found.modules] + [6])
    lines += ["", f"{'module':{width}} {'calls':>6} {'forward':>9} {'share':>6} {'ms':>9} {'FLOP/s':>8}"]
    lines += list(_modules(found, depth, width))
    return "\n".join([*lines, "", NOTE])


def _shown(name: str) -> str:
    if not name:
        return "model"
    parts = name.split(".")
    # The dictionary that holds the layers never runs, so it has no line of its own.
    return "  " * len(parts) + ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


def _modules(found: Counted, depth: int, width: int) -> Iterator[str]:
    forward = found.forward + found.again
    for name, each in found.modules.items():
        if (depth >= 0 and bool(name) + name.count(".") > depth) or not (each.calls or each.flops):
            continue
        share = each.flops / forward if forward else 0.0
        rate = count(each.flops / each.seconds) if each.seconds else "-"
        yield (
            f"{_shown(name):{width}} {each.calls:6} {count(each.flops):>9} {share:6.1%} "
            f"{1000 * each.seconds:9.3f} {rate:>8}"
        )
