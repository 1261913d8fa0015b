"""Every option reaches the job."""

from __future__ import annotations

from click.testing import CliRunner

from megads.cli.data import preprocess as command
from megads.cli.data.preprocess import preprocess
from megads.cluster.machine import count_cores
from megads.data.preprocess import run
from megads.data.preprocess.output import Made
from megads.data.preprocess.plan import How, Job
from megads.data.tokenizers.base import TokenizerSpec


def _job(monkeypatch, *words: str) -> tuple[Job, str]:
    jobs = []

    def made(job: Job, **_: object) -> list[Made]:
        jobs.append(job)
        return [Made("/out/my books_text_document", 1, 2, 30, "uint16")]

    monkeypatch.setattr(run, "preprocess", made)
    done = CliRunner().invoke(preprocess, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return jobs[0], done.stdout


def test_defaults(tmp_path, monkeypatch):
    monkeypatch.delenv("DATA_CACHE_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("{}\n")
    job, output = _job(monkeypatch, "--input", "a", "--output-prefix", "my books")
    assert [source.path for source in job.inputs] == ["a"]
    assert (job.output_prefix, job.keys, job.tokenizer) == ("my books", ("text",), TokenizerSpec("HFTokenizer"))
    cache = str(tmp_path / command._CACHE / "encoders")
    assert job == Job(job.inputs, "my books", job.tokenizer, how=How(workers=count_cores(), proofs=cache))
    assert output == '30 "/out/my books_text_document" "my books"  # 1 document, 2 sequences, uint16\n'


def test_every_option(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_text("{}\n")
    words = f"""--input {tmp_path}/a {tmp_path}/b --output-prefix out --json-keys x y --tokenizer-type NullTokenizer
        --tokenizer-name-or-path model --vocab vocab --merge-file merges --vocab-size 99 --vocab-extra-ids 4
        --append-eod --split-sentences --lang german --keep-newlines --workers 3 --chunk-size 5 --dataset-impl cached
        --partitions 2 --keep-sequential-samples --log-interval 7 --max-bad-lines 8 --encoder original
        --data-cache-path /cache --verify --force --block-bytes 9 --commit-seconds 0.5 --keep-seconds 1.5""".split()
    job, _ = _job(monkeypatch, *words)
    assert [source.path for source in job.inputs] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert job == Job(
        job.inputs,
        "out",
        # Megatron's 99 does not count the id at the end of documents.
        TokenizerSpec("NullTokenizer", "model", "vocab", "merges", 100, 4),
        keys=("x", "y"),
        append_eod=True,
        split_sentences=True,
        lang="german",
        keep_newlines=True,
        impl="cached",
        verify=True,
        how=How(3, 2, 5, "original", "/cache/encoders", 8, 7, True, 9, 0.5, 1.5),
    )
