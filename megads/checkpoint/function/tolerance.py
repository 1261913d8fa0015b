"""How far the loss of a stored row may be from what it was, for rounding alone. No torch.

A number that is rounded to a type with unit roundoff u is off by at most u, relative to itself. A decoder of L layers
adds 2 L + 1 terms to its residual stream, each rounded in the type of the products; roundings are as often up as down,
so the relative error of what the output layer reads grows like ``u sqrt(2 L + 2)``. Logits of a trained model spread
over about as many nats as the loss of a token has, so the loss of one token is off by about
``u sqrt(2 L + 2) max(1, loss)``. A row is the mean of its tokens, whose errors mostly cancel. They share weights and
positions, so that fewer than all count as independent, and a product adds many terms: :data:`INDEPENDENT` and
:data:`MARGIN`.
"""

from __future__ import annotations

import math

ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
"""Type of products -> unit roundoff."""
MARGIN = 2.0
"""Layouts, engines and depths of small models differ by a sixth of the result in bf16, by less in other types."""
INDEPENDENT = 16
"""Tokens of a row of 64 whose errors are independent of each other, at least."""
LEAST = 1e-5
"""What layouts agree on in fp32, relative: sums over a sequence or a vocabulary have another order on other ranks."""


def tolerance(products: tuple[str, ...], num_layers: int, loss: float) -> float:
    """Return the largest difference of a row's loss, in nats per token, that rounding explains.

    Args:
        products: types of the products then and now; the coarser one counts.
        num_layers: of the model.
        loss: of the worst row.
    """
    roundoff = max(ROUNDOFF.get(each, ROUNDOFF["bf16"]) for each in products)
    relative = MARGIN * roundoff * math.sqrt(2 * num_layers + 2) / math.sqrt(INDEPENDENT)
    return max(1.0, abs(loss)) * max(LEAST, relative)
