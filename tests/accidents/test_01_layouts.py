"""Twelve layouts computed something else than one rank, without an error: sums that were missing, or over other ranks.

Two of them are planted here. The gradients of norms that are not summed over the tensor ranks change no loss at first:
the check of a layout compares every gradient with one rank's. A product that is not summed changes the loss: a
resume in that layout computes the stored batch again, and is refused.
"""

NORMS = """
if "worker" in sys.argv:
    import megads.engine.partial_gradients as partial
    class Local:
        all_reduce = staticmethod(lambda *given, **more: None)
        def __getattr__(self, name):
            return getattr(sys.modules["torch.distributed"], name)
    partial.dist = Local()
"""
PRODUCTS = """
if "worker" in sys.argv:
    from megads.parallel.tensor import RowParallelLinear, whole_linear
    RowParallelLinear.forward = lambda self, x: whole_linear(x, self.weight, self.bias)
"""


def test_a_gradient_that_a_layout_does_not_sum_is_found_before_the_run(megads):
    layout = {"TP": "2", "SCATTER_NORMS": "1"}
    right = megads("doctor", "--gradients", **layout)
    assert "this layout computes what one rank computes" in right.stdout
    wrong = megads("doctor", "--gradients", PYTHONPATH=megads.plant(NORMS), **layout)
    assert wrong.returncode == 1
    (line,) = [each for each in wrong.stdout.splitlines() if each.startswith("NOT EQUAL within ")]
    assert "layers.0.input_norm.weight" in line
    assert line.endswith("do not train with this layout and these versions")


def test_a_run_that_resumes_in_a_layout_that_computes_another_function_is_refused(megads):
    # Some steps of training: a new model's outputs hardly depend on what is missing.
    length = {"TRAIN_ITERS": "20", "LR": "0.01", "EVAL_INTERVAL": "0", "PLANNED_ITERS": "22"}
    first = megads.train("run", **length)
    assert first.returncode == 0, first.stderr
    more = {**length, "TRAIN_ITERS": "22", "TP": "2"}
    refused = megads.train("run", **more, PYTHONPATH=megads.plant(PRODUCTS))
    assert refused.returncode == 2
    (line,) = [each for each in refused.stderr.splitlines() if "the model computes another function: loss " in each]
    assert "iter_0000020" in line
    assert len(megads.losses("run")) == 20
    resumed = megads.train("run", **more)
    assert resumed.returncode == 0, resumed.stderr
    assert "link     3: 2 ranks on 1 host, as before\n" in resumed.stderr
