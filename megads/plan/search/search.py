"""The best layouts of a model on so many hosts, and why the others lose.

Degrees are sorted out by the rules, candidates are ordered by a quick time, and the first of them get the memory and
the time of the launch. What is proposed is derived and checked as a launch would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from megads.config.rules.advice import Problem, put
from megads.config.rules.checks import problem_of
from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved
from megads.config.tree import env_name, value_of
from megads.errors import ConfigError, MegadsError
from megads.plan.memory import GIB, Memory
from megads.plan.places.place import Place
from megads.plan.search import ask as names
from megads.plan.search.ask import Ask
from megads.plan.search.fits import fullest, fullest_of_all, of_first_stage
from megads.plan.search.order import Order
from megads.plan.search.points import (
    MOST_TENSOR,
    Degrees,
    Point,
    degrees_of,
    needs_more,
    points_of,
    smallest_of,
    smallest_recomputes,
)
from megads.plan.time.step import StepTime

MOST_TIMED, MOST_PER_LAYOUT = 320, 8
"""Candidates that are timed line by line: in all, and of one layout."""

MOST_LAYOUTS = 120
"""Layouts that are derived."""

WORTH = 0.01
"""Share of the speed that a higher ZeRO stage must gain."""

MOST_SPLIT = 16
"""Layouts, of those that split the model most, of which one fits if any does."""

Kind = Literal["fits", "rule", "batch", "memory", "slower", "untimed"]
OF_BATCHES = ("ranks", "data", "batch", "length", "_batch", "_ramp", "hpz", "_skips")
"""Rules that depend on the data-parallel degree, not on one axis alone."""


@dataclass(frozen=True)
class Candidate:
    """A layout that was looked at.

    Attributes:
        settings: by environment variable, what is searched.
        run: derived; None: it cannot be.
        memory: of the fullest stage.
        stage: the fullest.
        time: of a step; None: not timed.
        problem: why it is not proposed; empty: it is.
        kind: of the problem.
        quick_s: orders candidates that are not timed.
    """

    settings: dict[str, str]
    run: RunConfig | None = None
    memory: Memory | None = None
    stage: int = 0
    time: StepTime | None = None
    problem: str = ""
    kind: Kind = "fits"
    quick_s: float = 0.0

    def timed(self) -> tuple[RunConfig, Memory, StepTime]:
        """Return run, memory and time of a candidate that has all of them.

        Raises:
            ValueError: it was not timed.
        """
        if self.run is None or self.memory is None or self.time is None:
            raise ValueError(f"not timed: {self.settings}")
        return self.run, self.memory, self.time


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        best: of every layout the fastest that fits, the fastest first.
        losers: one per layout, or per degree that no layout can have.
        looked: candidates that were ordered.
        timed: those that were timed line by line.
    """

    ask: Ask
    best: list[Candidate] = field(default_factory=list)
    losers: list[Candidate] = field(default_factory=list)
    looked: int = 0
    timed: int = 0


def search(
    resolved: Resolved,
    place: Place,
    num_hosts: int,
    *,
    max_memory: float = 0.9,
    ranks_per_host: int = 0,
    global_batch: int = 0,
    top: int = 5,
) -> Found:
    """Return the best layouts of ``resolved`` on ``num_hosts`` hosts of ``place``.

    Args:
        resolved: the settings before any value is derived; those that the user gives are held.
        max_memory: share of a device's memory that a run may take.
        ranks_per_host: 0: all devices of a host.
        global_batch: samples of a step; 0: that of the settings.
        top: layouts that are proposed at most.

    Raises:
        ConfigError: no layout can be derived from the settings.
    """
    ask = Ask(resolved, place, num_hosts, ranks_per_host or place.per_host, max_memory, global_batch)
    return search_for(ask, top)


def search_for(ask: Ask, top: int = 5, most_timed: int = MOST_TIMED) -> Found:
    """Return what :func:`search` does."""
    found = Found(ask)
    probe = _probe(ask)
    layouts = list(_layouts(ask, found.losers))
    order = Order(ask, probe)
    ordered = sorted(
        ((order.seconds(point), point) for degrees in layouts for point in points_of(ask, probe, degrees)),
        key=lambda each: each[0],
    )
    looks = Looks(ask, most_timed)
    for quick_s, point in ordered:
        looks.look(point, quick_s)
        if looks.is_done:
            break
    return _sorted_out(found, looks, ordered, top)


