"""What every service with a model in it needs: finding the weights, batching, the choice of precision."""
