"""Pretrained weights and safetensors files."""
