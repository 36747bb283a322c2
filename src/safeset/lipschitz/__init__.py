"""Between weights and constants: the estimate that trains, the bound that proves, the rounding of the forward pass."""
