"""Outputs that cannot be are refused before anything is read; work is known by everything that decides its bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megads.data.corpus.frame.job import CorpusJob, check_job, digest_of
from megads.data.corpus.lines import AddId, Merge
from megads.data.preprocess.input.files import look_at
from megads.data.preprocess.plan import How
from megads.errors import MegadsError


@pytest.fixture
def job(tmp_path) -> CorpusJob:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    return CorpusJob((look_at(str(path)),), Merge(), str(tmp_path / "out"))


def refused(job: CorpusJob, size: int = 1) -> str:
    with pytest.raises(MegadsError) as found:
        check_job(job, size)
    return str(found.value)


def test_outputs_that_cannot_be(job, tmp_path):
    folder, source = str(tmp_path), job.inputs[0].path
    check_job(job, 2)
    assert "is a folder" in refused(replace(job, output=folder))
    assert "is a folder" in refused(replace(job, output=f"{folder}/new/"))
    assert "--output -: stdout cannot be resumed" in refused(replace(job, output="-"))
    assert "use the name x.jsonl," in refused(replace(job, output="x.jsonl.gz"))
    assert "--output /dev/null: exists and is not a regular file" in refused(replace(job, output="/dev/null"))
    assert "is an input as well" in refused(replace(job, output=source))
    assert "is an input as well" in refused(replace(job, output=f"{folder}/./a.jsonl"))
    (tmp_path / "link").symlink_to(source)
    assert "--dropped" in refused(replace(job, dropped=f"{folder}/link"))
    assert "is the name of another output" in refused(replace(job, dropped=job.output))
    assert "is the name of another output" in refused(replace(job, dropped=job.report))
    assert "at most" in refused(replace(job, how=How(workers=10_000)))
    assert "numbers documents in one process, not in 2 ranks" in refused(replace(job, step=AddId("p")), 2)


def test_digest(job, tmp_path):
    first = digest_of(job, 1)
    assert first == digest_of(replace(job, how=How(workers=7)), 1)
    (tmp_path / "a.jsonl").write_text("{} \n")
    others = [
        digest_of(replace(job, inputs=(look_at(job.inputs[0].path),)), 1),
        digest_of(replace(job, dropped="x"), 1),
        digest_of(replace(job, step=AddId("p")), 1),
        digest_of(replace(job, step=AddId("q")), 1),
        digest_of(job, 2),
    ]
    assert len({first, *others}) == 6
