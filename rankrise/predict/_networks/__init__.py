"""Networks with diagonal weights, each the loss on its own data as a function of `a = u * v`."""
