"""Networks with full weight matrices, each the loss on its own data as a function of its products."""
