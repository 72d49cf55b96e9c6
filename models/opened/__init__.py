"""An opened export: its runtime, and the answers it gives."""
