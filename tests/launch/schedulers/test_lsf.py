"""What LSF and Flux say is left of a job."""

from __future__ import annotations

from megads.launch.schedulers.time_left import ends_at
from tests.launch.schedulers.helpers import NOW, NOWHERE, answering, left_of, say


def test_flux_and_lsf_say_what_is_left(tmp_path):
    env = answering(tmp_path, flux=say("93.5"), bjobs=say("1:30 L"))
    assert left_of(lambda: ends_at(NOWHERE, env | {"FLUX_JOB_ID": "f1"}, "", NOW), 93.5)
    assert left_of(lambda: ends_at(NOWHERE, env | {"LSB_JOBID": "3"}, "", NOW), 5400)
