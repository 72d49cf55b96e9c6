"""Hyperparameter studies: trials are ordinary training runs, Optuna chooses and prunes them."""