def has_fit(ask: Ask) -> bool:
    """Return whether some layout fits; those that split the model most are looked at first."""
    try:
        probe = _probe(ask)
        layouts = sorted(_layouts(ask, []), key=lambda each: each.data)
    except ConfigError:
        return False
    looks = Looks(ask)
    for degrees in layouts[:MOST_SPLIT]:
        point = next(points_of(ask, probe, degrees), None)
        if point is not None and looks.fits(point):
            return True
    return False


def _probe(ask: Ask) -> RunConfig:
    """Return the settings derived on some layout, for the sizes of the model.

    Raises:
        ConfigError: they cannot be derived on any.
    """
    layout = ask.derived(_alone(ask, {}))
    if layout.problem is not None and layout.problem.rule in ("ranks", "head width", "length"):
        raise ConfigError(layout.problem.text)
    return layout.run


def _alone(ask: Ask, degrees: dict[str, int]) -> dict[str, Any]:
    """Return a change that tries degrees of some axes: the others 1, and a batch that fits."""
    change: dict[str, Any] = {name: 1 for name in (names.TP, names.PP, names.SP)} | degrees
    change = {name: value for name, value in change.items() if name in degrees or not ask.holds(name)}
    change |= {names.DP: 0, names.BATCH: 0, names.STEPS: 1, names.SCATTER: False, names.CHUNKS: 0, names.PER_CHUNK: 0}
    change[names.SCHEDULE] = "auto"
    return change


def _layouts(ask: Ask, losers: list[Candidate]) -> Iterator[Degrees]:
    """Yield the degrees that may be possible; add to ``losers`` those of one axis that are not."""
    axes = []
    for name in (names.TP, names.PP, names.SP):
        most = MOST_TENSOR if name == names.TP else ask.world_size
        axes.append([each for each in degrees_of(ask, name, most) if not _is_lost(ask, name, each, losers)])
    wrong: dict[int, str] = {}
    for tensor in axes[0]:
        for pipeline in axes[1]:
            for sequence in axes[2]:
                used = tensor * pipeline * sequence
                if ask.world_size % used:
                    continue
                data = ask.world_size // used
                if ask.holds(names.DP) and ask.value(names.DP) not in (0, data):
                    continue
                if problem := _wrong_batch(ask, data):
                    wrong.setdefault(data, problem)
                    continue
                yield Degrees(tensor, pipeline, sequence, data)
    losers += [Candidate({"DP": str(data)}, problem=problem, kind="batch") for data, problem in sorted(wrong.items())]


def _is_lost(ask: Ask, name: str, degree: int, losers: list[Candidate]) -> bool:
    """Return whether no layout can have ``degree`` on one axis, and add why to ``losers``."""
    if degree == 1 and not ask.holds(name):
        return False
    try:
        problem = ask.derived(_alone(ask, {name: degree})).problem
    except MegadsError as error:
        problem = Problem(str(error))
    if problem is None or problem.rule in OF_BATCHES:
        return False
    if ask.holds(name):
        raise ConfigError(f"{problem.text}; it is given, so that no other is tried")
    losers.append(Candidate({env_name(name): str(degree)}, problem=problem.text, kind="rule"))
    return True


def _wrong_batch(ask: Ask, data: int) -> str:
    """Return why the batch cannot be split over ``data`` ranks; empty: it can."""
    if not ask.batch:
        return ""
    micro = ask.value(names.MICRO) if ask.holds(names.MICRO) else 1
    unit = micro * (ask.value(names.STEPS) if ask.holds(names.STEPS) else 1)
    if ask.batch % (unit * data) or (ask.holds(names.STEPS) and ask.batch != unit * data):
        parts = [*(["MICRO_BATCH"] if ask.holds(names.MICRO) else []), *(["GRAD_ACC_STEPS"] if unit != micro else [])]
        product = " x ".join([*parts, "DP"])
        return f"GLOBAL_BATCH={ask.batch} is not a multiple of {product} = {unit * data}"
    return ""


