import numpy as np

from megads.inference.retro.neighbors import GivenNeighbors, RetrievedNeighbors


def test_the_same_neighbours_for_all_chunks_and_those_of_each():
    same = GivenNeighbors([[[1, 2]]], num_neighbors=2, retrieved_length=3, end=9)
    assert [same(chunk, []).tolist() for chunk in (0, 7)] == [[[1, 2, 9], [9, 9, 9]]] * 2
    each = GivenNeighbors([[[1]], [[2], [3]]], num_neighbors=1, retrieved_length=2, end=9)
    assert [each(chunk, []).tolist() for chunk in (0, 1, 2)] == [[[1, 9]], [[2, 9]], [[2, 9]]]


def test_what_an_index_finds_is_cut_or_filled_up_with_none():
    asked = []

    def nearest(chunks):
        asked.append(chunks)
        return np.array([[sum(chunks[0]), 5, 6][: len(chunks[0])]])

    source = RetrievedNeighbors(nearest, lambda ids: np.stack([ids, ids + 1], axis=-1), 2)
    assert source(0, [1, 2, 3]).tolist() == [[6, 7], [5, 6]]
    assert source(1, [4]).tolist() == [[4, 5], [-1, 0]]
    assert asked == [[[1, 2, 3]], [[4]]]
