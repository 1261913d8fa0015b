"""A plan: its line, its files, and what it takes out of the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from megads.errors import LaunchError
from megads.launch.launchers.plan import LaunchPlan
from tests.launch.launchers.helpers import plan_here


def test_files_are_written_privately_and_never_through_a_link(tmp_path):
    made = LaunchPlan(("true",), {}, files={str(tmp_path / "new/hosts"): "n1\n"})
    made.write_files()
    assert (tmp_path / "new/hosts").read_text() == "n1\n"
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    (tmp_path / "new/hosts").unlink()
    (tmp_path / "new/hosts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="the launcher reads its hosts"):
        made.write_files()
    assert not (tmp_path / "elsewhere").exists()


def test_what_an_earlier_launcher_left_is_unset_and_a_users_settings_stay():
    stale = ["RANK", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE"]
    stale += ["OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PMI_FD", "PMIX_NAMESPACE", "MPI_LOCALNRANKS"]
    stale += ["MEGADS_WORLD_SIZE", "MEGADS_IN_PLACE", "MEGADS_ENDS_AT", "HYDI_CONTROL_FD", "CROSS_RANK"]
    stale += ["PALS_RANKID", "PALS_LOCAL_SIZE", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_PTY_PORT", "FLUX_TASK_RANK"]
    kept = ["OMPI_MCA_btl", "PMIX_MCA_gds", "MPIR_CVAR_NEMESIS", "NCCL_DEBUG", "RANKS", "MEGADS_DEVICE", "HOME"]
    kept += ["PALS_PING_PERIOD", "PALS_PMI", "PMI_MAX_KVS_ENTRIES", "SLURM_JOB_ID", "SLURM_NTASKS", "MEGADS_TIMEOUT_S"]
    made = plan_here("torchrun", 2, dict.fromkeys([*stale, *kept], "x"))
    assert set(stale) <= set(made.unset)
    assert not set(kept) & set(made.unset)
    left = made.environment(dict.fromkeys([*stale, *kept], "x"))
    assert set(left) == set(kept) | set(made.env)


def test_the_line_does_the_same_when_pasted_into_a_shell(tmp_path):
    code = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('seen.json', 'w'))"
    awkward = {"A": "with space", "B": "quo'te\"$HOME", "C": "", "D": "a=b;c|d\n"}
    words = ("--x=1", "two words", "$(date)", "'")
    made = LaunchPlan((sys.executable, "-c", code, *words), awkward, ("RANK", "GONE"))
    subprocess.run(
        ["bash", "-c", made.line()], cwd=tmp_path, env={"RANK": "1", "KEPT": "2", "PATH": os.environ["PATH"]}
    )
    seen_words, seen_env = json.loads((tmp_path / "seen.json").read_text())
    assert seen_words == list(words)
    assert {name: seen_env[name] for name in awkward} == awkward
    assert "RANK" not in seen_env
    assert seen_env["KEPT"] == "2"
