"""The speed of steps whose samples are of the length that their stage says."""

from __future__ import annotations

from dataclasses import replace

from megads.config.data_stages.table import StageTable
from megads.config.schema import RunConfig
from megads.monitor.throughput import Speed, SpeedOf
from megads.plan.flops import flops_per_token


class StageSpeed:
    """Turns steps into :class:`Speed`: a token of a longer sample takes more operations."""

    def __init__(self, run: RunConfig, num_devices: int, peak_tflops: float | None):
        self._run, self._table = run, StageTable.of(run)
        self._of_length: dict[int, SpeedOf] = {}
        self._now = SpeedOf(flops_per_token(run), num_devices, peak_tflops)

    def __call__(self, step_tokens: float, step_time_s: float) -> Speed:
        """Return the speed of a step like the last one, of ``step_tokens`` tokens over all ranks."""
        return self._now(step_tokens, step_time_s)

    def of_step(self, consumed: int, batch: int, step_time_s: float) -> Speed:
        """Return the speed of the step of ``batch`` samples that begins when ``consumed`` samples are used."""
        if self._table is None:
            return self._now(batch * self._run.sample_tokens, step_time_s)
        length = self._table.at(consumed).seq
        if length not in self._of_length:
            model = self._run.model.model_copy(update={"seq_length": length})
            flops = flops_per_token(self._run.model_copy(update={"model": model}))
            self._of_length[length] = replace(self._now, flops=flops)
        self._now = self._of_length[length]
        return self._now(batch * length, step_time_s)
