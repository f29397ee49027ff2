"""The contract between the kernel and its services: operations, frames, failures, arrays and the link that carries
them."""
