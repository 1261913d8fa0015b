"""Bugs of the native engine that `tests/mutations.py` plants, and the tests that must notice each of them."""

from __future__ import annotations

from tests.planted_bugs import Mutation

FOLDER = "megads/engine/native"
TESTS = "tests/engine/native"


def native(file: str, words: str) -> tuple[str, ...]:
    """Return the arguments that run the tests of ``file`` whose ids hold ``words``."""
    return (f"{TESTS}/test_{file}.py", "-k", words)


NATIVE_MUTATIONS = (
    Mutation(
        "a second micro-batch takes the place of the first",
        f"{FOLDER}/reduce.py",
        "                view.add_(grad)\n",
        "                view.copy_(grad)\n",
        native("engine", "trains_like and dp2-zero0"),
    ),
    Mutation(
        "units are reduced behind the backward pass",
        f"{FOLDER}/reduce.py",
        "                if not each.missing:\n                    self._complete(each)\n",
        "                if not each.missing:\n                    self.completed(each.unit)\n",
        native("reduce", "before_the_last and 1"),
    ),
    Mutation(
        "a step that is not finite is taken on a device",
        f"{FOLDER}/update.py",
        "            optimizer.found_inf = norm.isfinite().logical_not().float()\n",
        "            pass\n",
        native("update", "changes_nothing"),
    ),
    Mutation(
        "weights in half precision stay what they were",
        f"{FOLDER}/engine.py",
        "        self.updater.cast()\n",
        "",
        native("engine", "near_float32 and dp2-bf16-1"),
    ),
    Mutation(
        "the other ranks do not get what a rank has updated",
        f"{FOLDER}/gather.py",
        "                if not self.is_mixed[index]:\n                    self._begin(index)\n",
        "                pass\n",
        native("engine", "trains_like and dp2-zero1"),
    ),
    Mutation(
        "averages are gathered too late for an evaluation",
        "megads/engine/evaluation.py",
        "torch.no_grad(), engine.driver.averaged(), engine.surroundings()",
        "torch.no_grad(), engine.surroundings(), engine.driver.averaged()",
        native("engine", "averages"),
    ),
)
