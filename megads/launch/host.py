"""What this host can not do, told before a rank finds out. Without torch."""

from __future__ import annotations

from collections.abc import Mapping

from megads.cluster.machine import cpu_computes_fp16, visible_accelerators
from megads.config.schema import RunConfig
from megads.device.names import wanted_backend, wanted_device
from megads.device.peaks import given_peak
from megads.errors import DeviceError


def check_host(run: RunConfig, env: Mapping[str, str]) -> None:
    """Refuse a device that is not here, and settings that the device can not serve.

    Args:
        run: the derived settings.
        env: for ``MEGADS_DEVICE``, ``MEGADS_BACKEND``, ``MEGADS_PEAK_TFLOPS`` and the vendors' masks.

    Raises:
        ConfigError: a name that is not known, a backend of another device, a peak that is no number.
        DeviceError: the device asked for is not visible, or lacks the precision or the attention.
    """
    visible = [*visible_accelerators(env), "cpu"]
    device = wanted_device(env) or visible[0]
    if device not in visible:
        raise DeviceError(
            f"MEGADS_DEVICE={device}: no such device is visible on this host; it shows {', '.join(visible)}; "
            "use one of these or leave it unset"
        )
    wanted_backend(env, device)
    given_peak(env)
    if device == "cpu" and env.get("DS_ACCELERATOR", "cpu") not in ("", "cpu"):
        raise DeviceError(f"DS_ACCELERATOR={env['DS_ACCELERATOR']}: this run is on the cpu; unset DS_ACCELERATOR")
    if run.model.attention == "flash" and device not in ("nvidia", "amd"):
        raise DeviceError(
            f"ATTENTION=flash works on nvidia and amd devices, not on {device}; use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        )
    if run.train.dtype == "fp16" and device == "cpu" and not cpu_computes_fp16():
        raise DeviceError("DTYPE=fp16: the cpu of this host computes no fp16; use DTYPE=bf16 or fp32")
