"""Tiny models and what is made of them: families, exports, finished runs, serving."""
