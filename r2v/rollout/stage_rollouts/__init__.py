"""Roll-outs of the stages: candidates, corruptions, features of steps, the teacher's states."""
