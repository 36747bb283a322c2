"""A certified network as an ONNX file: its program, its proved constants and the certificate, in one graph.

`file.py` runs such a file again, without torch.
"""
