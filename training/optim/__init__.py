"""Learning rate, gradients, loss scale and the optimizer's step."""
