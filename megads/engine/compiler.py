"""torch's compiler is imported when it is used: its import is half of a rank's start-up, and 110 MiB of its memory.

torch 2.13 imports it (1,500 modules, read from a shared file system by every rank) only to say
that an optimizer's methods are not to be compiled; DeepSpeed 0.19.8 does the same under ZeRO 3,
and compiles a Muon that this run does not use. TORCH_COMPILER decides, before DeepSpeed or an
optimizer is made; a run that is known to compile something imports it at its start.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from megads.config.deepspeed.dictionary import deepspeed_config
from megads.config.schema import RunConfig

NAME = "torch._dynamo"


class PostponedCompiler(ModuleType):
    """Stands for the compiler: answers that nothing is compiled, and imports it for every other question."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Do nothing: no graph is being recorded."""

    def disable(self, fn: Any = None, recursive: bool = True, **more: Any) -> Any:
        """Return what calls ``fn``, or the decorator that does; it is not compiled, also by one who compiles later."""
        if fn is None:
            return functools.partial(self.disable, recursive=recursive, **more)
        if isinstance(fn, FunctionType | MethodType | BuiltinFunctionType):
            return _excluded(fn, recursive, more)
        self.import_it()  # of classes and modules it makes something else
        return sys.modules[NAME].disable(fn, recursive, **more)

    def __getattr__(self, name: str) -> Any:
        self.import_it()
        return getattr(sys.modules[NAME], name)

    def import_it(self) -> None:
        """Import the compiler in this module's place, unless that is done."""
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        importlib.import_module(NAME)


class _Parts(Loader):
    """Loads a part of the postponed compiler as its own import does, and hands it out as it is."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name.startswith(f"{NAME}.") and is_postponed() else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        stand_in = sys.modules.get(NAME)
        if isinstance(stand_in, PostponedCompiler):
            stand_in.import_it()
        module = importlib.import_module(spec.name)
        self.spec = vars(module).get("__spec__")
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self.spec  # its own again


def is_postponed() -> bool:
    """Return whether the compiler was postponed and nothing has used it since."""
    return isinstance(sys.modules.get(NAME), PostponedCompiler)


def compiles(run: RunConfig, world_size: int) -> bool:
    """Return whether a run is known to compile something: its layers, or by DeepSpeed's section ``compile``."""
    return run.engine.kernels == "compiled" or "compile" in deepspeed_config(run, world_size)


def may_postpone(run: RunConfig, world_size: int) -> bool:
    """Return whether the compiler's import can wait until something uses it."""
    return run.deepspeed.torch_compiler == "when_used" and not compiles(run, world_size)


def postpone_compiler() -> None:
    """Put a :class:`PostponedCompiler` in the compiler's place, unless that is imported.

    Call it before DeepSpeed is imported, or an optimizer is made.
    """
    spec = None if NAME in sys.modules else find_spec(NAME)
    if spec is None:
        return
    stand_in = PostponedCompiler(NAME)
    stand_in.__spec__, stand_in.__path__ = spec, list(spec.submodule_search_locations or ())
    # inspect asks every module for it, also in the middle of an import that the compiler's own would need.
    stand_in.__file__ = spec.origin
    sys.modules[NAME] = stand_in
    if _Parts not in sys.meta_path:
        sys.meta_path.insert(0, _Parts)


def import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon, which it compares every optimizer with, without compiling its parts."""
    with suppress(ImportError):  # another version of DeepSpeed
        compiler = importlib.import_module("deepspeed.runtime.compiler")
        compiling: Callable[..., Any] = compiler.compile
        compiler.compile = lambda *_, **__: _same  # type: ignore[attr-defined]
        try:
            importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
        finally:
            compiler.compile = compiling  # type: ignore[attr-defined]


def _excluded(function: Callable[..., Any], recursive: bool, more: dict[str, Any]) -> Callable[..., Any]:
    """Return what calls ``function`` as it is, and from the compiler's import on as the compiler excludes it."""
    by_compiler: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal by_compiler
        if by_compiler is None:
            compiler = sys.modules.get(NAME)
            if compiler is None or isinstance(compiler, PostponedCompiler) or not hasattr(compiler, "disable"):
                return function(*args, **kwargs)
            by_compiler = compiler.disable(function, recursive, **more)
        return by_compiler(*args, **kwargs)

    return call


def _same(function: Any) -> Any:
    return function
