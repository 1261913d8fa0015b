"""Languages by the beginning of a text."""

from __future__ import annotations

import pytest

from megads.data.corpus.cleaning.language import PREFIX, Language
from megads.errors import ConfigError

TEXTS = {
    "en": "The quick brown fox jumps over the lazy dog, and nobody in the village knows why it does so every day.",
    "de": "Der schnelle braune Fuchs springt \u00fcber den faulen Hund, und niemand im Dorf wei\u00df, warum.",
    "fr": "Le renard brun saute par-dessus le chien paresseux, et personne dans le village ne sait pourquoi.",
    "el": "".join(map(chr, (945, 955, 949, 960, 959, 973, 32, 954, 945, 953, 32, 963, 954, 973, 955, 959, 962))),
    "none": "12 345 -- 67.8 % !?_",
}


@pytest.mark.parametrize("name", TEXTS)
def test_language(name):
    assert Language()(TEXTS[name]) == name


def test_the_beginning_decides_from_the_first_letter_on():
    language = Language()
    long = TEXTS["en"] * (PREFIX // len(TEXTS["en"]) + 1)
    assert language(long + TEXTS["de"] * 100) == "en"
    assert language("1" * 5000 + TEXTS["de"]) == "de"
    assert language("") == "none"


def test_names():
    language = Language()
    language.check(("en", "de"))
    with pytest.raises(ConfigError, match=r"--languages english: is not a known language; one of a.* en "):
        language.check(("en", "english"))
