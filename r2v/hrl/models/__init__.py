"""Models and roles: actor, guidance, reference and critic, on bases that they share."""
