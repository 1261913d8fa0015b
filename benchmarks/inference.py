"""Tokens per second of the engine against transformers' generate, the limit of a step, and what the server costs.

    python benchmarks/inference.py [--hidden 512] [--prompt 32] [--tokens 64] [--batches 1 8 64] [--threads 2]

A small Llama with random weights, fp32 on the CPU, with as many torch threads as cores unless told. For every batch the
engine and transformers continue the same prompts greedily, in turns; with ``--http`` the same requests also go to a
server on loopback from another process. Printed are

* median tokens per second of both, their ratio, and the ratio of the CPU seconds, which other programs on the machine
  change less;
* milliseconds of a decode step, and those of reading as many bytes as the weights have once (a
  matrix-vector product of that size);
* the rate of a prefill of the prompts over that of the same layers in training's layout;
* with ``--http``: its rate over the engine's, and the milliseconds that it adds to a batch;
* how many texts are equal.

A last row is of requests as users send them: ``--requests`` prompts of drawn lengths, 1/4 of ``--prompt`` to twice as
many tokens, each with a drawn number of tokens to generate, 1/4 of ``--tokens`` to twice as many. They go through
``--slots`` slots of the engine, where a text that ends makes room for the next one; transformers generates them in
batches of as many, padded on the left, until the longest text of a batch has ended. Only what was asked for counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
import uvicorn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.data.chat.folder_template import ChatTemplate
from megads.data.tokenizers.base import Specials
from megads.inference.engine import Engine
from megads.inference.load import HFWeights, load_model
from megads.inference.packed import pack
from megads.inference.runner import Runner
from megads.inference.sampling import Sampling
from megads.inference.server.app import make_app
from megads.inference.server.engine_loop import EngineLoop
from megads.inference.session import Session

VOCABULARY = 4096


class Characters:
    """Tokens are characters."""

    eod = 0
    specials = Specials(eos=0)
    vocab_size = VOCABULARY

    def encode(self, text: str) -> list[int]:
        return [ord(each) - 256 for each in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(256 + each) for each in ids)


def make_folder(folder: Path, options: argparse.Namespace) -> Any:
    """Write a random model of transformers, and return it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=2 * (options.prompt + options.tokens),  # also of requests of drawn lengths
        initializer_range=0.1,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    module.save_pretrained(folder)
    module.generation_config.eos_token_id = None
    return module


def runner_of(folder: Path, num_slots: int, *, packs: bool = True) -> Runner:
    groups, weights = Groups(Grid(), 0), HFWeights(folder)
    module = load_model(weights, groups, torch.device("cpu"), torch.float32)
    if packs and torch.get_num_threads() == 1:  # as megads.inference.session does
        pack(module, num_slots)
    return Runner(module, groups, context=weights.context, num_slots=num_slots)


