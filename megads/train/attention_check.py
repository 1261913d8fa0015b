"""Says which kernels attention gets, and refuses the slow one for long rows."""

from __future__ import annotations

import torch
from torch import nn

from megads.config.schema import RunConfig
from megads.models.attention_backend import attention_forms, check_backends
from megads.monitor.log import FILE, LOG


def report_attention(run: RunConfig, module: nn.Module, device: torch.device, *, speaks: bool) -> None:
    """Log the kernel of every form of attention of ``module``, on a CPU in the file only.

    Raises:
        ConfigError: it is the math kernel for long rows on an accelerator.
    """
    forms = attention_forms(module, run, device)
    if speaks and forms:
        LOG.info("sdpa     %s", "; ".join(map(str, forms)), extra=FILE if device.type == "cpu" else None)
    check_backends(forms, run, device)
