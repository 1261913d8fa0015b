"""torch's compiler stays outside: nobody here compiles, and its import is half of a rank's start and 110 MiB of it.

torch 2.13 imports it (1,500 modules, read from a shared file system by every rank) only to say
that an optimizer's methods are not to be compiled; DeepSpeed 0.19.8 does the same under ZeRO 3,
and compiles a Muon that this run does not use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class Door(ModuleType):
    """Stands for the compiler: answers that nothing is compiled, and imports it for every other question."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Do nothing: no graph is being recorded."""

    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
        """Return ``fn``, or the decorator that does; it is never compiled."""
        return _same if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        self.open()
        return getattr(sys.modules[NAME], name)

    def open(self) -> None:
        """Import the compiler in this module's place, unless that is done."""
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        importlib.import_module(NAME)


class _Way:
    """Finds the parts of the compiler for who looks for one of them while the door is closed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}.") or not isinstance(sys.modules.get(NAME), Door):
            return None
        return ModuleSpec(name, _Through())


class _Through(Loader):
    """Loads a part of the compiler as its own import does, and hands it out as it is."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        door = sys.modules.get(NAME)
        if isinstance(door, Door):
            door.open()
        module = importlib.import_module(spec.name)
        self.spec = vars(module).get("__spec__")
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self.spec  # its own again


def leave_compiler_out() -> None:
    """Put a :class:`Door` in the compiler's place, unless that already exists."""
    if NAME in sys.modules:
        return
    spec = find_spec(NAME)
    if spec is None:
        return
    door = Door(NAME)
    door.__spec__, door.__path__ = spec, list(spec.submodule_search_locations or ())
    # inspect asks every module for it, also in the middle of an import that the compiler's own would need.
    door.__file__ = spec.origin
    sys.modules[NAME] = door
    if _Way not in sys.meta_path:
        sys.meta_path.insert(0, _Way)
    with suppress(ImportError):  # another version of DeepSpeed
        _import_muon_as_it_is()


def _import_muon_as_it_is() -> None:
    # DeepSpeed asks of every optimizer whether it is this one, and compiles its parts for that.
    compiler = importlib.import_module("deepspeed.runtime.compiler")
    compiling: Callable[..., Any] = compiler.compile
    compiler.compile = lambda *_, **__: _same  # type: ignore[attr-defined]
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        compiler.compile = compiling  # type: ignore[attr-defined]


def _same(function: Any) -> Any:
    return function