def by_engine(engine: Engine, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    requests = [engine.add(prompt, Sampling(max_tokens=tokens, temperature=0, ignore_eos=True)) for prompt in prompts]
    for _ in engine.run():
        pass
    return [each.output for each in requests]


def by_transformers(module: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    batch = torch.tensor(prompts)
    with torch.inference_mode():
        found = module.generate(
            batch, attention_mask=torch.ones_like(batch), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
    return found[:, batch.shape[1] :].tolist()


@cache
def client_of(url: str) -> httpx.Client:
    """Return a client that keeps its connections; to make one takes longer than a short request."""
    return httpx.Client(base_url=url, timeout=600, limits=httpx.Limits(max_keepalive_connections=None))


def by_engine_mixed(engine: Engine, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
    asked = [Sampling(max_tokens=count, temperature=0, ignore_eos=True) for count in counts]
    requests = [engine.add(*each) for each in zip(prompts, asked, strict=True)]
    for _ in engine.run():
        pass
    return [each.output for each in requests]


def by_transformers_mixed(module: Any, prompts: list[list[int]], counts: list[int], slots: int) -> list[list[int]]:
    """Return the texts, in batches of ``slots`` in the order of the prompts."""
    found: list[list[int]] = []
    for first in range(0, len(prompts), slots):
        part, wanted = prompts[first : first + slots], counts[first : first + slots]
        longest = max(map(len, part))
        batch = torch.tensor([[*[0] * (longest - len(each)), *each] for each in part])
        mask = torch.tensor([[*[0] * (longest - len(each)), *[1] * len(each)] for each in part])
        with torch.inference_mode():
            made = module.generate(
                batch, attention_mask=mask, max_new_tokens=max(wanted), do_sample=False, pad_token_id=0
            )
        found += [row[longest : longest + count].tolist() for row, count in zip(made, wanted, strict=True)]
    return found


def by_http(url: str, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Send every prompt as a request of its own, all at a time; in the client's process."""
    client = client_of(url)

    def post(prompt: list[int]) -> list[int]:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        answer = client.post("/v1/completions", json=body)
        answer.raise_for_status()
        return Characters().encode(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(post, prompts))


@contextmanager
def serving(runner: Runner) -> Iterator[str]:
    """Serve a model on loopback, and yield its address."""
    loop = EngineLoop(Session(runner, runner.groups, Characters(), (), ""), max_waiting=64)
    app = make_app(loop, "small", ChatTemplate(None), api_key="", max_body=1 << 20, timeout_s=600)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    loop.start()
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        loop.stop()
        listener.close()


@dataclass(frozen=True)
class Rate:
    """Medians of a way to generate: tokens per second, and CPU seconds of this process."""

    speed: float
    cpu_s: float


def compare(ways: dict[str, Callable[[], list[list[int]]]], rounds: int) -> tuple[dict[str, Rate], int]:
    """Return the rate of every way, taken in turns after a first round, and how many texts agree."""
    texts = {name: way() for name, way in ways.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started, used = time.perf_counter(), time.process_time()
            count = sum(map(len, way()))
            found[name].append((count / (time.perf_counter() - started), time.process_time() - used))
    agree = sum(all(each == one[0] for each in one) for one in zip(*texts.values(), strict=True))
    return {name: Rate(*map(statistics.median, zip(*each, strict=True))) for name, each in found.items()}, agree


def seconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median seconds of every call, taken in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, times in zip(calls, found, strict=True):
            started = time.perf_counter()
            call()
            if number:
                times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in found]


@torch.inference_mode()
def limits(folder: Path, prompts: list[list[int]], rounds: int) -> tuple[float, float, float]:
    """Return the seconds of a decode step, those of reading the weights once, and prefill's rate over training's."""
    runner, plain = runner_of(folder, len(prompts)), runner_of(folder, len(prompts), packs=False)
    lengths, last = [len(each) for each in prompts], [each[-1] for each in prompts]
    weights = sum(each.numel() for each in runner.module.layers.parameters()) + plain.module.head.weight.numel()
    matrix, vector = torch.ones(weights // 1024, 1024), torch.ones(1024)
    runner.prefill(prompts)
    calls = (lambda: runner.logits(runner.decode(last, lengths)), lambda: torch.mv(matrix, vector))
    step, read = seconds(calls, 4 * rounds)
    prefill, forward = seconds((lambda: runner.prefill(prompts), lambda: plain.run(prompts)), rounds)
    return step, read, forward / prefill


def measure(folder: Path, module: Any, prompts: list[list[int]], client: Any, options: argparse.Namespace) -> str:
    """Return the line of one batch."""
    tokens, batch = options.tokens, len(prompts)
    engine = Engine(runner_of(folder, batch), tokenizer=Characters())
    ways = {
        "engine": lambda: by_engine(engine, prompts, tokens),
        "transformers": lambda: by_transformers(module, prompts, tokens),
    }
    with ExitStack() as stack:
        if client is not None:
            url = stack.enter_context(serving(runner_of(folder, batch)))
            ways["http"] = lambda: client.apply(by_http, (url, prompts, tokens))
        found, agree = compare(ways, options.rounds)
    ours, theirs = found["engine"], found["transformers"]
    step, read, prefill = limits(folder, prompts, options.rounds)
    line = (
        f"{options.hidden:6} {options.prompt:6} {tokens:6} {batch:5} {ours.speed:8.0f} {theirs.speed:12.0f} "
        f"{ours.speed / theirs.speed:6.2f} {theirs.cpu_s / ours.cpu_s:6.2f} "
        f"{1e3 * step:8.2f} {1e3 * read:8.2f} {prefill:8.2f} {f'{agree}/{batch}':>7}"
    )
    if client is None:
        return line
    served = found["http"].speed
    return f"{line} {served / ours.speed:6.2f} {1e3 * batch * tokens * (1 / served - 1 / ours.speed):8.1f}"


def measure_mixed(folder: Path, module: Any, options: argparse.Namespace) -> str:
    """Return the line of requests of drawn lengths."""
    draw, slots = random.Random(1), options.slots
    lengths = [draw.randint(max(1, options.prompt // 4), 2 * options.prompt) for _ in range(options.requests)]
    counts = [draw.randint(max(1, options.tokens // 4), 2 * options.tokens) for _ in range(options.requests)]
    prompts = [[draw.randrange(1, VOCABULARY) for _ in range(length)] for length in lengths]
    engine = Engine(runner_of(folder, slots), tokenizer=Characters())
    ways = {
        "engine": lambda: by_engine_mixed(engine, prompts, counts),
        "transformers": lambda: by_transformers_mixed(module, prompts, counts, slots),
    }
    found, agree = compare(ways, options.rounds)
    ours, theirs = found["engine"], found["transformers"]
    return (
        f"{len(prompts)} requests of {min(lengths)} to {max(lengths)} and {min(counts)} to {max(counts)} tokens, "
        f"{slots} at a time: engine {ours.speed:.0f} tokens/s, transformers {theirs.speed:.0f}, ratio "
        f"{ours.speed / theirs.speed:.2f}, CPU {theirs.cpu_s / ours.cpu_s:.2f}, equal {agree}/{len(prompts)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="generated for every prompt")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32, help="of drawn lengths; 0: none")
    parser.add_argument("--slots", type=int, default=8, help="of the engine, for requests of drawn lengths")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--http", action="store_true", help="measure the server, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    draw = torch.Generator().manual_seed(1)
    print(
        f"hidden prompt tokens batch {'engine':>8} {'transformers':>12}  ratio    CPU  step ms  read ms  prefill "
        f"{'equal':>7}" + ("   HTTP  adds ms" if options.http else ""),
        flush=True,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(1)) if options.http else None
        module = make_folder(folder, options)
        for batch in options.batches:
            prompts = torch.randint(1, VOCABULARY, (batch, options.prompt), generator=draw).tolist()
            print(measure(folder, module, prompts, pool, options), flush=True)
        if options.requests:
            print(measure_mixed(folder, module, options), flush=True)


if __name__ == "__main__":
    main()
