"""Commands of megads in processes that are forked from one that has imported everything.

An interpreter of its own, with torch and DeepSpeed, costs a rank 2 to 4 s of a core, ten times what the
rest of a small run does. A server (``server.py``), one per pytest worker, imports all of it once and forks
a process for every command (``popen.py``, a ``subprocess.Popen``). That process behaves as a new
interpreter would (``become.py``), and forks, in place of starting, what it starts itself: torchrun, the
local launcher, ranks. Parents, sessions, signals, exit codes, environments and files are the real ones.

What is not forked: anything that is not ``python -m`` one of :data:`MODULES`, and a command whose
environment an import may read (:func:`tests.forks.become.is_forkable`): those start a real interpreter.
``MEGADS_TEST_FORK=0`` starts real ones everywhere.
"""

from __future__ import annotations

MODULES = ("megads", "megads.launch.launchers.local", "torch.distributed.run", "deepspeed.launcher.runner")
"""What is run in a forked process, as ``python -m MODULE``."""
