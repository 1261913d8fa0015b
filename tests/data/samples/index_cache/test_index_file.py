"""Files that are not what was written are found, and replaced."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest

from megads.data.samples.index_cache.index_file import _LENGTH
from megads.data.samples.mix import OrderRecipe
from megads.errors import DataError
from tests.data.samples.in_memory import collect, read_all
from tests.data.samples.index_cache.conftest import flip
from tests.data.samples.index_cache.test_cache import _recipes

SEED = random.randrange(10**6)


def test_every_flipped_bit_is_found_and_mended(tmp_path, cache, lines, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    dice = random.Random(SEED)
    for recipe in _recipes(tmp_path):
        cache.get(recipe)
        path, expected = cache.path(recipe), collect(recipe)
        content = path.read_bytes()
        for number in range(80):
            # Half of them in the header, of which a few bits decide everything.
            bit = dice.randrange(8 * (len(content) if number % 2 else min(700, len(content))))
            flip(path, bit)
            assert not cache.verify(recipe), f"seed {SEED}: bit {bit} of {path}"
            assert not path.exists()
            found = read_all(cache.get(recipe))
            assert all(np.array_equal(found[name], each.reshape(-1)) for name, each in expected.items())
            assert path.read_bytes() == content
    assert len(lines()) == 240
    assert all("; rebuilding it" in line and str(cache.folder) in line for line in lines())


def test_an_index_of_an_older_version_has_no_checksum_and_is_built_again(cache, lines):
    recipe = OrderRecipe(99, 1)
    cache.get(recipe)
    path = cache.path(recipe)
    content = path.read_bytes()
    (length,) = _LENGTH.unpack(content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = {"megads": header["__metadata__"]["megads"]}
    text = json.dumps(header).encode()
    path.write_bytes(_LENGTH.pack(len(text)) + text + content[8 + length :])
    assert cache.find(recipe) is None
    assert np.array_equal(read_all(cache.get(recipe))["order"], collect(recipe)["order"])
    assert lines() == [
        f"sample index {path}: its header is not that of an index with checksums; an older version had none; "
        "rebuilding it"
    ]
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_replaced_or_refused_and_never_waited_for(cache, kind):
    recipe = OrderRecipe(99, 1)
    cache.folder.mkdir(parents=True)
    os.mkfifo(cache.path(recipe)) if kind == "pipe" else cache.path(recipe).mkdir()
    assert cache.find(recipe) is None
    if kind == "pipe":
        assert np.array_equal(read_all(cache.get(recipe))["order"], collect(recipe)["order"])
    else:
        with pytest.raises(DataError, match=r"sample indices in .*: is a directory; set DATA_CACHE_PATH"):
            cache.get(recipe)
