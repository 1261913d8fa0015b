"""``megads bench --roofline`` and its table in docs/gpu.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli import main
from megads.cli.roofline import table

ROOT = Path(__file__).parents[2]


def _run(*words, **env):
    return CliRunner().invoke(main, ["bench", *words], env=env)


def test_the_document_has_the_table():
    text = (ROOT / "docs/gpu.md").read_text()
    found = text.partition("<!-- megads bench --roofline --markdown -->\n")[2].partition("<!-- end -->")[0]
    assert found == table(), "run `megads bench --roofline --markdown`"
    assert all("estimated" in line for line in table().splitlines()[2:])


def test_lines_add_up_to_the_step():
    done = _run(
        "--roofline",
        "--device",
        "h100",
        "--preset",
        "7B",
        ENGINE="deepspeed",
        KERNELS="eager",
        NLAYERS="10",
        GRAD_ACC_STEPS="8",
    )
    assert done.exit_code == 0, done.output
    times = [float(each.replace(",", "")) for each in re.findall(r" ([\d.,]+) ms +\d+\.\d%$", done.output, re.M)]
    (step,) = (float(each) for each in re.findall(r"^step +([\d.]+) ms$", done.output, re.M))
    assert abs(sum(times) - step) < 0.01 * len(times)
    assert done.output.startswith("ESTIMATED, not measured: 1 x NVIDIA H100")
    assert re.search(r"^mfu      4\d\.\d% with causal attention counted in full, 4\d\.\d% with half", done.output, re.M)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--roofline", "--json", "x.json"), "--json x.json is for what is measured, not for --roofline"),
        (("--roofline", "--parts", "matmul"), "--parts matmul is for what is measured"),
        (("--roofline", "--tiny"), "--tiny is for what is measured"),
        (("--markdown",), "--markdown is for --roofline"),
        (("--preset", "7B"), "--preset 7B is for --roofline"),
    ],
)
def test_an_option_of_the_other_form_is_refused(words, line):
    done = _run(*words)
    assert done.exit_code == 2
    assert line in done.output
