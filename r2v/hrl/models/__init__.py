"""Models and roles: actor, guidance, reference and critic, on shared bases."""
