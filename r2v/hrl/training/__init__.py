"""The training loop: optimizer steps, replay buffer, critic, checkpoints, metrics."""
