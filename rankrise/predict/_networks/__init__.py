"""Networks to start with: losses with their data and a random teacher."""
