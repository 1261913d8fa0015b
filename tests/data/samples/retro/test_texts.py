from megads.data.samples.retro.texts import text_neighbors


def test_texts_are_cut_and_filled_up_with_the_end_of_documents():
    found = text_neighbors([[1, 2, 3, 4], [5]], num_neighbors=3, retrieved_length=3, end=9)
    assert found.tolist() == [[1, 2, 3], [5, 9, 9], [9, 9, 9]]
    assert text_neighbors([[1], [2]], num_neighbors=1, retrieved_length=2, end=0).tolist() == [[1, 0]]
    assert str(found.dtype) == "int64"
