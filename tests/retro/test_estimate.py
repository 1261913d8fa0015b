"""The lines before a build."""

from megads.data.retro.prepare import prepare
from megads.retro.estimate import banner
from tests.retro.corpus import make_corpus


def test_lines_name_counts_bytes_and_memory(tmp_path):
    project = prepare(tmp_path / "p", make_corpus(tmp_path / "c").options())
    first, second, third = banner(project)
    assert first.startswith("2 token files, 41 documents, 2,973 tokens: about 205 chunks of 16 tokens, ")
    assert second.startswith("index exact Flat, embedder hashed (256 numbers): 205 KiB of vectors; a search holds 205")
    assert third == "28 samples of 64 tokens: neighbours of 112 chunks, 4 of 5 kept, 3.5 KiB"
