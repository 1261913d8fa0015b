import pytest

from megads.text.quoting import quoted, split_words


@pytest.mark.parametrize("word", ["a", "a b", "it's", '"', "'x y", "#a", "a#", "tab\there", "", 'say "x y"'])
def test_a_word_is_quoted_so_that_it_is_read_again(word):
    assert split_words(f"1 {quoted(word)} c # {word}") == ["1", word, "c"]


@pytest.mark.parametrize("line", ['a "b c', "'a b\" c", '"a"b c'])
def test_a_quote_without_an_end_is_an_error_that_shows_it(line):
    with pytest.raises(ValueError, match="begins with a quote that does not end before a blank"):
        split_words(line)
