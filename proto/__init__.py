"""The contract between the kernel and its services: operations, frames, failures, and the link that carries them."""
