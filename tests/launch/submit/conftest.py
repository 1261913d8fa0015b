from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """Work in a folder without runs and without a demo corpus, on devices of any size (test_device_memory)."""
    (tmp_path / "nowhere").mkdir()
    monkeypatch.chdir(tmp_path / "nowhere")
    monkeypatch.setattr("megads.launch.submit.training.check_device", lambda *args, **more: "")
