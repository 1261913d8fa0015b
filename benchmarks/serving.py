"""Many clients at a server, every answer checked: latency, tokens a second, and what is lost.

    python -m benchmarks.serving runs/books [--clients 64] [--seconds 120] [--batch 16] [--tp 1]

Starts `megads serve` on loopback, asks for every prompt once alone, then lets the clients ask for them at random: texts
(greedy, so that the answer is known), streams that are read to their end, streams that are left in the middle, and
requests that are wrong. An answer that differs, is lost or is no 4xx where it must be one ends the program with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

PROMPTS = ["import os", "def main(", "class A", "for x in", "return", "# a comment", "x = 1", '"""Doc']
WRONG = [{"prompt": 5}, {"prompt": "a", "temperature": -1}, {"prompt": [10**9]}, {"prompt": "a" * 30_000}, [], {}]
TOKENS = 16


@dataclass
class Seen:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def body(prompt: str, **more: object) -> dict[str, object]:
    """Return a request for greedy text."""
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, **more}


async def one(client: httpx.AsyncClient, draw: random.Random, wanted: dict[str, str], seen: Seen) -> None:
    """Ask once, and check the answer."""
    kind = draw.choices(("text", "stream", "leave", "wrong"), (6, 2, 1, 1))[0]
    prompt = draw.choice(PROMPTS)
    began = time.perf_counter()
    if kind == "wrong":
        answer = await client.post("/v1/completions", json=draw.choice(WRONG))
        message = answer.json()["error"]["message"]
        if not 400 <= answer.status_code < 500 or "\n" in message:
            seen.problems.append(f"a wrong request got {answer.status_code}: {message}")
    elif kind == "text":
        answer = await client.post("/v1/completions", json=body(prompt))
        if answer.status_code == 429:
            seen.counts["overloaded"] += 1
            await asyncio.sleep(0.1)
            return
        text = answer.json()["choices"][0]["text"]
        if text != wanted[prompt]:
            seen.problems.append(f"{prompt!r}: {text!r}, expected {wanted[prompt]!r}")
        seen.tokens += TOKENS
        seen.seconds.append(time.perf_counter() - began)
    else:
        text = ""
        async with client.stream("POST", "/v1/completions", json=body(prompt, stream=True)) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += choices[0]["text"] if choices else ""
                if kind == "leave" and len(text) > 5:
                    break
        if answer.status_code == 200 and (
            text != wanted[prompt] if kind == "stream" else text[:5] != wanted[prompt][:5]
        ):
            seen.problems.append(f"{kind} of {prompt!r}: {text!r}, expected {wanted[prompt]!r}")
        seen.tokens += TOKENS if kind == "stream" else 0
    seen.counts[kind] += 1


async def load(url: str, clients: int, seconds: float, seed: int) -> tuple[Seen, float]:
    """Let the clients ask for so many seconds; return what they saw, and how long it took."""
    seen, draw = Seen(), random.Random(seed)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        wanted = {}
        for prompt in PROMPTS:
            answer = await client.post("/v1/completions", json=body(prompt))
            wanted[prompt] = answer.json()["choices"][0]["text"]
        began = time.monotonic()

        async def ask(own: random.Random) -> None:
            while time.monotonic() < began + seconds:
                await one(client, own, wanted, seen)

        await asyncio.gather(*(ask(random.Random(draw.random())) for _ in range(clients)))
        return seen, time.monotonic() - began


def main() -> int:
    """Run the benchmark; return 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    words = ["serve", given.source, "--port", "0", "--batch", str(given.batch), "--tp", str(given.tp)]
    server = subprocess.Popen([sys.executable, "-m", "megads", *words], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = None
    for line in server.stderr:
        if url := re.search(r"http://127\.0\.0\.1:\d+", line):
            break
    if url is None:
        return server.wait()
    seen, took = asyncio.run(load(url[0], given.clients, given.seconds, given.seed))
    server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=60)
    print(f"{given.clients} clients, {took:.0f} s, seed {given.seed}: {dict(seen.counts)}")
    if len(seen.seconds) > 1:
        cuts = statistics.quantiles(seen.seconds, n=20)
        print(f"texts of {TOKENS} tokens: p50 {cuts[9] * 1e3:.0f} ms, p95 {cuts[18] * 1e3:.0f} ms")
    print(f"{seen.tokens / took:.0f} tokens/s in texts and whole streams; exit code {code}")
    for problem in seen.problems[:10]:
        print(problem)
    print(f"{len(seen.problems)} wrong answers")
    return int(bool(seen.problems) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
