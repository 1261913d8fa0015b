"""docs/megatron-options.md has the tables that the settings give."""

from pathlib import Path

from megads.cli.options.page import page

ROOT = Path(__file__).parents[3]


def test_the_page_of_options_is_up_to_date():
    written = (ROOT / "docs/megatron-options.md").read_text()
    assert written == page(written), "python -m megads.cli.options.page docs/megatron-options.md"
