"""A trained model outside its run: exported, opened, evaluated."""
