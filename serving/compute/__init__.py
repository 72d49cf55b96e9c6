"""The queue, the thread that computes, an opened model, and what is counted."""
