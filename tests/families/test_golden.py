"""Counts, cuts, names, FLOPs and memory of drawn models are what they were before models were described once.

Two facts are newer: an optimizer of whole parameters also steps the table of positions, and what accelerators keep of
norms is less than what a CPU keeps (memory, activations).
"""

from __future__ import annotations

import json

import pytest

from tests.families.golden import CASES, FILE, draw_run, facts_of

GOLDEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("number", range(CASES))
def test_a_drawn_model_is_what_it_was(number):
    assert json.loads(json.dumps(facts_of(draw_run(number)))) == GOLDEN[str(number)]
