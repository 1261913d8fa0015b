from __future__ import annotations

import multiprocessing
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megads.data.samples.blend import BlendRecipe
from megads.data.samples.gpt import GPTRecipe, Stamp
from megads.data.samples.index_cache import cache as cache_module
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.mix import OrderRecipe
from megads.data.samples.recipe import ArrayStream, Columns, Spec
from megads.errors import DataError
from megads.storage import file_lock
from megads.storage.file_lock import take_lock
from tests.data.factory import write_dataset
from tests.data.samples.in_memory import collect, read_all

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Slow:
    """Numbers that come block by block, with a pause after each; every making is noted in a file."""

    log: str
    blocks_made: int = 20
    pause_s: float = 0.002
    kind = "slow"
    cost = 0
    nbytes = 0

    def description(self) -> dict[str, Any]:
        return {"log": self.log, "blocks": self.blocks_made}

    def make(self) -> ArrayStream:
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return ArrayStream((Spec("numbers", np.dtype(np.int32), (self.blocks_made, 500)),), self._blocks())

    def _blocks(self) -> Iterator[np.ndarray]:
        for i in range(self.blocks_made):
            time.sleep(self.pause_s)
            yield np.arange(500, dtype=np.int32) + i

    @property
    def times_made(self) -> int:
        return len(Path(self.log).read_text().splitlines())


@pytest.fixture
def slow(tmp_path) -> Slow:
    return Slow(str(tmp_path / "log"))


def _equal(found: Columns | None, expected: dict[str, np.ndarray]) -> bool:
    arrays = read_all(found or {})
    return list(arrays) == list(expected) and all(
        np.array_equal(arrays[name], each.reshape(-1)) for name, each in expected.items()
    )


def _recipes(tmp_path) -> list[Any]:
    prefix = write_dataset(tmp_path, [7, 3, 12, 5, 9, 4])
    return [
        GPTRecipe(prefix, Stamp.of(prefix), 0, 6, 8, 12, 1234),
        BlendRecipe((0.25, 0.75), 40),
        OrderRecipe(99, 1),
    ]


def test_what_is_built_is_found(tmp_path, cache):
    for recipe in _recipes(tmp_path):
        assert cache.find(recipe) is None
        expected = collect(recipe)
        built, found = cache.get(recipe), cache.find(recipe)
        for columns in (built, found):
            assert _equal(columns, expected)
            assert {name: each.dtype for name, each in read_all(columns).items()} == {
                name: each.dtype for name, each in expected.items()
            }
    assert [path.suffix for path in cache.folder.iterdir()] == [".safetensors"] * 3


