"""The names of the files of a run folder. Imports nothing, for commands that only look."""

from __future__ import annotations

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"  # one object per logged step
LOG_FILE = "log/run.log"  # what the launcher and rank 0 said, all starts of the run in one file
PREDICTED = "predicted.json"  # seconds of a step and memory that were predicted, written before the ranks start
OUTCOME = "outcome.json"  # how the run ended, written by the ranks
HEARTBEAT = "heartbeat.json"  # where rank 0 is, rewritten while it runs
ATTEMPTS = "attempts.jsonl"  # every start of the run: a row when it begins and one when it ends
JOBS = "jobs.txt"  # ids of the jobs that were submitted together
BRANCH = "branch.json"  # of which run and checkpoint this one is a branch; written by `megads branch`
COMMAND = "command.txt"  # the line that gives the command again
COMMAND_ONCE_SAVED = "command-once-saved.txt"  # takes its place at the first save; see note_saved
LEASE = "MEGADS_LEASE"  # to rank 0: the token of the lease that its launcher holds
STOP = "stop"  # asks the run to save and stop; made by the launcher or by `megads stop`
MEETING = ".megads-ranks-"  # in the working folder: where ranks on several hosts, that a user started, find rank 0
