"""An export: the files of a trained model, and its formats."""
