"""Correct a place's rates by what was measured there, so that the next prediction is closer.

Of a run, its optimizer says what the rate of memory is, its communication that of links, and the rest of the step that
of matrix products: the corrected prediction of the same run is its measured step. Of a benchmark, each rate is what its
part found. What no correction within bounds explains stays an error, and is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from megads.errors import ConfigError
from megads.plan.flops import flops_per_token
from megads.plan.places.place import Place, place_of
from megads.plan.places.rates import Rates
from megads.plan.places.same_device import accelerator_key, are_same, is_cpu
from megads.plan.prediction import parts_of
from megads.plan.time.constants import fitted
from megads.plan.time.measured import LEAST_STEPS, Measured, MeasuredRates, MeasuredRun
from megads.plan.time.step import StepTime, step_time
from megads.text.plural import plural
from megads.text.units import exact

WORTH = 0.02
"""Of a step: a part that is smaller, as predicted or as measured, says nothing about a rate."""

CLOSE = 1e-4
"""Of the measured step: the corrected prediction is found to that."""

LARGE_FLOPS = 2.0 * 2048**3
"""Of matrix products whose rate is that of products in a model."""


@dataclass(frozen=True)
class Bounds:
    """Of the factors of one place."""

    least: float
    most: float

    def keep(self, factor: float) -> float:
        """Return ``factor`` within the bounds."""
        return min(max(factor, self.least), self.most)


DEVICE = Bounds(0.1, 2.5)
"""A device that is ten times slower than its kind is broken, and not to be planned with."""

CPU = Bounds(1e-6, 1e6)
"""Hosts' own processors differ by far more, and a rank has some of their cores."""


def anchored(place: Place | None, measured: Measured) -> Place:
    """Return ``place`` with the rates that ``measured`` gives it; their source is one line that says what changed.

    Args:
        place: None: the device that was measured, on the hosts that are usual for it.

    Raises:
        ConfigError: it was measured on another device, has too few steps, or the estimate does not cover its model.
    """
    place = _place_of(measured) if place is None else place
    mine = place.device.device_name
    if not (is_cpu(mine) and is_cpu(measured.device)) and not are_same(mine, measured.device):
        raise ConfigError(
            f"{measured.name} was measured on {measured.device or 'an unknown device'}, not on {mine} ({place.name}); "
            "anchor on a run or a benchmark of that device"
        )
    if isinstance(measured, MeasuredRates):
        return replace(place, rates=_of_benchmark(place, measured))
    if measured.steps < LEAST_STEPS:
        raise ConfigError(
            f"{measured.name} has {plural(measured.steps, 'steady step')} and an anchor needs {LEAST_STEPS} (of the "
            "full global batch, without the first); anchor on a longer run"
        )
    return replace(place, rates=_of_run(place, measured))


def _place_of(measured: Measured) -> Place:
    if is_cpu(measured.device):
        place = place_of("cpu", root=None)
        return replace(place, per_host=measured.per_host) if isinstance(measured, MeasuredRun) else place
    key = accelerator_key(measured.device)
    if not key:
        raise ConfigError(
            f"{measured.name} was measured on {measured.device or 'an unknown device'}: not in the tables"
        )
    return place_of(key, root=None)


def _of_run(place: Place, measured: MeasuredRun) -> Rates:
    before = _predicted(place, measured, place.rates)
    rates, off = _matched(place, [measured], _of_sections(before, place, measured))
    if off > max(CLOSE, measured.scatter):  # the sections explain less than the whole does
        others = [_matched(place, [measured], place.rates, with_host=with_host) for with_host in (False, True)]
        rates, off = min((rates, off), *others, key=lambda each: each[1])
    unexplained = f"; {off:.0%} of the step stay unexplained" if off > max(0.01, measured.scatter) else ""
    basis = f"{plural(measured.steps, 'step')} of {exact(measured.step_s)} +- {measured.scatter:.1%}"
    return replace(
        rates, source=f"anchored on {measured.name}: {_changes(place, measured, rates)} ({basis}{unexplained})"
    )


def _predicted(place: Place, measured: MeasuredRun, rates: Rates) -> StepTime:
    return step_time(measured.run, measured.world_size, replace(place, rates=rates))


def _of_sections(before: StepTime, place: Place, measured: MeasuredRun) -> Rates:
    """Return the rates of memory and of links that the sections of the step give; the others as they are."""
    rates, given, predicted = place.rates, measured.parts, parts_of(before)
    # In a pipeline rank 0 has the first stage and the prediction is of the slowest; who waits there communicates.
    if not given or measured.run.parallel.pipeline > 1:
        return rates

    def factor(part: str) -> float:
        took = given.get(part, 0.0)
        is_worth = took > WORTH * measured.step_s and predicted[part] > WORTH * before.step_s
        return predicted[part] / took if is_worth else 1.0

    bounds = _bounds(place)
    memory = 1.0 if bounds is CPU else factor("optimizer")
    links = factor("communication")
    return replace(rates, memory=bounds.keep(rates.memory * memory), links=bounds.keep(rates.links * links))


