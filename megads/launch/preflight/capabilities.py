"""What this host cannot do, told before a rank finds out. Without torch."""

from __future__ import annotations

import ctypes.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping

from megads.cluster.machine import visible_accelerators
from megads.config.schema import RunConfig
from megads.device.names import BACKENDS, wanted_backend, wanted_device
from megads.errors import DeviceError, LaunchError
from megads.launch.preflight.packages import check_optimizer, has_op
from megads.plan.places.peaks import given_peak


def check_host(run: RunConfig, env: Mapping[str, str]) -> None:
    """Refuse a device that is not here, and settings that the device cannot serve.

    Raises:
        ConfigError: a name that is not known, a backend of another device, a peak that is no number.
        DependencyError: the optimizer's package is missing or too old.
        DeviceError: the device asked for is not visible, or lacks the precision, the attention or the optimizer.
        LaunchError: offload to NVMe has no folder to write to, or no library to write with.
    """
    visible = [*visible_accelerators(env), "cpu"]
    device = wanted_device(env) or visible[0]
    if device not in visible:
        raise DeviceError(
            f"MEGADS_DEVICE={device}: no such device is visible on this host; it shows {', '.join(visible)}; "
            "use one of these or leave it unset"
        )
    if wanted_backend(env, device) == "ccl" and device == "cpu" and run.parallel.pipeline > 1:
        raise DeviceError(
            f"MEGADS_BACKEND=ccl sends nothing from one CPU rank to another, and PP={run.parallel.pipeline} does; "
            "use MEGADS_BACKEND=gloo or PP=1"
        )
    given_peak(env)
    if device == "cpu" and env.get("DS_ACCELERATOR", "cpu") not in ("", "cpu"):
        raise DeviceError(f"DS_ACCELERATOR={env['DS_ACCELERATOR']}: this run is on the cpu; unset DS_ACCELERATOR")
    check_attention(run, device)
    check_kernels(run, device)
    if run.launch.container:  # the packages of ranks are the image's
        check_optimizer(run.optim.optimizer, device, version=lambda module: "", built=lambda op: True)
    else:
        check_optimizer(run.optim.optimizer, device)
    nvme = {"OFFLOAD_OPTIMIZER": run.deepspeed.offload_optimizer, "OFFLOAD_PARAMS": run.deepspeed.offload_params}
    asked = [f"{name}=nvme" for name, place in nvme.items() if place == "nvme"]
    if asked:
        _check_nvme(asked, run.deepspeed.nvme_path, env)


def check_attention(run: RunConfig, device: str) -> None:
    """Refuse an attention that ``device`` does not compute.

    Raises:
        DeviceError: names the one that it does.
    """
    if run.model.attention == "flash" and device not in ("nvidia", "amd"):
        raise DeviceError(
            f"ATTENTION=flash works on nvidia and amd devices, not on {device}; use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        )


def check_kernels(run: RunConfig, device: str) -> None:
    """Refuse kernels that ``device`` does not run.

    Raises:
        DeviceError: names those that it does.
    """
    if run.engine.kernels == "liger" and device not in ("nvidia", "amd", "intel"):
        raise DeviceError(
            f"KERNELS=liger needs an NVIDIA, AMD or Intel device, not a {device}; use KERNELS=eager or KERNELS=compiled"
        )


def backend_note(wanted: str, env: Mapping[str, str], device: str) -> str:
    """Return a line if an option of Megatron-LM names another backend than the one that ranks use.

    Args:
        wanted: by ``--distributed-backend``, empty where that is not given.
        device: of the machine, empty where it is not known.
    """
    found = wanted_device(env) or device or [*visible_accelerators(env), "cpu"][0]
    used = wanted_backend(env, found) or BACKENDS[found].own[0]
    if wanted in ("", used):
        return ""
    return f"--distributed-backend {wanted} has no effect: the backend of device {found} is {used}"


def _check_nvme(asked: list[str], folder: str, env: Mapping[str, str]) -> None:
    """Refuse offload to NVMe that would end on a rank, while DeepSpeed loads or builds its ``async_io`` op."""
    given, instead = " ".join(asked), " ".join(asked).replace("nvme", "cpu")
    if not os.path.isdir(folder):
        raise LaunchError(
            f"{given}: NVME_PATH={folder} is not a folder; make it on a local NVMe disk, or use {instead}"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"{given}: NVME_PATH={folder} cannot be written; use another folder, or use {instead}")
    missing = ""
    if has_op("async_io"):
        pass
    elif ctypes.util.find_library("aio") is None:
        missing = "libaio is not on this host"
    elif not shutil.which("ninja", path=env.get("PATH")):
        missing = "ninja, with which DeepSpeed builds async_io, is not on PATH"
    elif not _compiles_libaio(env):
        missing = "no C++ compiler (CXX) finds libaio.h"
    if missing:
        raise LaunchError(f"{given}: {missing}; install it (libaio and its headers), or use {instead}")
    # What DeepSpeed has swapped out can be neither filled with initial weights nor read for a checkpoint.
    raise LaunchError(f"{given}: no run here can start from or save state that is on NVMe yet; use {instead}")


def _compiles_libaio(env: Mapping[str, str]) -> bool:
    compiler = shutil.which(env.get("CXX") or "c++", path=env.get("PATH"))
    if compiler is None:
        return False
    command = [compiler, *shlex.split(env.get("CFLAGS", "")), "-E", "-x", "c++", "-"]
    done = subprocess.run(command, input=b"#include <libaio.h>", capture_output=True, env=dict(env), check=False)
    return done.returncode == 0
