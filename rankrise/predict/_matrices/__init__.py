"""Full weight matrices: their stages, their flow, and networks that have them."""
