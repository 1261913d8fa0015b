"""``torch.gpu``: what ``torch.cuda`` offers, for the simulated device."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

NAME = "gpu"
EVENT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
COUNTERS = (
    *("kernels", "kernel_bytes", "uploads", "upload_bytes", "downloads", "download_bytes"),
    *("allocated", "peak", "reserved", "allocations"),
)


class Library:
    """The functions of the library that Python calls."""

    def __init__(self, path: str):
        torch.ops.load_library(path)
        self.functions = ctypes.CDLL(path)
        self.functions.simgpu_names.restype = ctypes.c_size_t
        self.functions.simgpu_seed.argtypes = [ctypes.c_uint64]
        self.functions.simgpu_set_capacity.argtypes = [ctypes.c_size_t]
        self.on_event: Callable[[str, str], None] | None = None
        self._event = EVENT(lambda kind, name: self.on_event and self.on_event(kind.decode(), name.decode()))

    def start(self, devices: int) -> None:
        self.functions.simgpu_start(devices, self._event)

    def counters(self) -> dict[str, int]:
        found = (ctypes.c_int64 * len(COUNTERS))()
        self.functions.simgpu_counts(found)
        return dict(zip(COUNTERS, found, strict=True))

    def names(self) -> dict[str, int]:
        """Return how often each kernel has run."""
        room = 1 << 16
        buffer = ctypes.create_string_buffer(room)
        size = self.functions.simgpu_names(buffer, room)
        assert size <= room
        lines = buffer.raw[:size].decode().splitlines()
        return {name: int(count) for name, count in (line.split() for line in lines)}


def make_event(enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
    """Return what ``torch.cuda.Event`` does."""
    return torch.Event(NAME, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def make_stream(device: Any = None, priority: int = 0) -> torch.Stream:
    """Return what ``torch.cuda.Stream`` does."""
    return torch.Stream(torch.device(NAME, _index(device)), priority=priority)


def make_module(library: Library, devices: int, memory_bytes: int) -> ModuleType:
    """Return the module ``torch.gpu``."""
    module = ModuleType(f"torch.{NAME}")
    functions = library.functions
    state = SimpleNamespace(capacity=memory_bytes)

    def of_counter(name: str) -> Callable[..., int]:
        return lambda device=None: library.counters()[name]

    def get_device_properties(device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(
            name="simulated device", total_memory=state.capacity, multi_processor_count=1, uuid=f"sim-{_index(device)}"
        )

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        return state.capacity - library.counters()["allocated"], state.capacity

    def set_capacity(size: int) -> None:
        state.capacity = size
        functions.simgpu_set_capacity(size)

    def nothing(*_: Any, **__: Any) -> None: ...

    def current_stream(device: Any = None) -> Any:
        return torch.accelerator.current_stream(torch.device(NAME, _index(device)))

    def default_stream(device: Any = None) -> torch.Stream:
        now = current_stream(device)
        return torch.Stream(stream_id=0, device_index=now.device_index, device_type=now.device_type)

    vars(module).update(
        Event=make_event,
        Stream=make_stream,
        device=lambda index: torch.accelerator.device_index(_index(index)),
        stream=lambda stream: contextlib.nullcontext() if stream is None else stream,
        current_stream=current_stream,
        default_stream=default_stream,
        set_stream=lambda stream: torch.accelerator.set_stream(stream),
        is_available=lambda: True,
        is_initialized=lambda: True,
        init=nothing,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: devices,
        current_device=lambda: torch.accelerator.current_device_index(),
        set_device=lambda device: torch.accelerator.set_device_index(_index(device)),
        synchronize=lambda device=None: torch.ops.simgpu.synchronize(),
        get_device_name=lambda device=None: "simulated device",
        get_device_properties=get_device_properties,
        memory_allocated=of_counter("allocated"),
        max_memory_allocated=of_counter("peak"),
        memory_reserved=of_counter("reserved"),
        max_memory_reserved=of_counter("reserved"),
        memory_stats=lambda device=None: {
            "allocated_bytes.all.current": library.counters()["allocated"],
            "allocated_bytes.all.peak": library.counters()["peak"],
            "num_alloc_retries": 0,
        },
        reset_peak_memory_stats=lambda device=None: functions.simgpu_forget_peak(),
        mem_get_info=mem_get_info,
        set_capacity=set_capacity,
        empty_cache=nothing,
        manual_seed=lambda seed: functions.simgpu_seed(int(seed) & (2**64 - 1)),
        manual_seed_all=lambda seed: functions.simgpu_seed(int(seed) & (2**64 - 1)),
        get_rng_state=lambda device=None: torch.ops.simgpu.rng_state(),
        set_rng_state=lambda state, device=None: torch.ops.simgpu.set_rng_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        is_bf16_supported=lambda: True,
        library=library,
    )
    return module


def _index(device: Any) -> int:
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


def install(path: str, devices: int = 1, memory_bytes: int = 1 << 34) -> ModuleType:
    """Load the library and make the device of this process; once per process, before its first backward pass."""
    if NAME in vars(torch):
        found: ModuleType = vars(torch)[NAME]
        return found
    library = Library(path)
    torch.utils.rename_privateuse1_backend(NAME)
    module = make_module(library, devices, memory_bytes)
    torch._register_device_module(NAME, module)
    sys.modules[f"torch.{NAME}"] = module
    library.start(devices)
    module.set_capacity(memory_bytes)
    torch.utils.generate_methods_for_privateuse1_backend()
    return module