def _bounds(place: Place) -> Bounds:
    return CPU if is_cpu(place.device.device_name) else DEVICE


def _matched(
    place: Place, steps: Sequence[MeasuredRun], rates: Rates, *, with_host: bool = False
) -> tuple[Rates, float]:
    """Return the rates with which the predictions are the measured steps on average, and by what share they are off.

    Changed is the rate of products; that of memory too where no section gave one, and the host's ``with_host``.
    """
    bounds = _bounds(place)
    with_memory = rates.memory == place.rates.memory

    def at(factor: float) -> Rates:
        return replace(
            rates,
            matmul=bounds.keep(place.rates.matmul * factor),
            memory=bounds.keep(rates.memory * factor) if with_memory else rates.memory,
            host=bounds.keep(rates.host * factor) if with_host else rates.host,
        )

    def too_slow(factor: float) -> float:
        logs = (math.log(_predicted(place, each, at(factor)).step_s / each.step_s) for each in steps)
        return statistics.fmean(logs)

    factor = _root(too_slow, bounds)
    return at(factor), abs(math.expm1(too_slow(factor)))


def _root(falling: Callable[[float], float], bounds: Bounds) -> float:
    """Return where a function that falls with a factor is nearest to 0, by a bisection of the factor's logarithm."""
    least, most = bounds.least, bounds.most
    middle = 1.0
    for _ in range(60):
        value = falling(middle)
        if abs(value) < CLOSE:
            break
        least, most = (middle, most) if value > 0 else (least, middle)
        middle = math.sqrt(least * most)
    return middle


def _changes(place: Place, measured: MeasuredRun, rates: Rates) -> str:
    """Return ``matmul 0.58 -> 0.61, memory 0.84 -> 0.80``: shares of the device's peaks before and after."""
    before = _predicted(place, measured, place.rates)
    if _bounds(place) is CPU:
        flops = flops_per_token(measured.run).hardware * before.tokens / measured.world_size
        return f"{flops / measured.step_s / 1e9:.3g} GFLOP/s per rank, over the whole step"
    share = _tflops(measured, before) / place.peak_tflops(measured.run.train.dtype)
    was, now = place.rates, rates
    pairs = {
        "matmul": (share, share * now.matmul / was.matmul),
        "memory": (fitted().memory * was.memory, fitted().memory * now.memory),
        "links": (fitted().links * was.links, fitted().links * now.links),
    }
    return _arrows(pairs)


def _arrows(pairs: dict[str, tuple[float, float]]) -> str:
    shown = [f"{name} {old:.2f} -> {new:.2f}" for name, (old, new) in pairs.items() if f"{old:.2f}" != f"{new:.2f}"]
    return ", ".join(shown) or "nothing to correct"


def _tflops(measured: MeasuredRun, before: StepTime) -> float:
    """Return the rate at which the prediction has products and attention computed, in TFLOP/s per rank."""
    compute = sum(line.seconds for line in before.lines if line.kind == "compute")
    flops = flops_per_token(measured.run).hardware * before.tokens / measured.world_size
    return flops / compute / 1e12 if compute else 0.0


def _of_benchmark(place: Place, measured: MeasuredRates) -> Rates:
    if is_cpu(measured.device):
        raise ConfigError(f"{measured.name} is a benchmark of a CPU, which predicts no run; anchor on a run")
    was, found, by = place.rates, place.rates, fitted()
    matmul = place.device.matmul or by.matmul(place.device.device_name)
    if measured.memory_gb_s:
        found = replace(found, memory=DEVICE.keep(measured.memory_gb_s / (by.memory * place.device.memory_gb_s)))
    if measured.links_gb_s:
        ratios = [rate / (by.links * place.level(ranks).gb_s) for ranks, rate in measured.links_gb_s.items()]
        found = replace(found, links=DEVICE.keep(statistics.geometric_mean(ratios)))
    basis = "its products, memory and links"
    if measured.steps:
        found, _ = _matched(place, measured.steps, found)
        worst = max(abs(_predicted(place, each, found).step_s / each.step_s - 1) for each in measured.steps)
        basis = f"{plural(len(measured.steps), 'model')} that it trained, now within {worst:.0%}"
    elif large := [rate / place.peak_tflops(dtype) for dtype, flops, rate in measured.products if flops >= LARGE_FLOPS]:
        found = replace(found, matmul=DEVICE.keep(statistics.median(large) / matmul))
    elif found == was:
        raise ConfigError(f"{measured.name} has no rates: no part of matmul, memory, collectives or training is done")
    pairs = {
        "matmul": (matmul * was.matmul, matmul * found.matmul),
        "memory": (by.memory * was.memory, by.memory * found.memory),
        "links": (by.links * was.links, by.links * found.links),
    }
    return replace(found, source=f"anchored on {measured.name}: {_arrows(pairs)} ({basis})")
