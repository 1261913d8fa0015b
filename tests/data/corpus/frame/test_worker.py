"""A worker that fails says so, and keeps its bytes until they have a place."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from megads.data.corpus.frame.job import CorpusJob
from megads.data.corpus.frame.step import Drop
from megads.data.corpus.frame.worker import READY, _Worker, serve
from megads.data.preprocess.input.files import look_at
from megads.data.preprocess.plan import Segment
from megads.data.preprocess.workers.pool import Block, Failed, Write
from tests.data.corpus.frame.test_step import Short


@pytest.fixture
def job(tmp_path) -> CorpusJob:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"text": "long"}\n{"text": "x"}\n\n{"text": "other"}')
    for number in range(2):
        (tmp_path / str(number)).touch()
    return CorpusJob((look_at(str(path)),), Short(), str(tmp_path / "out"), str(tmp_path / "gone"))


def block_of(job: CorpusJob) -> Block:
    source = job.inputs[0]
    return Block(0, 0, source.path, 0, source.size, source.size)


def test_bytes_wait_for_their_place(job, tmp_path):
    paths = (str(tmp_path / "0"), str(tmp_path / "1"))
    worker = _Worker(job, [Segment(0, 0, job.inputs[0].size)], paths)
    answer = worker.make(block_of(job))
    assert (answer.documents, answer.lines, answer.bad, answer.text_bytes) == (3, 4, [], job.inputs[0].size)
    assert [os.path.getsize(path) for path in paths] == [0, 0]
    worker.write(Write(0, (3, 0)))
    assert (tmp_path / "0").read_bytes() == b'\0\0\0{"text": "long"}\n{"text": "other"}\n'
    assert answer.num_bytes == (len(b'{"text": "long"}\n{"text": "other"}\n'), (tmp_path / "1").stat().st_size)


def test_dropped_documents_nobody_asks_for_are_counted_only(job, tmp_path):
    worker = _Worker(replace(job, dropped=""), [Segment(0, 0, job.inputs[0].size)], (str(tmp_path / "0"),))
    answer = worker.make(block_of(job))
    assert answer.num_bytes[1] == 0
    assert answer.counts["dropped/short"] == 1


class Pipe:
    """Both ends of a pipe: messages to get, and those that were sent."""

    def __init__(self, *messages: object):
        self.messages, self.sent = list(messages), []

    def recv(self) -> object:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send(self, message: object) -> None:
        self.sent.append(message)


def test_a_bug_in_a_step_comes_with_its_traceback(job, tmp_path):
    class Broken(Short):
        def judge(self, document, result) -> Drop:
            raise ZeroDivisionError("in a step")

    pipe = Pipe((str(tmp_path / "0"), str(tmp_path / "1")), block_of(job))
    serve(pipe, replace(job, step=Broken()), [Segment(0, 0, job.inputs[0].size)])
    ready, failed = pipe.sent
    assert ready == READY
    assert isinstance(failed, Failed)
    assert "ZeroDivisionError: in a step" in str(failed.error)
    pipe = Pipe()
    serve(pipe, job, [])
    assert pipe.sent == [READY]
