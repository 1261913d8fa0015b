from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from megads.data.formats.record import Record, write_record
from megads.data.tokenizers.build import identity, make_tokenizer, spec_of
from megads.data.tokenizers.record_check import check_record
from megads.errors import DataError
from tests.data.factory import make_run


def _record(folder: Path, name: str, tokenizer: str, eod: int | None = 0, kind: str = "HFTokenizer") -> str:
    prefix = str(folder / name)
    write_record(prefix, Record(tokenizer, kind, "my/tokenizer.json", 300, eod, 1, 1, 1))
    return prefix


def _run(spec, *, force: bool = False, **data):
    return make_run(
        model={"vocab_size": 300},
        train={"force": force},
        data={
            "tokenizer_type": spec.type,
            "tokenizer_model": spec.model,
            "vocab_file": spec.vocab_file,
            "vocab_extra_ids": spec.extra_ids,
        }
        | data,
    )


def test_the_tokenizer_the_data_was_made_with_is_taken_by_any_name(specs, tmp_path):
    spec = specs["llama3-json"]
    prefix = _record(tmp_path, "a", make_tokenizer(spec).fingerprint)
    check_record(_run(spec), [prefix, Path(prefix)])
    (tmp_path / "copy").mkdir()
    shutil.copy(spec.model, tmp_path / "copy" / "tokenizer.json")
    check_record(_run(spec, tokenizer_model=str(tmp_path / "copy")), [prefix])


def test_another_tokenizer_is_refused_unless_forced(specs, tmp_path):
    prefix = _record(tmp_path, "a", identity(specs["llama3-json"]))
    with pytest.raises(DataError) as error:
        check_record(_run(specs["wordpiece-json"]), [str(tmp_path / "none"), prefix])
    text = str(error.value)
    assert f"{prefix} was made with HFTokenizer my/tokenizer.json ({identity(specs['llama3-json'])})" in text
    assert f"the run uses PretrainedFromHF {specs['wordpiece-json'].model}" in text
    assert "set TOKENIZER_TYPE=HFTokenizer and TOKENIZER_MODEL=my/tokenizer.json, or FORCE=1" in text
    assert "\n" not in text
    check_record(_run(specs["wordpiece-json"], force=True), [prefix])


def test_data_of_two_tokenizers_do_not_mix(specs, tmp_path):
    first, second = _record(tmp_path, "a", "1234"), _record(tmp_path, "b", "5678")
    for spec in (specs["llama3-json"], specs["null"]):
        with pytest.raises(
            DataError, match=rf"{first} was made with .*1234.* and {second} with .*5678.*FORCE=1 to mix"
        ):
            check_record(_run(spec), [first, str(tmp_path / "none"), second])


def test_files_without_a_record_are_taken(specs, tmp_path):
    check_record(_run(specs["llama3-json"], tokenizer_model="nowhere"), [str(tmp_path / "a")])


def test_a_run_without_a_tokenizer_takes_any_one(specs, tmp_path):
    prefix = _record(tmp_path, "a", "1234", eod=7)
    check_record(_run(specs["null"]), [prefix])
    check_record(_run(specs["null"], eod_mask_loss=True), [_record(tmp_path, "b", "1234", eod=299)])
    with pytest.raises(
        DataError, match=r"documents end with 7, .*VOCAB_SIZE=300 say 299, which RESET_POSITION_IDS looks"
    ):
        check_record(_run(specs["null"], reset_position_ids=True), [prefix])


def test_a_broken_record_is_told(specs, tmp_path):
    (tmp_path / "a.info.json").write_text("{")
    with pytest.raises(DataError, match="is not a valid record"):
        check_record(_run(specs["llama3-json"]), [str(tmp_path / "a")])


def _changed(path: str, tmp_path: Path, change) -> str:
    content = json.loads(Path(path).read_text())
    change(content)
    other = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    other.write_text(json.dumps(content, indent=3))
    return str(other)


def _older_merges(content) -> None:
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(truncation={"max_length": 3}, padding={"pad_id": 1}, decoder=None),
        _older_merges,
        lambda content: content.update({key: content.pop(key) for key in sorted(content, reverse=True)}),
    ],
)
def test_fingerprint_is_not_changed_by_what_changes_no_id(specs, tmp_path, change):
    spec = specs["llama3-json"]
    other = type(spec)("PretrainedFromHF", _changed(spec.model, tmp_path, change))
    assert identity(other) == identity(spec)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"]["vocab"].update(new=99999),
        lambda content: content["model"]["merges"].reverse(),
        lambda content: content["added_tokens"].pop(),
        lambda content: content["added_tokens"][0].update(lstrip=True),
        lambda content: content.update(normalizer={"type": "NFC"}),
        lambda content: content["pre_tokenizer"]["pretokenizers"].pop(0),
        lambda content: content.update(post_processor=None),
    ],
)
def test_fingerprint_is_changed_by_what_changes_ids(specs, tmp_path, change):
    spec = specs["llama3-json"]
    other = type(spec)(spec.type, _changed(spec.model, tmp_path, change))
    assert identity(other) != identity(spec)


def test_fingerprints_of_types_and_extra_ids_differ(specs):
    # PretrainedFromHF is another name of HFTokenizer; the rest treat texts differently.
    assert len({identity(spec) for spec in specs.values()}) == len(specs)
    for name in ("sp", "bert-lower", "llama3-json"):
        spec = specs[name]
        more = type(spec)(spec.type, spec.model, spec.vocab_file, extra_ids=spec.extra_ids + 1)
        assert identity(more) != identity(spec)
    assert identity(spec_of(make_run(model={"vocab_size": 50}))) != identity(spec_of(make_run()))


def test_a_tokenizer_that_changed_under_its_name_is_told_as_that(specs, tmp_path):
    spec = specs["llama3-json"]
    prefix = str(tmp_path / "a")
    write_record(prefix, Record(identity(spec), spec.type, spec.model, 300, 0, 1, 1, 1))
    with pytest.raises(DataError) as error:
        check_record(_run(spec, vocab_extra_ids=3), [prefix])
    assert f"the run uses {spec.type} {spec.model} with VOCAB_EXTRA_IDS=3 (" in str(error.value)
    assert "the file changed since, or VOCAB_EXTRA_IDS differed: restore it" in str(error.value)
