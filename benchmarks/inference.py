"""Tokens per second of the engine against transformers' generate, and what the server costs.

    python benchmarks/inference.py [--hidden 512] [--layers 8] [--tokens 64] [--rounds 5]

A small Llama with random weights, fp32 on the CPU, with as many torch threads as cores. For every batch the engine and
transformers continue the same prompts greedily, in turns; then the same requests go to a server on loopback from
another process. Printed are median tokens per second, their ratios, the milliseconds that HTTP adds to a
batch, and how many texts are equal.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
import uvicorn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.inference.engine import Engine
from megads.inference.load import HFWeights, load_model
from megads.inference.packed import pack
from megads.inference.runner import Runner
from megads.inference.sampling import Sampling
from megads.inference.server.app import make_app
from megads.inference.server.chat import ChatTemplate
from megads.inference.server.engine_loop import EngineLoop
from megads.inference.session import Session

VOCABULARY = 4096


class Characters:
    """Tokens are characters."""

    eod = 0
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
        max_position_embeddings=2 * (options.prompt + options.tokens),
        initializer_range=0.1,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    module.save_pretrained(folder)
    module.generation_config.eos_token_id = None
    return module


def runner_of(folder: Path, num_slots: int) -> Runner:
    groups, weights = Groups(Grid(), 0), HFWeights(folder)
    module = load_model(weights, groups, torch.device("cpu"), torch.float32)
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


def compare(ways: dict[str, Callable[[], list[list[int]]]], rounds: int) -> tuple[dict[str, float], int]:
    """Return median tokens per second of every way, taken in turns after a first round, and how many texts agree."""
    texts = {name: way() for name, way in ways.items()}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            count = sum(map(len, way()))
            speeds[name].append(count / (time.perf_counter() - started))
    agree = sum(all(each == one[0] for each in one) for one in zip(*texts.values(), strict=True))
    return {name: statistics.median(found) for name, found in speeds.items()}, agree


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="generated for every prompt")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    draw = torch.Generator().manual_seed(1)
    print(f"batch {'engine':>8} {'transformers':>12}  ratio {'HTTP':>8} of engine {'adds ms':>8} {'equal':>7}")
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1) as client:
        module = make_folder(Path(folder), options)
        for batch in options.batches:
            prompts = torch.randint(1, VOCABULARY, (batch, options.prompt), generator=draw).tolist()
            engine = Engine(runner_of(Path(folder), batch), tokenizer=Characters())
            with serving(runner_of(Path(folder), batch)) as url:
                ways = {
                    "engine": lambda: by_engine(engine, prompts, options.tokens),  # noqa: B023
                    "transformers": lambda: by_transformers(module, prompts, options.tokens),  # noqa: B023
                    "http": lambda: client.apply(by_http, (url, prompts, options.tokens)),  # noqa: B023
                }
                found, agree = compare(ways, options.rounds)
            ours, theirs, served = found.values()
            print(
                f"{batch:5} {ours:8.0f} {theirs:12.0f} {ours / theirs:6.2f} {served:8.0f} {served / ours:9.2f} "
                f"{1e3 * batch * options.tokens * (1 / served - 1 / ours):8.1f} {f'{agree}/{batch}':>7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
