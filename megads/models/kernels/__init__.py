"""Forms in which layers and the loss are computed: eager, the reference, and compiled by torch's compiler."""
