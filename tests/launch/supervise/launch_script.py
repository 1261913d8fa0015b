"""Launch ranks_script.py as `megads train` launches workers: STARTER RANKS RUN_DIR MODE."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from megads.config.schema import LaunchConfig, RunConfig
from megads.launch.launchers.command import plan_launch
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise import run as launch_run
from megads.launch.supervise import watch

starter, ranks, run_dir, mode = sys.argv[1:]
watch.KILL_AFTER_S = watch.FAILED_GRACE_S = 1.0
watch.POLL_S = 0.03
run = RunConfig(launch=LaunchConfig(launch_with=starter))
command = [sys.executable, str(Path(__file__).with_name("ranks_script.py")), run_dir, mode]
plan = plan_launch(run, Allocation("none", ("localhost",), int(ranks)), command, os.environ)
sys.exit(launch_run.run_plan(plan, Path(run_dir), os.environ))
