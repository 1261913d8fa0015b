import torch

from megads.inference.retro.cache import RetroCache, Row


def cache():
    made = RetroCache(
        ["0"], num_slots=3, num_kv_heads=1, head_dim=2, context=8, dtype=torch.float64, device=torch.device("cpu")
    )
    pair = torch.ones(4, 1, 2, dtype=torch.float64)
    made.rows[0] = Row([1, 2], across={"5": (pair, 2 * pair)})
    made.rows[1] = Row([3])
    return made


def test_what_slots_look_at_and_which_look_at_nothing():
    made = cache()
    keys, values, has = made.across("5", 2, (4, 1, 2))
    assert keys.shape == (2, 4, 1, 2)
    assert (keys[0] == 1).all()
    assert (values[0] == 2).all()
    assert not keys[1].any()
    assert has.flatten().tolist() == [True, False]
    assert made.across("5", 1, (4, 1, 2))[2] is None


def test_rows_move_and_are_reordered_as_copies():
    made = cache()
    made.move(0, 2, 2)
    made.rows[2].tokens.append(9)
    assert [row.tokens for row in made.rows] == [[1, 2], [3], [1, 2, 9]]
    made.reorder(torch.tensor([1, 0, 0]), 1)
    made.rows[1].tokens.append(7)
    assert [row.tokens for row in made.rows] == [[3], [1, 2, 7], [1, 2]]
    assert "5" in made.rows[2].across
