"""Networks with full weight matrices, each the loss on its own data as a function of its products."""

from rankrise.predict._matrices.networks.head import FullHead, full_head
from rankrise.predict._matrices.networks.linear import LinearNetwork, linear_network
from rankrise.predict._matrices.networks.sensing import MatrixSensing, matrix_sensing

__all__ = ["FullHead", "LinearNetwork", "MatrixSensing", "full_head", "linear_network", "matrix_sensing"]
