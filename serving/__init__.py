"""The server of `howdah serve`: a published model over HTTP, without a framework of training."""
