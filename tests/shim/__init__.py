"""A file system with faults: rules by call, path and number of the call; see :class:`tests.shim.rules.Rule`.

In a process that is started (its environment)::

    run([...], env={**os.environ, **shim_env([Rule("write", "*/rank-00001*", "ENOSPC", first=2)])})

In a forked command of ``tests/forks`` (no new interpreter)::

    env = {"PYTHONPATH": megads.plant(planted(rules))}

In this process, while a block runs: ``with shimmed(rules): ...``.
"""

from tests.shim.rules import Rule, planted, shim_env, shimmed

__all__ = ["Rule", "planted", "shim_env", "shimmed"]