@dataclass
class Layouts:
    """What is known of one layout while its candidates are looked at."""

    scatter: bool = False
    run: RunConfig | None = None
    lost: Candidate | None = None
    full: list[Point] = field(default_factory=list)  # that did not fit
    # by ZeRO stage and recomputation, of the smallest micro-batch under 1F1B: what stays, and what micro-batches keep
    least: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    timed: list[tuple[Candidate, Point]] = field(default_factory=list)


class Looks:
    """Looks at candidates in their order, as deep as they promise."""

    def __init__(self, ask: Ask, most_timed: int = MOST_TIMED):
        self.ask, self.most_timed = ask, most_timed
        self.layouts: dict[Degrees, Layouts] = {}
        self.timed = 0

    @property
    def is_done(self) -> bool:
        """Return whether enough candidates were looked at."""
        with_a_fit = sum(bool(each.timed) for each in self.layouts.values())
        return self.timed >= self.most_timed or (len(self.layouts) >= MOST_LAYOUTS and with_a_fit > 0)

    def look(self, point: Point, quick_s: float) -> None:
        """Look at one candidate."""
        known = self.layouts.get(point.degrees)
        if known is None:
            known = self.layouts[point.degrees] = self._begin(point, quick_s)
        if known.lost or known.run is None or len(known.timed) >= MOST_PER_LAYOUT:
            return
        if self._least(known, point) > self.ask.limit_bytes or any(needs_more(point, other) for other in known.full):
            return
        run = _with(self.ask, known, point)
        memory, stage = fullest(run, self.ask.world_size)
        if memory.total > self.ask.limit_bytes:
            known.full.append(point)
            return
        if problem_of(run, self.ask.world_size) is not None:
            return
        self.timed += 1
        settings = settings_of(self.ask, point, scatter=known.scatter)
        time = self.ask.seconds(run)
        known.timed.append((Candidate(settings, run, memory, stage, time, quick_s=quick_s), point))

    def _least(self, known: Layouts, point: Point) -> int:
        """Return what a candidate needs at least, for any schedule: activations grow with the micro-batch."""
        smallest = smallest_of(self.ask, point)
        key = (point.zero, point.recompute)
        if key not in known.least:
            run = _with(self.ask, known, smallest._replace(zero=point.zero, recompute=point.recompute))
            memory = of_first_stage(run, self.ask.world_size)
            moves = memory.activations + memory.logits
            known.least[key] = memory.total - moves, moves
        stays, moves = known.least[key]
        in_flight = min(1.0, point.steps / (2 * point.degrees.pipeline)) if point.steps else 1.0
        return stays + int(moves * point.micro / smallest.micro * in_flight)

    def fits(self, point: Point) -> bool:
        """Return whether the smallest candidate of a layout fits."""
        known = self._begin(point, 0.0)
        return known.lost is None and known.run is not None

    def _begin(self, point: Point, quick_s: float) -> Layouts:
        """Derive a layout, and look whether its smallest candidate fits."""
        known = Layouts()
        smallest = smallest_of(self.ask, point)
        problem = None
        for scatter in (True, False) if point.degrees.tensor > 1 else (False,):
            if self.ask.holds(names.SCATTER) and scatter != self.ask.value(names.SCATTER):
                continue
            known.scatter = scatter
            for zero in range(smallest.zero, -1, -1):
                tried = smallest._replace(zero=zero)
                try:
                    layout = self.ask.derived(tried.change(self.ask, scatter=scatter))
                except MegadsError as error:
                    problem = str(error)
                    continue
                problem = layout.problem.text if layout.problem else None
                if problem is None or self.ask.holds(names.ZERO):
                    break
            if problem is None:
                known.run, smallest = layout.run, tried
                break
        if problem is not None or known.run is None:
            settings = settings_of(self.ask, smallest, scatter=known.scatter)
            known.lost = Candidate(settings, problem=problem or "", kind="rule", quick_s=quick_s)
            return known
        least = [
            self._untimed(known, smallest._replace(recompute=each)) for each in smallest_recomputes(self.ask, smallest)
        ]
        found = min(least, key=lambda each: each.memory.total if each.memory else 0)
        known.lost = replace(found, quick_s=quick_s) if found.problem else None
        return known

    def _untimed(self, known: Layouts, point: Point) -> Candidate:
        """Return a candidate with its memory, and the problem where that is too much."""
        run = _with(self.ask, known, point)
        memory, stage = fullest(run, self.ask.world_size)
        text = too_much(memory, stage, self.ask) if memory.total > self.ask.limit_bytes else ""
        return Candidate(settings_of(self.ask, point, scatter=known.scatter), run, memory, stage, None, text, "memory")


