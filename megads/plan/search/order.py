"""In which order candidates are looked at: a quick time of each, of which nothing is shown.

Tens of thousands of candidates are ordered by a few divisions each; what is proposed is timed line by line
(``megads.plan.time.step``) and its memory is that of the launch (``megads.plan.memory``).
"""

from __future__ import annotations

from functools import cache

from megads.config.pipeline.idle import idle_share
from megads.config.schema import RunConfig
from megads.families.decoder import spec_of
from megads.plan.flops import flops_per_token, products
from megads.plan.memory import count_parameters
from megads.plan.search.ask import Ask
from megads.plan.search.points import Degrees, Point

EFFICIENCY, LINKS, OVERLAP = 0.6, 0.7, 0.7
HALF_TOKENS, HALF_WIDTH = 400.0, 250.0
"""Tokens of a micro-batch, and width per tensor rank, with which products reach half of that."""

KERNEL_S, KERNELS = 3e-6, 30
BYTES = 2.0


class Order:
    """Quick times of the points of an ask."""

    def __init__(self, ask: Ask, run: RunConfig):
        model = run.model
        self.place, self.world_size = ask.place, ask.world_size
        self.peak = ask.place.peak_tflops(run.train.dtype) * 1e12 * EFFICIENCY
        self.memory_rate = ask.place.device.memory_gb_s * 1e9 * 0.8
        self.layers, self.hidden = spec_of(model).num_layers, model.hidden_size
        self.length = max(model.seq_length, model.decoder_seq_length)
        self.flops = flops_per_token(run).model
        self.parameters = count_parameters(model)
        parts = products(model, self.length, causal=True)
        self.core_share = parts.core / (3 * parts.layer)
        self._level = cache(lambda ranks: ask.place.level(ranks).gb_s * 1e9 * LINKS)
        self._idle = cache(lambda *of: float(idle_share(*of)))

    def seconds(self, point: Point) -> float:
        """Return about how long one token's share of a step takes: the seconds of a step by its samples."""
        degrees, steps = point.degrees, point.steps or 1
        tensor, pipeline, sequence, data = degrees
        tokens = point.micro * self.length / sequence  # of a rank's micro-batch
        again = {"none": 0.0, "selective": self.core_share, "full": 1 / 3}[point.recompute]
        share = 1 / (tensor * pipeline)
        slow = 1 + HALF_TOKENS / tokens + HALF_WIDTH * tensor / self.hidden
        compute = self.flops * tokens * share * (1 + again) * slow / self.peak
        of_layers = self.layers / pipeline
        gaps = of_layers * KERNELS * KERNEL_S
        state = tokens * self.hidden * BYTES
        sent = 0.0
        if tensor > 1:
            sent += of_layers * (8 + 4 * again) * state * (1 - 1 / tensor) / self._level(tensor)
        if sequence > 1:
            sent += of_layers * 8 * state / tensor * (1 - 1 / sequence) / self._level(tensor * sequence)
        if pipeline > 1:
            sent += 2 * max(1, point.chunks) * state / tensor / self._level(self.world_size)
        one = max(compute, 1e-12) + gaps + sent
        idle = 0.0
        if pipeline > 1:
            schedule = point.schedule if point.schedule != "auto" else "interleaved" if point.chunks > 1 else "1f1b"
            idle = self._idle(schedule, pipeline, max(1, point.chunks), steps)
        step = steps * one / (1 - idle) + self._data(point, compute, share, degrees)
        return step / (point.micro * steps * data)

    def _data(self, point: Point, compute: float, share: float, degrees: Degrees) -> float:
        """Return what sums of gradients and gathers of weights take, not hidden, and the update."""
        sharers, own = degrees.data * degrees.sequence, self.parameters * share
        update = own * 30 / (sharers if point.zero else 1) / self.memory_rate
        if sharers == 1:
            return update
        rate = self._level(degrees.tensor * sharers)
        steps = point.steps or 1
        sent = {2: 4.0 * steps + 2, 3: 8.0 * steps}.get(point.zero, 6.0)
        seconds = own * sent * (1 - 1 / sharers) / rate
        hidden = OVERLAP * compute * (steps if point.zero > 1 else 1)
        return update + max(0.1 * seconds, seconds - hidden)
