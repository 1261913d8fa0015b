"""``megads serve``: a trained model behind HTTP."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from megads.cli.generate import degrees_of, is_rank, model_options, session_request, start_ranks
from megads.cli.watched import watched
from megads.errors import ConfigError

_KEY = "MEGADS_API_KEY"


@click.command()
@model_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: everybody.")
@click.option("--port", type=click.IntRange(0, 65535), default=5000, show_default=True, help="0: a free one.")
@click.option("--name", "--served-model-name", help="Name of the model in /v1/models; default: that of the folder.")
@click.option(
    "--api-key", help=f"Key that /v1 and /api demand; better in {_KEY}, which other users of the host cannot see."
)
@click.option("--max-waiting", type=click.IntRange(min=0), default=64, show_default=True, help="Then 429.")
@click.option("--max-body", type=click.IntRange(min=1), default=1 << 20, show_default=True, help="Bytes of a request.")
@click.option("--request-timeout", type=click.FloatRange(min=0, min_open=True), default=600, show_default=True)
def serve(
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    max_waiting: int,
    max_body: int,
    request_timeout: float,
    **options: Any,
) -> None:
    """Serve the model in SRC: a run, a folder of checkpoints, a checkpoint of any layout, Megatron's files, or a
    Hugging Face folder.

    OpenAI's /v1/completions, /v1/chat/completions and /v1/models; Megatron-LM's PUT /api; /tokenize, /detokenize,
    /tokenizer_info, /health, /metrics; and a page at / to try it. Ctrl-C or SIGTERM finishes what has begun.
    """
    degrees = degrees_of(options)
    key = api_key or os.environ.get(_KEY, "")
    if key and not key.isascii():
        raise ConfigError(f"the API key of --api-key or {_KEY} must be ASCII")
    ranks = degrees["tensor"] * degrees["pipeline"]
    if ranks > 1 and not is_rank():
        sys.exit(start_ranks(ranks))
    from megads.inference.server.serve import ServerOptions
    from megads.inference.server.serve import serve as serve_session
    from megads.inference.session import open_session
    from megads.monitor.log import start_log

    wanted = session_request(options, degrees, options["batch"], uses=("causal", "t5"))
    session = open_session(wanted, os.environ)
    start_log(session.groups.rank, "info", None)
    if session.speaks:
        for line in (*session.notes, session.summary):
            click.echo(f"megads: {line}", err=True)
    served = ServerOptions(host, port, name or wanted.source.name, key, max_waiting, max_body, request_timeout)
    with watched(session, handles_sigterm=True) as presence:
        serve_session(session, served, presence)
