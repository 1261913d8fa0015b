"""Every field of docs/serving-api.md does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from megads.inference.server.fields import ChatRequest, CompletionRequest
from megads.inference.server.megatron_api import FLAGS, NUMBERS, RENAMED
from tests.inference.server.conformance import API, CHAT, COMPLETIONS, IDLE, NO, PLAIN, ROWS, YES, Row, answer, page


def test_the_page_is_made_of_the_table():
    path = Path(__file__).parents[3] / "docs/serving-api.md"
    assert path.read_text() == page(), "python -m tests.inference.server.conformance > docs/serving-api.md"


def test_every_field_that_is_read_has_a_row():
    rows = {route: {row.name for row in ROWS if row.route == route} for route in PLAIN}
    assert set(CompletionRequest.model_fields) <= rows[COMPLETIONS]
    assert set(ChatRequest.model_fields) <= rows[CHAT]
    assert {*FLAGS, *NUMBERS, *RENAMED, "prompts"} <= rows[API]
    assert all(row.check for row in ROWS if row.status == YES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.route.rpartition('/')[2]}-{row.name}".replace(" ", "-"))
def test_a_field(served, row: Row):
    method, path = row.route.split()

    def ask(**fields: Any) -> httpx.Response:
        return httpx.request(method, served.url + path, json={**PLAIN[row.route], **fields}, timeout=60)

    name = "unheard_of" if row.name == "any other" else row.name
    if row.status == YES:
        assert row.check is not None
        assert row.check(ask)
    if row.status == IDLE:
        assert answer(ask(**{name: row.value})) == answer(ask())
    if row.wrong is not None or row.status == NO:
        refused = ask(**{name: row.value if row.status == NO else row.wrong})
        assert refused.status_code == 400, refused.text
        found = refused.json()
        message = found["message"] if path == "/api" else found["error"]["message"]
        assert name in message
        assert "\n" not in message
