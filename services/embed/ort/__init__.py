"""The encoder by ONNX Runtime: a tenth of torch's memory and the quicker answer to one query, on a CPU.

An extra (`onnx`). The graph is made from the same safetensors that torch reads, at each start, in a tenth of a second.
"""
