"""The runs of an ensemble: names, settings, sizes; what is refused, in one line."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from megads.launch.ensemble.members import Ensemble, Member, lists_of, read_ensemble, title_of, varied, vary

FILE = """
words: --preset 7B --optimizer "adam"
hosts: 2
settings: {TRAIN_ITERS: 100, ZERO_STAGE: 1}
members:
  - name: small
    settings: {NLAYERS: 2, TRAIN_ITERS: 50}
    ranks: 4
  - settings: {NLAYERS: 4}
"""


def read(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return read_ensemble(path)


def test_a_file_of_members(tmp_path):
    assert read(tmp_path, FILE) == Ensemble(
        (
            Member("small", {"TRAIN_ITERS": "50", "ZERO_STAGE": "1", "NLAYERS": "2"}, 1, 4),
            Member("NLAYERS=4", {"TRAIN_ITERS": "100", "ZERO_STAGE": "1", "NLAYERS": "4"}, 2, 0),
        ),
        ("--preset", "7B", "--optimizer", "adam"),
    )


def test_every_member_with_every_combination(tmp_path):
    text = "vary: {LR: [1e-4, 3.0e-4], SEED: [1, 2]}\nmembers: [{name: a}, {name: b, settings: {TENSORBOARD: on}}]\n"
    found = read(tmp_path, text).members
    assert [each.name for each in found[:4]] == [
        "a_LR=1e-4,SEED=1", "a_LR=1e-4,SEED=2", "a_LR=0.0003,SEED=1", "a_LR=0.0003,SEED=2",
    ]  # fmt: skip
    assert len(found) == 8
    assert found[7].settings["SEED"] == "2"
    assert [each.name for each in read(tmp_path, "vary: {SEED: [5]}\n").members] == ["SEED=5"]


def test_lists_of_options_multiply_what_a_file_has(tmp_path):
    found = varied(read(tmp_path, FILE), lists_of(["LR=1e-4, 2e-4"]))
    assert [each.name for each in found.members] == [
        "small_LR=1e-4", "small_LR=2e-4", "NLAYERS=4_LR=1e-4", "NLAYERS=4_LR=2e-4",
    ]  # fmt: skip
    assert found.members[0].settings["LR"] == "1e-4"
    assert found.members[0].ranks == 4
    assert vary({}, "x") == [{}]


def test_a_path_is_called_by_its_last_part():
    assert title_of({"DATA_FILE_LIST": "/data/lists/dolma v1.txt"}) == "DATA_FILE_LIST=dolma-v1.txt"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("member: []", "no entry named member; did you mean members[?]; use settings, words"),
        ("members: []", "members must be a list of runs"),
        ("members: [a]", "member 1: must hold 'key: value' lines"),
        ("members: [{name: a, size: 3}]", "member 1: no entry named size"),
        ("members: [{name: a}, {name: a}]", "two runs are called a"),
        ("members: [{name: ../a}]", r"name '\.\./a'; a name is a folder's"),
        ("members: [{name: log}]", "name log: the ensemble keeps its own files there"),
        ('words: "--set \'a"\nvary: {SEED: [1]}', "words: 'a begins with a quote that does not end"),
        ("members: [{}]", "a run has neither a name nor settings"),
        ("settings: {NLAYER: 3}", "settings: NLAYER is not a setting; did you mean NLAYERS[?]"),
        ("settings: {RUN_DIR: x}", "RUN_DIR is the ensemble's"),
        ("settings: [1]", "settings: must hold 'NAME: value' lines"),
        ("settings: {LR: [1, 2]}", r"settings: LR: \[1, 2\] is not one value"),
        ("hosts: 2\nranks: 3", "hosts and ranks are both given"),
        ("hosts: 0", "hosts: 0 is not a number of hosts; use 1 or more"),
        ("ranks: yes", "is not a number of ranks"),
        ("vary: {LR: 1}", "vary: must hold 'NAME: "),
        ("vary: {LR: [1, 1]}", "LR=1,1 has a value twice"),
        ("words: {a: 1}\nmembers: [{name: a}]", "words are those of `megads train`"),
        ("- a", "must hold 'key: value' lines"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_its_name(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text)
    assert "sweep.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["LR"], "--vary LR: expected NAME=VALUE,VALUE"),
        (["=1"], "expected NAME=VALUE,VALUE"),
        (["LR=1,,2"], "expected NAME=VALUE,VALUE"),
        (["LR=1", "LR=2"], "--vary LR: given twice"),
    ],
)
def test_what_is_wrong_in_an_option(options, message):
    with pytest.raises(ConfigError, match=message):
        lists_of(options)


def test_a_product_has_a_bound():
    lists = {name: [str(each) for each in range(101)] for name in ("LR", "SEED")}
    with pytest.raises(ConfigError, match="10201 combinations; at most 10000"):
        vary(lists, "--vary")