def test_files_are_safetensors_and_tell_what_they_are(tmp_path, cache):
    numpy = pytest.importorskip("safetensors.numpy")
    recipe = _recipes(tmp_path)[0]
    cache.get(recipe)
    expected = collect(recipe)
    assert {name: array.tolist() for name, array in numpy.load_file(cache.path(recipe)).items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    head = cache.path(recipe).read_bytes()[8:3000].split(b"\0")[0].decode(errors="ignore")
    assert '\\"seq_length\\": 8' in head
    assert recipe.prefix in head


def test_everything_that_decides_an_index_is_in_its_key(tmp_path, cache):
    gpt, blend, order = _recipes(tmp_path)
    stamp = gpt.stamp
    others = [
        replace(gpt, prefix="/x"),
        *(replace(gpt, stamp=replace(stamp, **{name: 1})) for name in stamp.__dataclass_fields__),
        *(replace(gpt, **{name: 2}) for name in ("first", "last", "seq_length", "num_samples", "seed", "cutoff")),
        replace(gpt, num_samples=None),
        *(replace(blend, **change) for change in ({"size": 41}, {"weights": (0.75, 0.25)})),
        replace(blend, weights=(0.25, np.nextafter(0.75, 1))),
        *(replace(order, **change) for change in ({"size": 98}, {"seed": 2})),
        gpt,
        blend,
        order,
    ]
    assert len({cache.path(recipe) for recipe in others}) == len(others)
    assert cache.path(replace(gpt, nbytes=77)) == cache.path(gpt)


def test_a_file_that_changes_in_place_has_another_key(tmp_path, cache):
    before = _recipes(tmp_path)[0]
    built = cache.get(before)
    prefix = write_dataset(tmp_path, [7, 12, 3, 5, 9, 4])
    after = replace(before, stamp=Stamp.of(prefix))
    assert (after.stamp.index_bytes, after.stamp.token_bytes) == (before.stamp.index_bytes, before.stamp.token_bytes)
    assert cache.path(after) != cache.path(before)
    assert _equal(cache.get(after), collect(after))
    assert not _equal(built, collect(after))


def test_a_file_that_grew_since_is_refused(tmp_path, cache):
    recipe = _recipes(tmp_path)[0]
    write_dataset(tmp_path, [7, 3, 12, 5, 9, 4, 8])
    with pytest.raises(DataError, match=r"data: has \d+ and \d+ bytes .* rank 0 saw .* the file changed"):
        cache.get(recipe)


def test_a_broken_file_is_built_again(slow, cache):
    cache.get(slow)
    path, expected = cache.path(slow), collect(slow)
    whole = path.read_bytes()
    broken = {
        **{f"{size} bytes": whole[:size] for size in (0, 1, 7, 8, 100, len(whole) - 1)},
        "longer": whole + b"\0",
        "no header": b"\xff" * len(whole),
        "no JSON": whole[:8] + b"x" + whole[9:],
        "edited": whole.replace(b'\\"blocks\\": 20', b'\\"blocks\\": 21'),
        "another type": whole.replace(b'"I32"', b'"F32"'),
    }
    for name, content in broken.items():
        assert content != whole, name
        path.write_bytes(content)
        assert cache.find(slow) is None, name
        assert _equal(cache.get(slow), expected), name
        assert path.read_bytes() == whole, name


def test_nothing_is_built_twice(slow, cache):
    for _ in range(3):
        cache.get(slow)
    assert slow.times_made == 1


def _get(cache: Cache, recipe: Any, start: Any, answers: Any) -> None:
    start.wait()
    answers.put({name: each.tolist() for name, each in read_all(cache.get(recipe)).items()})


def _three_at_once(cache, recipe):
    """Return what three processes find that want an index at the same moment."""
    start, answers = FORK.Event(), FORK.Queue()
    builders = [FORK.Process(target=_get, args=(cache, recipe, start, answers)) for _ in range(3)]
    for builder in builders:
        builder.start()
    start.set()
    got = [answers.get(timeout=30) for _ in builders]
    for builder in builders:
        builder.join()
        assert builder.exitcode == 0
    return got


def test_builders_at_once_build_once_and_all_find_it(slow, cache):
    got = _three_at_once(cache, slow)
    expected = {name: each.tolist() for name, each in read_all(cache.get(slow)).items()}
    assert got == [expected] * 3
    assert slow.times_made == 1
    assert [path.name for path in cache.folder.iterdir()] == [cache.path(slow).name]


def test_builders_that_do_not_see_each_others_locks_end_with_a_whole_file(slow, cache, monkeypatch):
    """As on a file system without locks: the rename decides, and both are right."""
    monkeypatch.setattr(file_lock, "try_lock", lambda handle: None)
    got = _three_at_once(cache, slow)
    assert got == [{name: each.reshape(-1).tolist() for name, each in collect(slow).items()}] * 3


def test_kill_at_any_moment_leaves_a_whole_index_or_none(slow, cache):
    """Forty builders killed where they stand; what is there is whole, and the next one does not wait."""
    dice = random.Random(0)
    expected = collect(slow)
    found_early = 0
    for _ in range(40):
        builder = FORK.Process(target=cache.get, args=(slow,))
        builder.start()
        time.sleep(dice.uniform(0, 0.07))
        builder.kill()
        builder.join()
        found = cache.find(slow)
        if found is not None:
            assert _equal(found, expected)
            found_early += 1
            cache.path(slow).unlink()
    assert found_early < 40
    started = time.monotonic()
    assert _equal(cache.get(slow), expected)
    assert time.monotonic() - started < 100  # not those ten minutes for which a lock is waited for
    assert [path.name for path in cache.folder.iterdir()] == [cache.path(slow).name]


def test_kill_in_the_middle_of_a_real_index(tmp_path, cache):
    """Twenty times, while documents, samples and shuffles of a token file are written."""
    lengths = np.random.RandomState(0).randint(1, 40, 20_000).tolist()
    prefix = write_dataset(tmp_path, lengths)
    recipe = GPTRecipe(prefix, Stamp.of(prefix), 0, 20_000, 4, 1_000_000, 1234)
    expected = collect(recipe)
    started = time.monotonic()
    cache.get(recipe)
    whole_s = time.monotonic() - started
    dice = random.Random(1)
    for _ in range(20):
        cache.path(recipe).unlink(missing_ok=True)
        builder = FORK.Process(target=cache.get, args=(recipe,))
        builder.start()
        time.sleep(dice.uniform(0, whole_s))
        builder.kill()
        builder.join()
        found = cache.find(recipe)
        assert found is None or _equal(found, expected)
    assert _equal(cache.get(recipe), expected)
    assert len(list(cache.folder.iterdir())) == 1


def test_a_lock_that_is_never_released_delays_only(slow, cache, monkeypatch):
    """As NFS keeps that of a host that died."""
    monkeypatch.setattr(cache_module, "_PATIENCE_S", 0.4)
    cache.folder.mkdir(parents=True)
    started = time.monotonic()
    with take_lock(cache.path(slow).with_suffix(".lock")):
        cache.get(slow)
    assert 0.4 <= time.monotonic() - started < 100
    assert slow.times_made == 1


def test_folder_that_can_not_be_written(tmp_path, slow):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"sample indices in .*: not a directory; set DATA_CACHE_PATH to a folder"):
        Cache(tmp_path / "file" / "index").get(slow)


