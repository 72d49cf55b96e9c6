"""What tests start as processes of their own, and what they put on the path of real ones."""
