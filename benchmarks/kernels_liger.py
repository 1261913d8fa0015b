"""What can be shown of liger's kernels without a device, for KERNELS=liger; needs liger-kernel and triton.

``agree`` runs the kernels in Triton's interpreter, on a CPU, and prints how far results and gradients are from eager
ones, relative to their norms. ``compile`` has Triton compile every kernel that a Llama's layers and loss launch, for
devices that are not there, and prints registers that were spilled to memory.

    python benchmarks/kernels_liger.py agree
    python benchmarks/kernels_liger.py compile

The interpreter has no math library of a device and passes floats as Python's; both are stood in for here.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

if "agree" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor, nn

from megads.models.kernels import liger as ours
from megads.models.kernels.compiled import TOLERANCES, _results
from megads.models.layers import GatedMLP, LayerNorm, RMSNorm
from megads.models.rope import Rotary, TokenPositions, rows
from megads.parallel.loss import whole_cross_entropy

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx90a": ("hip", "gfx90a", 64)}
TARGETS["gfx942"] = ("hip", "gfx942", 64)
SMALL = {"width": 24, "ffn": 20, "heads": 3, "kv": 1, "dim": 8, "vocabulary": 37}
LLAMA_3_8B = {"width": 4096, "ffn": 14336, "heads": 32, "kv": 8, "dim": 128, "vocabulary": 128256}


def cases(dtype: torch.dtype, sizes: dict[str, int]) -> Iterator[tuple[str, Callable[..., Any], Any, tuple[Any, ...]]]:
    """Yield the name, the eager form, liger's form and the arguments of everything that liger computes."""
    torch.manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(2, 6, *shape, dtype=dtype, requires_grad=True)

    for kind, kernel in ((RMSNorm, ours._rms_norm), (LayerNorm, ours._layer_norm)):
        norm = kind(sizes["width"], 1e-5).to(dtype)
        for each in norm.parameters():
            nn.init.normal_(each)
        yield kind.__name__, kind.forward, kernel, (norm, random(sizes["width"]))
    for activation in ("swiglu", "geglu_tanh"):
        mlp = GatedMLP.__new__(GatedMLP)
        nn.Module.__init__(mlp)
        mlp.activation = activation
        mlp.act = nn.functional.silu if activation == "swiglu" else partial(nn.functional.gelu, approximate="tanh")
        yield activation, GatedMLP.gated, ours._gated, (mlp, random(2 * sizes["ffn"]))
    heads, kv, dim = sizes["heads"], sizes["kv"], sizes["dim"]
    rotary = Rotary(10000.0 ** (-torch.arange(0, dim, 2) / dim))
    again = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]])
    for name, where in (
        ("RoPE of a rank's part", TokenPositions(3, 12)),
        ("RoPE of documents", TokenPositions(0, 12, again)),
    ):
        x = random(heads + 2 * kv, dim)
        tables = rows(*(each.float() for each in rotary._tables_at(x, where)), where.positions)
        yield name, ours._plain_rotation(rotary), ours._rotation, (x, *tables, where, heads, kv)
    labels = torch.randint(0, sizes["vocabulary"], (2, 6))
    logits = random(sizes["vocabulary"] + 3)
    yield "cross entropy", whole_cross_entropy, ours._cross_entropy, (logits, labels, sizes["vocabulary"])