def _get_with_little_room(cache: Cache, recipe: Any, answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        cache.get(recipe)
    except DataError as error:
        answers.put(str(error))


def test_full_disk_is_one_line_and_leaves_nothing(slow, cache):
    answers = FORK.Queue()
    builder = FORK.Process(target=_get_with_little_room, args=(cache, slow, answers))
    builder.start()
    said = answers.get(timeout=30)
    builder.join()
    assert "file too large; free some space or set DATA_CACHE_PATH to a folder that can be written" in said
    assert list(cache.folder.iterdir()) == []
    cache.get(slow)


def test_error_while_building_leaves_nothing_and_no_lock(tmp_path, cache):
    recipe = replace(_recipes(tmp_path)[0], first=6)
    with pytest.raises(DataError, match=r"documents 6..6 hold 0 tokens"):
        cache.get(recipe)
    assert list(cache.folder.iterdir()) == []


def _read_only(cache: Cache, there: Any, absent: Any, answers: Any) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write anywhere
    answers.put(_equal(cache.get(there), collect(there)))
    try:
        cache.get(absent)
    except DataError as error:
        answers.put(str(error))


def test_read_only_folder_that_has_the_index_is_fine():
    with tempfile.TemporaryDirectory() as folder:
        cache, answers = Cache(Path(folder)), FORK.Queue()
        cache.get(OrderRecipe(99, 1))
        cache.folder.chmod(0o555)
        reader = FORK.Process(target=_read_only, args=(cache, OrderRecipe(99, 1), OrderRecipe(99, 2), answers))
        reader.start()
        assert answers.get(timeout=30) is True
        assert "permission denied; set DATA_CACHE_PATH to a folder that can be written" in answers.get(timeout=30)
        reader.join()
        cache.folder.chmod(0o755)
