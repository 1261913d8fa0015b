from megads.monitor.plot import loss_sketch, save_loss_plot, series

ROWS = [{"iteration": i, "lm_loss": 8.0 / i} for i in range(1, 40)]
ROWS.insert(0, {"iteration": 0, "valid_loss": 7.6, "valid_ppl": 2000.0})
ROWS.append({"iteration": 39, "valid_loss": 0.3, "lm_loss": None})


def test_rows_without_the_value_are_left_out():
    assert series(ROWS, "valid_loss") == ([0, 39], [7.6, 0.3])
    assert series(ROWS, "lm_loss")[0] == list(range(1, 40))


def test_the_picture_is_a_png(tmp_path):
    save_loss_plot(ROWS, tmp_path / "loss.png", "tiny")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_sketch_fits_a_terminal_and_has_no_colours():
    text = loss_sketch(ROWS, width=60, height=12)
    lines = text.splitlines()
    assert len(lines) == 12
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in text
    assert "8.0" in text


def test_a_run_without_validation_is_drawn(tmp_path):
    rows = [row for row in ROWS if "valid_loss" not in row]
    save_loss_plot(rows, tmp_path / "loss.png", "tiny")
    assert "iteration" in loss_sketch(rows)
