"""What both loops do between steps and at the end: save, evaluate, stop, export."""
