from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from megads.data.tokenizers.train import save, train_bpe
from megads.errors import ConfigError
from megads.launch.preflight.checkpoint_start import check_tokenizer
from tests.data.factory import make_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three tokenizers of one size: ``a``, its copy ``b``, and ``c``."""
    place = tmp_path_factory.mktemp("tokenizers")
    save(train_bpe(["def f(x): return x\n"] * 20, 265), place / "a")
    shutil.copytree(place / "a", place / "b")
    save(train_bpe(["other words in other texts\n"] * 20, 265), place / "c")
    return place


def _begins(run, **about):
    manifest = SimpleNamespace(about=about, settings={} if about else run.model_dump())
    return SimpleNamespace(found=SimpleNamespace(manifest=manifest, path="ckpt/step_9"))


def _run(kind="HFTokenizer", model="", *, force=False, **data):
    train = {"force": force}
    return make_run(train=train, data={"tokenizer_type": kind, "tokenizer_model": str(model), "path": "x"} | data)


def test_the_same_tokenizer_by_another_path_is_taken(folders):
    check_tokenizer(_run(model=folders / "b"), None)
    check_tokenizer(_run(model=folders / "b"), _begins(_run(model=folders / "a")))
    check_tokenizer(_run("NullTokenizer"), _begins(_run(model=folders / "a")))
    check_tokenizer(_run(model=folders / "a"), _begins(_run(model="gone")))  # nothing to compare with


@pytest.mark.parametrize("how", ["settings", "imported"])
def test_another_one_of_equal_size_is_refused(folders, how):
    before = _run(model=folders / "a")
    about = {"tokenizer_type": "HFTokenizer", "tokenizer_model": str(folders / "a")} if how == "imported" else {}
    with pytest.raises(ConfigError) as error:
        check_tokenizer(_run(model=folders / "c"), _begins(before, **about))
    told = f"ckpt/step_9 was trained with HFTokenizer {folders / 'a'}, this run uses HFTokenizer {folders / 'c'}: "
    assert str(error.value).startswith(told)
    check_tokenizer(_run(model=folders / "c", force=True), _begins(before, **about))


def test_another_type_is_refused_where_the_files_are_gone(folders):
    before = _begins(_run("Llama2Tokenizer", "gone.model"))
    with pytest.raises(ConfigError, match=r"was trained with Llama2Tokenizer gone\.model, this run uses HFTokenizer"):
        check_tokenizer(_run(model=folders / "c"), before)
