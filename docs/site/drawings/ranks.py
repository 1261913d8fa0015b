"""The grid of ranks, and the groups along each axis: what ``megads.comm.grid.Grid`` says."""

from __future__ import annotations

from docs.site.svg import EDGE, PALE, Canvas
from megads.comm.grid import AXES, Grid
from megads.monitor.plots.style import COLOURS

GRID = Grid(pipe=2, data=2, seq=2, tensor=2)
NAMES = {"pipe": "PP", "data": "DP", "seq": "SP", "tensor": "TP"}
SIDE, GAP = 46, 6  # of a rank's box, and between boxes, in pixels


def draw() -> str:
    """Return the picture: stages next to each other, replicas below each other, a colour for each stage."""
    degrees = " ".join(f"{NAMES[axis]}={GRID.degree(axis)}" for axis in AXES)
    canvas = Canvas(760, 526, f"The {GRID.world_size} ranks of {degrees}, and their groups")
    canvas.text(20, 30, f"{degrees}: {GRID.world_size} ranks", size=16, bold=True)
    block = GRID.tensor * (SIDE + GAP) + GAP, GRID.seq * (SIDE + GAP) + GAP
    for rank in range(GRID.world_size):
        at = GRID.coordinate(rank)
        left = 110 + at["pipe"] * (block[0] + 40)
        top = 76 + at["data"] * (block[1] + 24)
        if at["seq"] == at["tensor"] == 0:
            canvas.box(left, top, *block, fill="#f6f7f9")
        if at["data"] == at["seq"] == at["tensor"] == 0:
            canvas.text(left + block[0] / 2, top - 12, f"stage {at['pipe']} (pipe)", at="middle", ink=PALE)
        if at["pipe"] == at["seq"] == at["tensor"] == 0:
            canvas.text(96, top + block[1] / 2 + 5, f"data {at['data']}", at="end", ink=PALE)
        x, y = left + GAP + at["tensor"] * (SIDE + GAP), top + GAP + at["seq"] * (SIDE + GAP)
        canvas.box(x, y, SIDE, SIDE, fill=COLOURS[at["pipe"]], edge=COLOURS[at["pipe"]])
        canvas.text(x + SIDE / 2, y + SIDE / 2 + 6, str(rank), size=16, at="middle", ink="#ffffff", bold=True)
    right = 110 + GRID.pipe * (block[0] + 40)
    for line, words in enumerate(
        ("In a block: rows are", "sequence ranks, columns", "tensor ranks, which are", "neighbours on a host.")
    ):
        canvas.text(right, 100 + 21 * line, words, ink=PALE)
    canvas.text(right, 206, "rank = ((pipe * DATA + data)", size=13)
    canvas.text(right, 226, "           * SEQ + seq) * TENSOR + tensor", size=13)
    _groups(canvas, 76 + GRID.data * (block[1] + 24) + 20)
    return canvas.dump()


def _groups(canvas: Canvas, top: float) -> None:
    """List the groups along each axis, and along data x seq."""
    canvas.box(20, top - 18, 720, 160, edge=EDGE)
    uses = {
        ("tensor",): "split matrices",
        ("seq",): "exchange heads for tokens",
        ("data", "seq"): "average gradients, share ZeRO's states",
        ("pipe",): "hand activations on",
    }
    for line, (along, use) in enumerate(uses.items()):
        name = " x ".join(NAMES[axis] for axis in along)
        groups = [f"{{{','.join(map(str, group))}}}" for group in GRID.groups(*along)]
        shown = groups if len(groups) <= 4 else [*groups[:4], f"... {len(groups)} groups"]
        y = top + 8 + 36 * line
        canvas.text(36, y, name, bold=True)
        canvas.text(108, y, use, ink=PALE)
        canvas.text(108, y + 17, " ".join(shown), size=12)
