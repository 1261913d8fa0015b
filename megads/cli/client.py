"""``megads client``: texts from a server, in the terminal."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

import click

from megads.errors import ConfigError
from megads.storage.reading import Bounds, parse_json


@click.command()
@click.argument("url")
@click.option("--max-tokens", type=click.IntRange(min=1), help="At most generated; default: asked for each prompt.")
@click.option("--api-key", envvar="MEGADS_API_KEY", show_envvar=True, default="", help="That the server demands.")
@click.option("--timeout", type=float, default=600, show_default=True, help="Seconds to wait for an answer.")
def client(url: str, max_tokens: int | None, api_key: str, timeout: float) -> None:
    """Read prompts from the terminal and print what the server at URL (host:port) continues, by PUT /api.

    It talks to `megads serve` and to Megatron-LM's run_text_generation_server.py.
    """
    address = _address(url)
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            prompt = input("Prompt: " if is_terminal else "")
            if not prompt:
                continue
            count = max_tokens or _count(input("Number of tokens: " if is_terminal else ""))
        except EOFError:
            return
        if count is None:
            click.echo("megads: pass a number of tokens of 1 or more", err=True)
            continue
        try:
            click.echo(ask(address, prompt, count, timeout, api_key))
        except ConfigError as error:
            click.echo(f"megads: {error}", err=True)
            if not is_terminal:
                sys.exit(2)


def _address(url: str) -> str:
    url = url if "://" in url else f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url}: pass host:port, or a URL that begins with http:// or https://")
    return url.rstrip("/") if url.rstrip("/").endswith("/api") else f"{url.rstrip('/')}/api"


def _count(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() and int(text) > 0 else None


def ask(address: str, prompt: str, count: int, timeout_s: float, api_key: str = "") -> str:
    """Return the prompt with its continuation.

    Raises:
        ConfigError: the server cannot be reached, or refuses the request.
    """
    body = json.dumps({"prompts": [prompt], "tokens_to_generate": count}).encode()
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(address, body, headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            found = parse_json(answer.read())
        return str(found["text"][0])
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{address}: {error.code}: {_message(error.read())}") from None
    except OSError as error:
        raise ConfigError(f"{address}: {getattr(error, 'reason', error)}; is the server running?") from None
    except (Bounds, KeyError, IndexError, TypeError):
        raise ConfigError(f"{address}: the answer is not that of a text generation server") from None


def _message(body: bytes) -> str:
    """Return what a server says of an error: a text, or an object with a message."""
    try:
        found = parse_json(body)
    except Bounds:
        return body.decode(errors="replace")[:200]
    return str(found.get("message", found) if isinstance(found, dict) else found)[:200]
