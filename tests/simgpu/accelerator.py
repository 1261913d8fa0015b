"""DeepSpeed's view of the simulated device."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from tests.simgpu.module import NAME


def _maker(dtype: torch.dtype) -> Any:
    """Return the property that makes a tensor of a list on the device; it is a copy from the host."""
    return property(lambda self: partial(torch.tensor, dtype=dtype, device=NAME))


class SimulatedAccelerator(CPU_Accelerator):  # type: ignore[misc]
    """What ``CUDA_Accelerator`` answers, where the CPU's would answer for a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._name = NAME
        self._communication_backend_name = "sim"
        self.module: Any = torch.get_device_module(NAME)

    def is_synchronized_device(self) -> bool:
        return False

    def device_name(self, device_index: int | None = None) -> str:
        return NAME if device_index is None else f"{NAME}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return self.module.device(device_index)

    def set_device(self, device_index: int) -> None:
        self.module.set_device(device_index)

    def current_device(self) -> int:
        return int(self.module.current_device())

    def current_device_name(self) -> str:
        return f"{NAME}:{self.current_device()}"

    def device_count(self) -> int:
        return int(self.module.device_count())

    def synchronize(self, device_index: int | None = None) -> None:
        self.module.synchronize(device_index)

    # Random numbers

    def manual_seed(self, seed: int) -> None:
        self.module.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        self.module.manual_seed_all(seed)

    def get_rng_state(self, device_index: int | None = None) -> Any:
        return self.module.get_rng_state(device_index)

    def set_rng_state(self, new_state: Any, device_index: int | None = None) -> None:
        self.module.set_rng_state(new_state, device_index)

    # Streams

    @property
    def Stream(self) -> Any:
        return self.module.Stream

    def stream(self, stream: Any) -> Any:
        return self.module.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return self.module.current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> Any:
        return self.module.default_stream(device_index)

    @property
    def Event(self) -> Any:
        return self.module.Event

    # Memory

    def memory_allocated(self, device_index: int | None = None) -> int:
        return int(self.module.memory_allocated(device_index))

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return int(self.module.max_memory_allocated(device_index))

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        self.module.reset_peak_memory_stats(device_index)

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self.module.reset_peak_memory_stats(device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        return int(self.module.memory_reserved(device_index))

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return int(self.module.max_memory_reserved(device_index))

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return dict(self.module.memory_stats(device_index))

    def total_memory(self, device_index: int | None = None) -> int:
        return int(self.module.mem_get_info(device_index)[1])

    def available_memory(self, device_index: int | None = None) -> int:
        return int(self.module.mem_get_info(device_index)[0])

    # Tensors

    BFloat16Tensor = _maker(torch.bfloat16)
    ByteTensor = _maker(torch.uint8)
    DoubleTensor = _maker(torch.double)
    FloatTensor = _maker(torch.float)
    HalfTensor = _maker(torch.half)
    IntTensor = _maker(torch.int)
    LongTensor = _maker(torch.long)

    def is_fp16_supported(self) -> bool:
        return True

    def on_accelerator(self, tensor: Any) -> bool:
        return bool(tensor.device.type == NAME)

    def pin_memory(self, tensor: Any, make_copy: bool = True, match_shape: bool = True) -> Any:
        return tensor.pin_memory()

    def _torch_pin_memory(self, tensor: Any) -> Any:
        return tensor.pin_memory()

    def _torch_empty_pinned(self, tensor: Any, shape: Any) -> Any:
        return torch.empty(shape, dtype=tensor.dtype, pin_memory=True)


def use_simulated() -> None:
    """Have DeepSpeed use the simulated device, also where it has asked for the CPU's facts while it was imported."""
    import deepspeed
    from deepspeed.runtime import utils

    accelerator = SimulatedAccelerator()
    deepspeed.accelerator.set_accelerator(accelerator)
    utils.torch_memory_reserved = accelerator.memory_reserved
    utils.torch_max_memory_reserved = accelerator.max_memory_reserved
    from_meta: Any = utils.PartitionedTensor.from_meta.__func__
    defaults = list(from_meta.__defaults__)
    at = [name for name, each in inspect.signature(from_meta).parameters.items() if each.default is not each.empty]
    defaults[at.index("device")] = NAME
    from_meta.__defaults__ = tuple(defaults)
