"""The actions of both loops between steps and at the end: save, evaluate, stop, export."""
