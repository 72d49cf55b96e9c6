"""Uses a model: predictions, scores, HTTP, gate, publication, drift, reports."""
