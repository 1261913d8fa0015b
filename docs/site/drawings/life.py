"""The life of a run: the phases that ranks enter, and how it ends."""

from __future__ import annotations

from docs.site.svg import PALE, Canvas
from megads.config.run_files import CONFIG, HEARTBEAT, METRICS, OUTCOME
from megads.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_WRONG
from megads.monitor.plots.style import COLOURS
from megads.monitor.report.shares import PHASES
from megads.monitor.run_state.runs import DONE, FAILED, RUNNING, STARTING, STOPPED, WAITING

SET_UP, VALIDATION, SAVE, ROLLBACK = (name for names in PHASES.values() for name in names)
STEP = "step"
SAYS = {
    SET_UP: "groups, data, model, checkpoint",
    STEP: "forward, backward, update",
    VALIDATION: "every EVAL_INTERVAL steps",
    SAVE: "every SAVE_INTERVAL steps",
    ROLLBACK: "after a loss spike, NaN or Inf",
}


def draw() -> str:
    """Return the picture: from the command to the phases of the ranks, and from there to exit codes."""
    canvas = Canvas(760, 440, "The life of a run: from the command to its phases and its exit codes")
    canvas.text(20, 30, "The life of a run", size=16, bold=True)
    _node(canvas, 20, 56, 210, "megads train", f"checks all, writes {CONFIG}", 7)
    _node(canvas, 275, 56, 210, SET_UP, SAYS[SET_UP], 0)
    _node(canvas, 275, 156, 210, STEP, SAYS[STEP], 0)
    _node(canvas, 20, 156, 210, ROLLBACK, SAYS[ROLLBACK], 3)
    _node(canvas, 530, 112, 210, VALIDATION, SAYS[VALIDATION], 2)
    _node(canvas, 530, 200, 210, SAVE, SAYS[SAVE], 2)
    canvas.arrow((230, 86), (273, 86))
    canvas.arrow((380, 116), (380, 154))
    canvas.arrow((485, 178), (508, 178), (508, 150), (528, 150))
    canvas.arrow((528, 136), (496, 136), (496, 168), (487, 168))
    canvas.arrow((485, 194), (508, 194), (508, 222), (528, 222))
    canvas.arrow((528, 240), (496, 240), (496, 206), (487, 206))
    canvas.arrow((275, 178), (232, 178))
    canvas.arrow((232, 196), (273, 196))
    ends = (
        (EXIT_WRONG, WAITING, "a wrong setting: one line", 7),
        (EXIT_DONE, DONE, "all steps are done", 2),
        (EXIT_STOPPED, STOPPED, "saved: rerun the command", 0),
        (EXIT_FAILED, FAILED, "MAX_RESTARTS restarts it", 3),
    )
    for number, (code, state, says, colour) in enumerate(ends):
        left = 20 + 184 * number
        _node(canvas, left, 300, 168, f"exit {code}: {state}", says, colour)
    canvas.arrow((380, 216), (380, 278), (288, 278), (288, 298))
    canvas.arrow((380, 278), (472, 278), (472, 298))
    canvas.arrow((472, 278), (656, 278), (656, 298))
    canvas.arrow((20, 86), (8, 86), (8, 330), (18, 330), dashed=True)
    lines = (
        f"megads runs shows {WAITING}, {STARTING}, {RUNNING}, and {DONE}, {STOPPED} or {FAILED} afterwards.",
        f"{HEARTBEAT} names the phase while it runs, {METRICS} has the steps, {OUTCOME} how it ended.",
    )
    for number, line in enumerate(lines):
        canvas.text(20, 398 + 21 * number, line, size=13, ink=PALE)
    return canvas.dump()


def _node(canvas: Canvas, x: float, y: float, width: float, name: str, says: str, colour: int) -> None:
    canvas.box(x, y, width, 60, fill="#f6f7f9", edge=COLOURS[colour])
    canvas.text(x + width / 2, y + 25, name, at="middle", bold=True)
    canvas.text(x + width / 2, y + 46, says, size=12, at="middle", ink=PALE)
