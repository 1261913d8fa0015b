from megads.data.stdlib_corpus import choose_sources


def test_choice_of_sources(tmp_path):
    for i in range(20):
        (tmp_path / f"a{i:02}.py").write_text("x" * 100)
    for folder in ("site-packages", "test"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.py").write_text("x" * 100)
    names = [path.relative_to(tmp_path).as_posix() for path in choose_sources(tmp_path, 10_000)]
    assert len(names) == 21
    assert "test/t.py" in names
    assert names != sorted(names)
    few = [path.name for path in choose_sources(tmp_path, 1050)]
    assert len(few) == 10
    assert "t.py" not in few
    assert max(few) > "a10.py"
    assert few == [path.name for path in choose_sources(tmp_path, 1050)]
