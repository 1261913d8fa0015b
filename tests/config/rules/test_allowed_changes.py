"""The words of ALLOW_CHANGES."""

from __future__ import annotations

from megads.config.rules.allowed_changes import RULES, allow_text, allowed
from megads.families.conventions import CONVENTIONS
from tests.checkpoint.faked import derived


def test_words_are_keys_or_names_of_settings():
    assert allowed(derived(ALLOW_CHANGES="ROPE_THETA, dtype  ADD_BIAS,replay")) == {
        *("rope_theta", "dtype", "bias", "replay")
    }
    assert allowed(derived()) == frozenset()


def _broken(words):
    (rule,) = RULES
    return list(rule(derived(ALLOW_CHANGES=words), 1))


def test_every_convention_that_fits_is_accepted_and_others_are_refused_with_what_is_near():
    keys = [each.key for each in CONVENTIONS if each.keeps_shapes]
    assert not _broken(" ".join(keys))
    (problem,) = _broken("rope_teta")
    assert "rope_teta is not a convention that a resume can change" in problem.text
    assert "rope_theta" in problem.otherwise
    (problem,) = _broken("ADD_BIAS")
    assert "bias is not a convention that a resume can change" in problem.text


def test_a_message_offers_it_only_where_the_weights_fit():
    assert "ALLOW_CHANGES=rope_theta changes" in allow_text(["rope_theta"])
    assert "ALLOW_CHANGES='rope_theta norm_epsilon'" in allow_text(["rope_theta", "norm_epsilon"])
    assert allow_text(["rope_theta", "num_layers"]) == ""
