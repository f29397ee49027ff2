"""Passages in bulk with weights and activations of 8 bits, where the processor multiplies those twice as fast as bf16.

`sample` has the texts whose activations set the scales (`ranges`), `products` the dense layers, `bert` the encoder.
"""
