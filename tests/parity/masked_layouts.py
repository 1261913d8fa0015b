"""What the drawn layouts of BERT and T5 share: which can be, and the layout of a drawn case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.parity.layouts import SAMPLES, Layout

RECOMPUTE: dict[str, dict[str, str]] = {
    "none": {},
    "selective": {"recompute.granularity": "selective"},
    "full": {"recompute.granularity": "full", "recompute.num_layers": "1"},
}


def is_allowed(tp: int, pp: int, sp: int, dp: int, zero: int, scatter: bool, micro_batch: int, **_: Any) -> bool:
    """Return whether the step's samples fit, and the layout is one of two to four ranks that is not refused."""
    fits = SAMPLES % (dp * micro_batch) == 0 and (tp > 1 or not scatter) and (pp == 1 or zero < 2)
    return fits and 1 < tp * pp * sp * dp <= 4


def layout_of(case: Mapping[str, Any], recompute: Mapping[str, dict[str, str]] = RECOMPUTE) -> Layout:
    """Return the layout of a drawn ``case``."""
    more = {"train.micro_batch": str(case["micro_batch"]), **recompute[case["recompute"]]}
    if case["scatter"]:
        more["parallel.scatter_norms"] = "true"
    if case["zero"] == 3:
        more["deepspeed.param_persistence_threshold"] = "0"
    degrees = {name: case[name] for name in ("tp", "pp", "sp", "dp")}
    return Layout(case["kind"], **degrees, zero=case["zero"], more=more)
