"""The doctor: whether a pipeline would run on this cluster, each finding with its remedy."""
