"""A save that the end of the walltime cut, and an empty folder of a step that blocked every save for 12 days."""

RUN = {"SAVE_INTERVAL": "1", "EVAL_INTERVAL": "0"}


def test_names_of_folders_are_not_trusted(megads):
    assert megads.train("r", **RUN, TRAIN_ITERS="1").returncode == 0
    checkpoints = megads.folder / "r/checkpoints"
    (checkpoints / "iter_0000002").mkdir()  # empty
    cut = checkpoints / "iter_0000003.tmp"  # killed before it was published
    cut.mkdir()
    (cut / "rank-00000.safetensors").write_bytes(b"half")
    done = megads.train("r", **RUN, TRAIN_ITERS="3")
    assert done.returncode == 0, done.stderr
    assert "iter_0000002" in done.stderr
    assert [row["iteration"] for row in megads.rows("r") if "lm_loss" in row] == [1, 2, 3]
    valid = {path.name for path in checkpoints.glob("iter_*") if (path / "manifest.json").is_file()}
    assert valid >= {"iter_0000001", "iter_0000002", "iter_0000003"}
    assert not cut.exists()


def test_a_folder_without_any_checkpoint_is_one_line(megads):
    (megads.folder / "r/checkpoints/iter_0000002").mkdir(parents=True)
    done = megads.train("r", **RUN, TRAIN_ITERS="1")
    assert done.returncode == 2
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("megads: ")]
    assert "iter_0000002" in line
