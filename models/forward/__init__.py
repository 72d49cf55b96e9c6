"""Forward passes of the model families: numpy, TensorFlow, torch, ONNX."""
