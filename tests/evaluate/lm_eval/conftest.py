"""lm-eval's backend ``hf`` on the same folders, asked once; nothing is fetched, and caches are the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.evaluate.lm_eval.tiny import model_folder, run


@pytest.fixture(scope="session", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        # A report on the computer, for which lm-eval starts a dozen programs.
        patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
        yield


@cache
def _hf(kind: str, context: int, begins: bool, chat: bool) -> dict[str, Any]:
    from lm_eval.models.huggingface import HFLM

    folder = str(model_folder(kind, begins=begins))
    model = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=4, max_length=context)
    return run(model, *(["tiny_answer"] if chat else []), apply_chat_template=chat)


@pytest.fixture(scope="session")
def hf() -> Any:
    """Return what gives the results of the backend ``hf``."""
    return lambda kind, context, *, begins=False, chat=False: _hf(kind, context, begins, chat)
