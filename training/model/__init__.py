"""The model: its family, its pretrained weights, its forward pass in both frameworks."""
