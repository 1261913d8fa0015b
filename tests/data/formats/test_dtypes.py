import numpy as np
import pytest

from megads.data.formats.dtypes import DTYPES, best_dtype, code_of, dtype_of
from megads.errors import DataError


def test_best_dtype_is_megatrons():
    assert [best_dtype(size) for size in (2048, 65499, 65500)] == [np.uint16, np.uint16, np.int32]
    assert best_dtype(2048, "cached") == np.int32


def test_codes_and_types_belong_together():
    assert [code_of(dtype_of(code, "x"), "x") for code in DTYPES] == list(DTYPES)
    assert code_of(">i4", "x") == 4


@pytest.mark.parametrize(("code", "why"), [(6, "floats, not tokens"), (7, "floats, not tokens"), (9, "unknown")])
def test_other_codes_and_types_are_refused(code, why):
    with pytest.raises(DataError, match=f"x.idx: dtype code {code} is {why}"):
        dtype_of(code, "x.idx")
    with pytest.raises(DataError, match="x: cannot store float32 tokens; use uint16 or int32"):
        code_of("f4", "x")
