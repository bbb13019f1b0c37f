"""The algorithm: critic, advantages, losses, KL, rewards; tensors in, tensors out."""
