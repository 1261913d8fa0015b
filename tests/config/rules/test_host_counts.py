"""Which numbers of hosts share out a global batch."""

import pytest

from megads.config.derive import derive
from megads.config.rules.host_counts import counts_that_fit, fitting_hosts
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.checkpoint.faked import TINY


def test_every_count_that_is_named_fits_and_no_other_does():
    for total, micro, model, per_host in ((32, 1, 1, 4), (96, 2, 8, 12), (30, 1, 2, 6), (7, 1, 1, 4)):
        fitting = fitting_hosts(total, micro, model, per_host, 40)
        for hosts in range(1, 41):
            ranks = hosts * per_host
            fits = ranks % model == 0 and ranks >= model and total % (micro * (ranks // model)) == 0
            assert (hosts in fitting) == fits


def test_the_nearest_counts_are_named():
    assert counts_that_fit(1024, 1, 1, 4, 100) == "a job of 16, 32, 64 or 128 hosts"
    assert counts_that_fit(7, 1, 1, 4, 3) == "a job of another number of hosts"
    assert counts_that_fit(24, 1, 1, 5, 1) == "a job of 2, 3, 4 or 6 ranks"
    assert counts_that_fit(1, 1, 1, 3, 1) == "a job of 1 rank"


@pytest.mark.parametrize(
    ("hosts", "per_host", "micro", "named"),
    [(3, 4, "", "1, 2 or 4 hosts"), (1, 5, "", "1, 2, 4 or 8 ranks"), (3, 4, "2", "1, 2 or 4 hosts")],
)
def test_a_batch_that_does_not_divide_names_the_counts_that_would(hosts, per_host, micro, named):
    env = {**TINY, "GLOBAL_BATCH": "32", "MICRO_BATCH": micro}
    with pytest.raises(ConfigError) as refused:
        derive(resolve(env=env, machine="generic"), num_hosts=hosts, ranks_per_host=per_host, vocab_size=0)
    assert str(refused.value).startswith("GLOBAL_BATCH=32 (env GLOBAL_BATCH) is not a multiple of MICRO_BATCH x DP")
    assert str(refused.value).endswith(f" or a job of {named}")
