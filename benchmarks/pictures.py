"""The pictures of README.md and docs/tutorial.md: ``python -m benchmarks.pictures [FOLDER]``.

Walks docs/tutorial.md in FOLDER (a new temporary one) with the ``megads`` on PATH, unless that was done there before,
and puts its pictures into docs/pictures: the plots of its two runs, the plan, and its chat page in Chromium.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.browser import QUIET, chromium
from tests.documents import commands, walk

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
QUESTION = "What%20does%20len%20do%3F"
LARGEST = 150_000
"""Bytes of a picture."""
WAIT_S = 120


def main(folder: str = "") -> None:
    place = Path(folder or tempfile.mkdtemp(prefix="megads-hour-")).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "plan.png").exists():
        steps = walk(commands(ROOT / "docs/tutorial.md"), place, os.environ, timeout_s=3600)
        print(f"{len(steps)} commands of docs/tutorial.md in {sum(step.seconds for step in steps):.0f} s")
    PICTURES.mkdir(exist_ok=True)
    for name in ("compared", "plan"):
        write(name, (place / f"{name}.png").read_bytes())
    write("chat", chat_page(place))


def write(name: str, png: bytes) -> None:
    """Write a picture with so few colours that it is small."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as given:
        image = given.convert("RGB")
    image.thumbnail((1400, 1400))
    path = PICTURES / f"{name}.png"
    image.quantize(colors=48, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size} bytes")
    assert size < LARGEST, f"{path} has {size} bytes, more than {LARGEST}"


def chat_page(place: Path) -> bytes:
    """Return what a browser shows after the finetuned model has answered a question."""
    server = subprocess.Popen(
        ["megads", "serve", "runs/llama-chat", "--port", "0"], cwd=place, stderr=subprocess.PIPE, text=True
    )
    try:
        address = next(word for line in server.stderr or () for word in line.split() if word.startswith("http://"))
        return asyncio.run(_shot(f"{address}/?chat#{QUESTION}"))
    finally:
        server.terminate()
        server.communicate(timeout=WAIT_S)


async def _shot(page: str) -> bytes:
    """Return the picture of a page once its answer is complete."""
    import aiohttp

    own = tempfile.mkdtemp(prefix="megads-browser-")
    quiet = [word for word in QUIET if not word.startswith(("--virtual-time", "--proxy"))]
    words = [*quiet, f"--user-data-dir={own}", "--window-size=900,560", "--remote-debugging-port=0", page]
    browser = subprocess.Popen([chromium(), *words], stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": own})
    try:
        line = next(line for line in browser.stderr or () if line.startswith("DevTools listening on"))
        host = line.split("ws://")[1].split("/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{host}/json/list") as answer:
                tabs: list[dict[str, Any]] = await answer.json()
            tab = next(tab for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                for _ in range(10 * WAIT_S):
                    text = "document.getElementById('state')?.textContent ?? ''"
                    found = await _ask(socket, "Runtime.evaluate", expression=text)
                    if " tokens in " in found["result"]["value"]:
                        break
                    await asyncio.sleep(0.1)
                else:
                    raise SystemExit(f"{page}: no answer within {WAIT_S} s")
                shot = await _ask(socket, "Page.captureScreenshot", format="png")
                return base64.b64decode(shot["data"])
    finally:
        browser.terminate()
        browser.communicate(timeout=WAIT_S)
        shutil.rmtree(own, ignore_errors=True)


async def _ask(socket: Any, method: str, **params: Any) -> dict[str, Any]:
    await socket.send_json({"id": 1, "method": method, "params": params})
    while True:
        answer = await socket.receive_json()
        if answer.get("id") == 1:
            result: dict[str, Any] = answer["result"]
            return result


if __name__ == "__main__":
    main(*sys.argv[1:])