def _with(ask: Ask, known: Layouts, point: Point) -> RunConfig:
    """Return the run of a candidate."""
    assert known.run is not None
    change = point.change(ask, scatter=known.scatter)
    if not ask.batch:
        return ask.derived(change).run
    return put(known.run, {**change, names.STEPS: point.steps, names.MICRO: point.micro})


def settings_of(ask: Ask, point: Point, *, scatter: bool) -> dict[str, str]:
    """Return the environment variables of a candidate; those of the user are not among them."""
    change = point.change(ask, scatter=scatter)
    change.pop(names.STEPS, None)
    usual = (names.TP, names.PP, names.SP, names.ZERO, names.MICRO, names.BATCH, names.RECOMPUTE)
    found = {}
    for name in (*usual, names.SCATTER, names.SCHEDULE, names.CHUNKS, names.PER_CHUNK):
        if name in change and (name in usual or change[name] != value_of(ask.resolved.run, name)):
            value = change[name]
            found[env_name(name)] = str(int(value)) if isinstance(value, bool) else str(value)
    return found


def _sorted_out(found: Found, looks: Looks, ordered: list[tuple[float, Point]], top: int) -> Found:
    """Return what was found: layouts that fit by their speed, the others with what is wrong."""
    timed: list[tuple[Candidate, Point]] = []
    for known in looks.layouts.values():
        if known.timed:
            timed.append(_fastest(known.timed))
        elif known.lost:
            found.losers.append(known.lost)
    timed.sort(key=lambda each: -_speed(each[0]))
    best: list[Candidate] = []
    for candidate, point in timed:
        if len(best) >= top:
            found.losers.append(candidate)
            continue
        checked = _checked(looks, candidate, point)
        (found.losers if checked.problem else best).append(checked)
    first = best[0] if best else None
    late: dict[Degrees, tuple[float, Point]] = {}
    for quick_s, point in ordered:
        if point.degrees not in looks.layouts:
            late.setdefault(point.degrees, (quick_s, point))
    losers = list(found.losers)
    for quick_s, point in late.values():
        settings = settings_of(looks.ask, point, scatter=point.degrees.tensor > 1)
        ratio = quick_s / first.quick_s if first else 0.0
        text = f"about {ratio:.1f} times as long, not timed line by line"
        losers.append(Candidate(settings, problem=text, kind="untimed", quick_s=quick_s))
    return Found(looks.ask, best, losers, len(ordered), looks.timed)


def _checked(looks: Looks, candidate: Candidate, point: Point) -> Candidate:
    """Return a candidate as a launch would derive it, with the memory of all stages, or with what is wrong with it."""
    ask, known = looks.ask, looks.layouts[point.degrees]
    layout = ask.derived(point.change(ask, scatter=known.scatter))
    if layout.problem is not None:
        return replace(candidate, run=layout.run, problem=layout.problem.text, kind="rule")
    memory, stage = fullest_of_all(layout.run, ask.world_size)
    if memory.total > ask.limit_bytes:
        text = too_much(memory, stage, ask)
        return replace(candidate, run=layout.run, memory=memory, stage=stage, problem=text, kind="memory")
    return replace(candidate, run=layout.run, memory=memory, stage=stage)


def too_much(memory: Memory, stage: int, ask: Ask) -> str:
    """Return by how much a stage is too large."""
    over = (memory.total - ask.limit_bytes) / GIB
    return f"stage {stage} needs {memory.total / GIB:.1f} GiB, {over:.1f} too many"


def _fastest(timed: list[tuple[Candidate, Point]]) -> tuple[Candidate, Point]:
    """Return the fastest candidate of a layout; a higher ZeRO stage must gain a percent to be worth its risk."""
    most = max(_speed(candidate) for candidate, _ in timed)
    close = [each for each in timed if _speed(each[0]) >= (1 - WORTH) * most]
    return min(close, key=lambda each: (each[1].zero, -_speed(each[0])))


def _speed(candidate: Candidate) -> float:
    return candidate.timed()[2].tokens_per_s
