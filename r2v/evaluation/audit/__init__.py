"""The audit of a results folder: replay every episode, rebuild every table, believe nothing it says of itself."""