def agree() -> bool:
    """Print and judge the differences in the interpreter."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._implicit_cvt

    def with_floats(arg: Any) -> Any:
        if isinstance(arg, float):
            handle = interpreter.TensorHandle(interpreter.np.array([arg], dtype=interpreter.np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(arg)

    interpreter._implicit_cvt = with_floats
    liger = ours.load_liger()
    for name in ("rms_norm", "layer_norm"):
        importlib.import_module(f"liger_kernel.ops.{name}").rsqrt = lambda x: 1.0 / tl.sqrt(x)
    importlib.import_module("liger_kernel.ops.geglu").tanh = lambda x: 2.0 * tl.sigmoid(2.0 * x) - 1.0
    is_right = True
    print("| kernel | dtype | result | largest of the gradients | tolerance |\n|---|---|---|---|---|")
    for dtype in (torch.float32, torch.float16):  # the interpreter has no arithmetic in bf16
        for name, eager, kernel, args in cases(dtype, SMALL):
            before = [each.detach().clone() for each in args if isinstance(each, Tensor)]
            wanted, found = (_results(partial(ours._joined, each), args) for each in (eager, partial(kernel, liger)))
            away = [
                float((x.double() - y.double()).norm() / x.double().norm()) for x, y in zip(wanted, found, strict=True)
            ]
            kept = all(map(torch.equal, before, (each for each in args if isinstance(each, Tensor))))
            is_right &= kept and max(away) <= TOLERANCES[dtype]
            print(f"| {name} | {str(dtype)[6:]} | {away[0]:.1e} | {max(away[1:]):.1e} | {TOLERANCES[dtype]:.0e} |")
    return is_right


def launches(*, hip: bool) -> dict[tuple[str, str], tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Return the kernels that the cases launch: function, arguments by name, options; nothing runs."""
    from triton.runtime.jit import JITFunction

    found: dict[tuple[str, str], tuple[Any, dict[str, Any], dict[str, Any]]] = {}
    current = ""

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        named = dict(zip(self.arg_names, args, strict=False))
        named |= {name: options.pop(name) for name in list(options) if name in self.arg_names}
        for parameter in self.params:
            if parameter.name not in named:
                named[parameter.name] = parameter.default
        backward = [key for key in found if key[0].startswith(current) and key[1] == self.fn.__name__]
        suffix = " backward" if named.get("BACKWARD_PASS") else ""
        if not backward or suffix:
            found[current + suffix, self.fn.__name__] = (self, named, options)

    JITFunction.run = record
    liger = ours.load_liger()
    for name in ("rms_norm", "layer_norm", "cross_entropy", "swiglu", "geglu", "utils"):
        module = importlib.import_module(f"liger_kernel.ops.{name}")
        if hasattr(module, "is_hip"):
            module.is_hip = lambda: hip
    for name, _, kernel, args in cases(torch.bfloat16, LLAMA_3_8B):
        current = name
        _results(partial(ours._joined, partial(kernel, liger)), args)
    return found


def spills(function: Any, named: dict[str, Any], options: dict[str, Any], target: tuple[str, Any, int]) -> str:
    """Compile for ``target``; return bytes (NVIDIA) or registers (AMD) that are spilled."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    fixed, signature, attributes = {}, {}, {}
    for place, parameter in enumerate(function.params):
        value = named[parameter.name]
        is_fixed = value is None or isinstance(value, bool) or (isinstance(value, int) and value == 1)
        if parameter.is_constexpr or is_fixed:
            fixed[(place,)], signature[parameter.name] = value, "constexpr"
            continue
        signature[parameter.name] = mangle_type(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, fixed, attributes)
    built = triton.compile(source, target=GPUTarget(*target), options=options)
    if target[0] == "hip":
        counts = re.findall(r"\.(?:v|s)gpr_spill_count:\s*(\d+)", built.asm["amdgcn"])
        return str(sum(map(int, counts))) if counts else "?"
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "kernel.ptx")
        code.write_text(built.asm["ptx"])
        assembler = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
        command = [assembler, "-v", f"--gpu-name={_arch(target[1])}", code, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    stores = re.findall(r"(\d+) bytes spill stores", said)
    return str(sum(map(int, stores))) if stores else "?"


def _arch(number: int) -> str:
    return f"sm_{number}a" if number >= 90 else f"sm_{number}"


def compile_all() -> bool:
    """Print spills of every kernel and target."""
    found = {False: launches(hip=False), True: launches(hip=True)}
    print(f"| kernel | {' | '.join(TARGETS)} |\n|---|{'---|' * len(TARGETS)}")
    is_right = True
    for key in found[False]:
        columns = []
        for target in TARGETS.values():
            columns.append(spills(*found[target[0] == "hip"][key], target))
        is_right &= set(columns) == {"0"}
        print(f"| {key[0]}: `{key[1]}` | {' | '.join(columns)} |", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(0 if (agree() if "agree" in sys.argv else compile_all()) else 1)
